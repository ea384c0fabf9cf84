"""The claims of bench/sti.py over all tasks: the results in docs/results/sti-*.md, averaged and at their
worst.

python bench/sti_summary.py: reads the written tables.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

from tasks import TASKS

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
_PLACES = "Devices and targets, points [95 %, paired]"
_GAP = re.compile(r"(\d+) baselines better; Ours - Preload-full (-?[\d.]+) \[(-?[\d.]+), (-?[\d.]+)\]")
_SHARE = re.compile(r"(\d+) of (\d+)")

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TaskResult:
    """One task's page: one row per device and target, and Ours minus Preload-full over them, in points."""

    name: str
    rows: Sequence[Row]
    n_better: int
    gap: float
    low: float
    high: float

    @property
    def n_above(self) -> int:
        """Places where Ours or Preload-full is significantly better than the majority class."""
        return sum(row["above it"] == "yes" for row in self.rows)

    @property
    def counts(self) -> bool:
        """Whether the task counts in the average: submodels beat the majority class at half of its places or
        more.

        Otherwise all systems give nearly the same answers, so small differences are not meaningful.
        """
        return 2 * self.n_above >= len(self.rows)


def main() -> None:
    """Print each task's places, the mean over the tasks that count, and the worst rows of all tasks."""
    found = []
    for task in TASKS:
        path = RESULTS / f"sti-{task}.md"
        result = read_result(task, path.read_text(encoding="utf-8")) if path.is_file() else None
        if result is None:
            print(f"{task}: no result of this version")
        else:
            found.append(result)
    print("\n".join(summary(found)))


def read_result(name: str, page: str) -> TaskResult | None:
    """Parse a page; None if it has no table of places or no claim."""
    rows, claim = _table(page, _PLACES), _GAP.search(page)
    if not rows or claim is None or "above it" not in rows[0]:
        return None
    gap, low, high = (float(x) for x in claim.groups()[1:])
    return TaskResult(name, rows, int(claim[1]), gap, low, high)


def summary(found: Sequence[TaskResult]) -> list[str]:
    """The lines to print."""
    lines = []
    for task in found:
        out = "" if task.counts else ", NOT in the mean: its submodels sit at the majority class"
        lines.append(
            f"{task.name}: Ours - Preload-full {task.gap:.2f} [{task.low:.2f}, {task.high:.2f}], "
            f"{task.n_better} baselines on demand better, above the majority class at {task.n_above} of "
            f"{len(task.rows)} places{out}"
        )
        lines += [f"  {_place(row)}" for row in task.rows]
    kept = [task for task in found if task.counts]
    if kept:
        lines.append(f"mean of {', '.join(t.name for t in kept)}: {mean(kept)}")
    if found:
        n_better = sum(t.n_better for t in found)
        lines.append(f"baselines on demand significantly better, all {len(found)} tasks: {n_better}")
        lines += _worst(found)
    return lines


def mean(tasks: Sequence[TaskResult]) -> str:
    """The mean over tasks, with an interval; tasks are independent samples, so variances of their means
    add.
    """
    value = sum(t.gap for t in tasks) / len(tasks)
    half = sqrt(sum(((t.high - t.low) / 2) ** 2 for t in tasks)) / len(tasks)
    return f"Ours - Preload-full {value:.2f} [{value - half:.2f}, {value + half:.2f}]"


def _worst(found: Sequence[TaskResult]) -> list[str]:
    rows = [(t.name, row) for t in found for row in t.rows]
    name, row = min(rows, key=lambda x: _points(x[1]["- Preload-full"]))
    lines = [f"worst of all {len(rows)} places against Preload-full: {name} {_place(row)}"]
    for system in ("Ours", "Ours-0MB"):
        cells = [(t, r["device, T"], r[f"{system} within T"]) for t, r in rows]
        met = [(_share(x), t, at) for t, at, x in cells if not x.startswith("infeasible")]
        lines.append(
            f"{system}: infeasible at {len(cells) - len(met)} of {len(cells)} places"
            + ("" if not met else "; within T, worst feasible: {:.0%} ({} {})".format(*min(met)))
        )
    return lines


def _place(row: Row) -> str:
    return (
        f"{row['device, T']}: Ours {row['Ours %']} % (majority {row['majority %']}), - Preload-full "
        f"{row['- Preload-full']}; within T: Ours {row['Ours within T']}, Ours-0MB {row['Ours-0MB within T']}"
    )


def _points(interval: str) -> float:
    return float(interval.partition(" ")[0])


def _share(met: str) -> float:
    match = _SHARE.search(met)
    return int(match[1]) / int(match[2]) if match else 0.0


def _table(page: str, title: str) -> list[Row]:
    """The rows of the table under a heading, by column."""
    _, _, rest = page.partition(f"## {title}\n")
    lines = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


if __name__ == "__main__":
    main()
