"""Two checkouts side by side: their own quick benches in turns, each timed cell of the one against the other.

    python bench/regressions.py OLD [--rounds 5] [--benches local,compile,recurrent]

OLD is another checkout of this repository. Each bench runs as that checkout has it, with that checkout's code
and a cache of its own, in the order old new, new old, ...; a cell is compared with the cell of the same
table, row and column. Timed cells (times, rates and ratios to peers) become the median of paired new / old
with its 95 % interval, above 1 where the new one is slower. All other cells are counts, bytes and answers:
those that differ are listed, and between runs of one checkout those that vary by themselves are left out.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from paired import Ratio, paired
from report import ROOT, Report, options

BENCHES = ("local", "compile", "recurrent")
MOST = 1.03
_TIMED = re.compile(r"\b(m|µ)?s\b|/ ?s\b|a second|a word|a step|/ |^k=\d|times")
_RATE = re.compile(r"/s\b|a second")
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?")


@dataclass(frozen=True, slots=True)
class Cell:
    """Where a number stands in the output of one bench."""

    bench: str
    table: str
    row: str
    column: str

    @property
    def is_timed(self) -> bool:
        return bool(_TIMED.search(self.column))

    @property
    def is_rate(self) -> bool:
        return bool(_RATE.search(self.column))


Cells = dict[Cell, object]


def main() -> None:
    opts = options(__doc__ or "", _extra)
    report = Report("regressions", f"{opts.rounds} pairs of runs of {opts.benches} --quick", opts)
    old, benches = Path(opts.old).resolve(), tuple(opts.benches.split(","))
    report.note(f"Old: commit {_commit(old)}. New: the commit above.")
    found: dict[str, list[Cells]] = {"old": [], "new": []}
    with TemporaryDirectory() as folder:
        for turn in range(opts.rounds):
            for side in ("old", "new")[:: -1 if turn % 2 else 1]:
                checkout = old if side == "old" else ROOT
                cells: Cells = {}
                for bench in benches:
                    cells |= _run(checkout, bench, Path(folder) / side)
                found[side].append(cells)
                print(f"{side}, pair {turn + 1} of {opts.rounds}: {len(cells)} cells", file=sys.stderr)
    _report(report, found["old"], found["new"])
    report.finish()


def _extra(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("old", metavar="OLD", help="the checkout to compare with")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs")
    parser.add_argument("--benches", default=",".join(BENCHES), help="names of scripts, with commas between")


def _commit(checkout: Path) -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True).stdout.strip()


def _run(checkout: Path, bench: str, cache: Path) -> Cells:
    """The cells that one run prints. Raises CalledProcessError where the bench fails."""
    cache.mkdir(exist_ok=True)
    told = cache / f"{bench}.json"
    environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "PLIANT_CACHE": str(cache)}
    command = [sys.executable, f"bench/{bench}.py", "--quick", "--json", str(told)]
    subprocess.run(command, cwd=checkout, env=environment, check=True, stdout=subprocess.DEVNULL)
    return _cells(bench, json.loads(told.read_text())["rows"])


def _cells(bench: str, rows: Sequence[Mapping[str, object]]) -> Cells:
    """A row is known by its number within its table, and by its first cell for people."""
    found: Cells = {}
    counts: dict[str, int] = {}
    for row in rows:
        table, *columns = row
        title = str(row[table])
        number = counts[title] = counts.get(title, 0) + 1
        label = " ".join(str(row[column]) for column in columns[:2] if not isinstance(row[column], float))
        for column in columns:
            found[Cell(bench, title, f"{number}: {label}", column)] = row[column]
    return found


def _report(report: Report, old: list[Cells], new: list[Cells]) -> None:
    both = [cell for cell in old[0] if all(cell in cells for cells in (*old, *new))]
    ratios: dict[Cell, Ratio] = {}
    for cell in both:
        a, b = ([_number(cells[cell]) for cells in side] for side in (old, new))
        if cell.is_timed and all(x for x in (*a, *b)):
            x, y = ([float(str(n)) for n in side] for side in (a, b))
            ratios[cell] = paired(x, y) if cell.is_rate else paired(y, x)
    groups: dict[tuple[str, str, str], list[Ratio]] = {}
    for cell, ratio in ratios.items():
        groups.setdefault((cell.bench, cell.table, cell.column), []).append(ratio)
    report.table(
        "timed cells, new / old: medians of pairs, 95 % intervals",
        [
            {
                "bench": bench,
                "table": table[:60],
                "column": column,
                "cells": len(group),
                "median": sorted(r.value for r in group)[len(group) // 2],
                "worst": str(max(group, key=lambda r: r.low)),
            }
            for (bench, table, column), group in groups.items()
        ],
    )
    slower = {cell: ratio for cell, ratio in ratios.items() if ratio.low > MOST}
    quicker = sum(ratio.high < 1 / MOST for ratio in ratios.values())
    report.table(f"wholly above {MOST:g}", [_shown(c) | {"new / old": str(r)} for c, r in slower.items()])
    differ = [
        cell
        for cell in both
        if not cell.is_timed and len({str(c[cell]) for c in old}) == 1 == len({str(c[cell]) for c in new})
        and str(old[0][cell]) != str(new[0][cell])
    ]  # fmt: skip
    report.table(
        "other cells that differ", [_shown(c) | {"old": old[0][c], "new": new[0][c]} for c in differ]
    )
    report.claim(
        "session.speed",
        f"{len(slower)} of {len(ratios)} slower, {quicker} quicker, {len(differ)} others differ",
        f"no timed cell's interval wholly above {MOST:g}; counts, bytes and answers equal",
        not slower and not differ,
        f"{len(set(old[0]) ^ set(new[0]))} cells stand on one side only; by chance alone 2.5 % of intervals "
        "lie wholly on one side of the truth",
    )


def _number(value: object) -> float | None:
    if isinstance(value, bool | None):
        return None
    if isinstance(value, int | float):
        return float(value)
    found = _NUMBER.match(str(value))
    return None if found is None else float(found[0])


def _shown(cell: Cell) -> dict[str, object]:
    return {"bench": cell.bench, "table": cell.table[:60], "row": cell.row, "column": cell.column}


if __name__ == "__main__":
    main()
