"""`compile.planning`: the time of scheduling a model, with an empty and with a complete cost table."""

from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from fluidml_models import Subject
from fluidml_schedules import plan

COLD_S, WARM_S = 60.0, 1.0


def measure(subject: Subject) -> dict[str, object]:
    """A row: seconds of planning. Cold has to compile kernels and measure forms, warm reads the table.

    Each measuring schedule starts with an empty folder; the warm time is the median of three.
    """
    row: dict[str, object] = {"model": subject.name}
    for kind in ("paper", "exact"):
        with TemporaryDirectory() as name:
            cold = plan(subject, kind, Path(name)).report
            again = [plan(subject, kind, Path(name)).report for _ in range(3)]
        assert cold is not None
        warm = [report for report in again if report is not None]
        assert all(report.measured == 0 for report in warm), "the table was not kept"
        row[f"{kind}, cold [s]"] = cold.planning_s
        row[f"{kind}, warm [s]"] = median(report.planning_s for report in warm)
        row["forms measured"] = cold.measured
    return row
