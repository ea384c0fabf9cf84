"""[slo.ablation] The benefit of each part of the router: a run without it against the full router, world by
world.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import checkout  # noqa: F401 - research and testbed lie there
from report import Report
from research.deadline_world import Scenario
from slo_lab import Lab, jobs_of
from slo_records import Record
from slo_ways import ABLATED

WHOLE = "pliant"


def ablation(report: Report, lab: Lab, scenarios: Sequence[Scenario], picture: Path | None) -> None:
    """One row per world, one column per way: the mean over seeds. Drawn if `picture` is given."""
    ways = (WHOLE, *ABLATED)
    lab.fill(jobs_of(ways, scenarios))
    found: dict[str, dict[str, list[list[Record]]]] = {}
    for scenario in scenarios:
        by_way = found.setdefault(scenario.world, {way: [] for way in ways})
        for way in ways:
            by_way[way].append(lab.run(way, scenario)[0])
    whole = lab.known(scenarios[0]).levels[-1].accuracy
    rows = [
        {"world": world} | {f"{way} [%]": 100 * attained(runs, whole) for way, runs in by_way.items()}
        for world, by_way in found.items()
    ]
    report.table(f"In time and at their floor, mean of {len(scenarios) // len(found)} seeds", rows)
    totals: list[dict[str, Any]] = []
    for way in ways:
        runs = [run for by_way in found.values() for run in by_way[way]]
        answered = [r for run in runs for r in run if r.attained(whole)]
        share = mean(attained([run], whole) for run in runs)
        totals.append(
            {
                "way": way,
                "attained [%]": 100 * share,
                "worst run [%]": 100 * min(attained([run], whole) for run in runs),
                "worth [points]": 100 * (mean(row[f"{WHOLE} [%]"] for row in rows) / 100 - share),
                "median ms of what is attained": 1e3 * median(r.seconds for r in answered),
                "its accuracy": mean(whole if r.accuracy is None else r.accuracy for r in answered),
            }
        )
    report.table("What each part is worth", totals)
    if picture is not None:
        draw(rows, ways, picture)


def attained(runs: Sequence[Sequence[Record]], whole: float) -> float:
    """The mean over `runs` of the fraction in time and at the accuracy floor; `whole` is the whole model's
    accuracy.
    """
    return mean(mean(r.attained(whole) for r in run) for run in runs)


def draw(rows: Sequence[dict[str, Any]], ways: Sequence[str], path: Path) -> None:
    """A group of bars for each world."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.6 * len(rows) + 1.5, 2.8), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(ways)
    for i, way in enumerate(ways):
        places = [k + (i - (len(ways) - 1) / 2) * width for k in range(len(rows))]
        axes.bar(places, [row[f"{way} [%]"] for row in rows], width, label=way)
    axes.set_xticks(range(len(rows)), [row["world"] for row in rows])
    axes.set_ylabel("in time and at the floor, %")
    axes.legend(fontsize=6)
    figure.savefig(path, metadata={"Date": None})
