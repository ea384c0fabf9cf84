"""The claims of bench/sti.py over all tasks: what docs/results/sti-*.md say, averaged or at their worst.

python bench/sti_summary.py: reads the tables that were written, measures nothing.
"""

import re
from math import sqrt
from pathlib import Path

from tasks import TASKS

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
_GAP = re.compile(r"(\d+) baselines better; Ours - Preload-full (-?[\d.]+) \[(-?[\d.]+), (-?[\d.]+)\]")


def main() -> None:
    """Print the mean of Ours minus Preload-full over tasks, with its interval, and the baselines better."""
    found = {}
    for task in TASKS:
        path = RESULTS / f"sti-{task}.md"
        match = _GAP.search(path.read_text(encoding="utf-8")) if path.is_file() else None
        if match is None:
            print(f"{task}: no result")
            continue
        found[task] = (int(match[1]), *(float(x) for x in match.groups()[1:]))
        print(f"{task}: Ours - Preload-full {match[2]} [{match[3]}, {match[4]}], {match[1]} baselines better")
    if not found:
        return
    mean = sum(gap for _, gap, _, _ in found.values()) / len(found)
    # Tasks are independent samples: variances of the means add.
    half = sqrt(sum(((high - low) / 2) ** 2 for _, _, low, high in found.values())) / len(found)
    better = sum(n for n, *_ in found.values())
    interval = f"[{mean - half:.2f}, {mean + half:.2f}]"
    print(f"all {len(found)} tasks: {mean:.2f} {interval}, {better} baselines better")


if __name__ == "__main__":
    main()
