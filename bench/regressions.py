"""Compare two checkouts: run their quick benches interleaved, and compare each timed cell.

    python bench/regressions.py OLD [--pairs 6] [--least 2] [--benches NAME,...] [--kept DIR]

OLD is another checkout of this repository. Each bench runs in its checkout's version, with that checkout's
code and its own cache, in the order old new, new old, ...; a cell is compared with the cell of the same
table, row and column. Timed cells (times, rates and ratios to peers) are compared as new / old, above 1 if
the new one is slower; so is the geometric mean of each column, in which noise of the cells averages out. All
other cells are counts, bytes and answers: differing ones are listed, except those that differ between runs of
one checkout. crime.py simulates, with the same measured times in both.

The interval of a cell is exact: the minimum and maximum of six ratios contain the median with 97 %
probability. So when a ratio is at or below the bar, the whole interval cannot be above it, and a bench for
which this is true of every cell runs no more pairs than `--least`. Two consecutive runs are of one checkout:
the difference of the same code from itself is shown with each ratio.

Runs are stored in `--kept`: a stopped command can be resumed, and benches of several commands are combined on
one page.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean, median
from tempfile import TemporaryDirectory

from paired import exact, spared
from report import ROOT, Report, options
from stored_runs import StoredRuns, tree

BENCHES = ("local", "compile", "recurrent", "sti", "crime")
MOST = 1.03
_TIMED = re.compile(r"(?<!')\b(m|µ)?s\b|/ ?s\b|a second|a word|a step|/ |^k=\d|times")
_RATE = re.compile(r"/s\b|a second")
_MEASURED = re.compile(r"-?\d+\.\d")
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?")
_ALL_ROWS = "all rows: geometric mean"


@dataclass(frozen=True, slots=True)
class Cell:
    """The position of a number in the output of one bench."""

    bench: str
    table: str
    row: str
    column: str

    @property
    def is_timed(self) -> bool:
        return "%" not in self.column and bool(_TIMED.search(self.column))

    @property
    def is_rate(self) -> bool:
        return bool(_RATE.search(self.column))


Cells = dict[Cell, object]
Ratios = dict[Cell, list[float]]


@dataclass(slots=True)
class Runs:
    """The runs of one bench, numbered by pair; every other pair starts with the new checkout."""

    old: list[Cells] = field(default_factory=list)
    new: list[Cells] = field(default_factory=list)

    @property
    def both(self) -> list[Cell]:
        """The cells that every run has."""
        return [cell for cell in self.old[0] if all(cell in cells for cells in (*self.old, *self.new))]

    @property
    def ratios(self) -> Ratios:
        """New / old of each pair, of timed cells and of their columns; cells that never differ are not
        timed.
        """
        return self._slower(list(zip(self.old, self.new, strict=True)))

    @property
    def same(self) -> Ratios:
        """The ratios of two consecutive runs of one checkout, first the new one, then the old one."""
        sides = [self.new if turn % 2 else self.old for turn in range(1, len(self.old))]
        return self._slower([(side[turn], side[turn + 1]) for turn, side in enumerate(sides)])

    def _slower(self, pairs: Sequence[tuple[Cells, Cells]]) -> Ratios:
        found: Ratios = {}
        columns: dict[Cell, list[list[float]]] = {}
        for cell in self.both if pairs else ():
            numbers = [(_number(a[cell]), _number(b[cell])) for a, b in pairs]
            if cell.is_timed and all(a and b and a > 0 and b > 0 for a, b in numbers):
                factors = [(a / b if cell.is_rate else b / a) for a, b in numbers if a and b]
                if all(factor == 1.0 for factor in factors):
                    continue
                found[cell] = factors
                columns.setdefault(Cell(cell.bench, cell.table, _ALL_ROWS, cell.column), []).append(factors)
        for column, rows in columns.items():
            if len(rows) > 1:
                found[column] = [geometric_mean(row) for row in zip(*rows, strict=True)]
        return found


def main() -> None:
    opts = options(__doc__ or "", _extra)
    report = Report("regressions", f"up to {opts.pairs} pairs of runs of {opts.benches} --quick", opts)
    old = Path(opts.old).resolve()
    report.note(f"Old: commit {_commit(old)}. New: the commit above.")
    with TemporaryDirectory() as scratch:
        folder = Path(opts.kept or scratch).resolve()
        kept = StoredRuns(folder / "runs", f"{tree()} beside {_commit(old)}")
        sides = {
            side: _Side(checkout, folder / side, kept) for side, checkout in (("old", old), ("new", ROOT))
        }
        found = {bench: _in_pairs(bench, sides, opts.pairs, opts.least) for bench in opts.benches.split(",")}
    _report(report, found, opts.pairs)
    report.finish()


def _extra(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("old", metavar="OLD", help="the checkout to compare with")
    parser.add_argument("--pairs", type=int, default=6, help="the most pairs of runs of a bench")
    parser.add_argument(
        "--least", type=int, default=2, help="the least number of pairs, even if all cells are decided"
    )
    parser.add_argument("--kept", metavar="DIR", help="the folder of runs, to resume a command")
    parser.add_argument("--benches", default=",".join(BENCHES), help="names of scripts, with commas between")


def _commit(checkout: Path) -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True).stdout.strip()


def _in_pairs(bench: str, sides: Mapping[str, "_Side"], most: int, least: int) -> Runs:
    """Interleaved runs of both checkouts, while a cell may still be found slower."""
    runs = Runs()
    for turn in range(most):
        for side in ("old", "new")[:: -1 if turn % 2 else 1]:
            (runs.old if side == "old" else runs.new).append(sides[side].run(bench, turn))
        n_open = sum(_is_above(ratios, most) for ratios in runs.ratios.values())
        print(f"{bench}, pair {turn + 1}: {n_open} of {len(runs.ratios)} may be slower", file=sys.stderr)
        if turn + 1 >= least and not n_open:
            break
    return runs


@dataclass(frozen=True, slots=True)
class _Side:
    """One checkout with its own cache."""

    checkout: Path
    cache: Path
    kept: StoredRuns

    def run(self, bench: str, turn: int) -> Cells:
        """The cells that one run prints. Raises CalledProcessError where the bench fails."""
        return _cells(
            bench, self.kept.get(f"{bench} {self.cache.name}", str(turn), lambda: self._rows(bench))
        )

    def _rows(self, bench: str) -> object:
        told = self.cache / f"{bench}.json"
        more = ["--kept", str(self._times_for_crime())] if bench == "crime" else []
        _python(self.checkout, self.cache, f"bench/{bench}.py", "--quick", "--json", str(told), *more)
        return json.loads(told.read_text())["rows"]

    def _times_for_crime(self) -> Path:
        """A folder of this side with the times measured once for both."""
        measured, kept = self.cache.parent / "times", self.cache / "crime"
        if not measured.exists():
            _python(ROOT, self.cache.parent / "measuring", "bench/crime_measure.py", str(measured))
        if not kept.exists():
            shutil.copytree(measured, kept)
        return kept


def _python(checkout: Path, cache: Path, *command: str) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "PLIANT_CACHE": str(cache)}
    whole = [sys.executable, *command]
    subprocess.run(whole, cwd=checkout, env=environment, check=True, stdout=subprocess.DEVNULL)


def _cells(bench: str, rows: Sequence[Mapping[str, object]]) -> Cells:
    """The cells of a bench. A row is identified by its number in its table, and by its leading non-measured
    cells.
    """
    found: Cells = {}
    counts: dict[str, int] = {}
    for row in rows:
        table, *columns = row
        title = str(row[table])
        number = counts[title] = counts.get(title, 0) + 1
        label = " ".join(x for x in (str(row[column]) for column in columns[:2]) if not _MEASURED.match(x))
        for column in columns:
            found[Cell(bench, title, f"{number}: {label}", column)] = row[column]
    return found


def _report(report: Report, found: Mapping[str, Runs], most: int) -> None:
    ratios = {cell: rs for runs in found.values() for cell, rs in runs.ratios.items()}
    same = {cell: rs for runs in found.values() for cell, rs in runs.same.items()}
    columns: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in ratios:
        columns.setdefault((cell.bench, cell.table, cell.column), []).append(cell)
    report.table(
        "timed cells, new / old: medians of pairs, exact 95 % intervals (below six pairs, all of them)",
        [_shown_column(cells, ratios, same) for cells in columns.values()],
    )
    slower = [cell for cell, rs in ratios.items() if _is_above(rs, most)]
    report.table(
        f"wholly above {MOST:g}",
        [_shown(c) | {"new / old": str(exact(ratios[c])), "same code": _spread([c], same)} for c in slower],
    )
    quicker = sum(exact(rs).high < 1 / MOST for rs in ratios.values())
    differ = [(runs, cell) for runs in found.values() for cell in runs.both if _differs(runs, cell)]
    report.table(
        "other cells that differ",
        [_shown(cell) | {"old": runs.old[0][cell], "new": runs.new[0][cell]} for runs, cell in differ],
    )
    by_chance = sum(_is_above(rs, most) for rs in same.values())
    one_sided = sum(len(set(runs.old[0]) ^ set(runs.new[0])) for runs in found.values())
    pairs = ", ".join(f"{bench} {len(runs.old)}" for bench, runs in found.items())
    report.claim(
        "session.speed",
        f"{len(slower)} of {len(ratios)} slower, {quicker} quicker, {len(differ)} others differ",
        f"no timed cell's interval wholly above {MOST:g}; counts, bytes and answers equal",
        not slower and not differ,
        f"Pairs of runs: {pairs}. Of one checkout beside itself, {by_chance} in one pair less. "
        f"{one_sided} cells stand on one side only.",
    )


def _shown_column(cells: list[Cell], ratios: Ratios, same: Ratios) -> dict[str, object]:
    """A column of a table: its cells together, and the worst of them."""
    first, rows = cells[0], [cell for cell in cells if cell.row != _ALL_ROWS]
    worst = max(rows, key=lambda cell: exact(ratios[cell]).low)
    together = cells[-1] if cells[-1].row == _ALL_ROWS else worst
    return {
        "bench": first.bench,
        "table": first.table[:60],
        "column": first.column,
        "cells": len(rows),
        "together": str(exact(ratios[together])),
        "worst": str(exact(ratios[worst])),
        "same code": _spread(rows, same),
    }


def _spread(cells: Iterable[Cell], same: Ratios) -> str:
    """The difference of the same code from itself: the median over cells of the largest factor."""
    greatest = [max(max(r, 1 / r) for r in same[cell]) for cell in cells if same.get(cell)]
    return f"{median(greatest):.3f}" if greatest else ""


def _is_above(ratios: Sequence[float], pairs: int) -> bool:
    """Whether the interval is wholly above the bar, or may be after `pairs` pairs."""
    return sum(ratio <= MOST for ratio in ratios) <= spared(pairs)


def _differs(runs: Runs, cell: Cell) -> bool:
    """Whether an untimed cell has one value in all old runs, and another in all new ones."""
    old, new = ({str(cells[cell]) for cells in side} for side in (runs.old, runs.new))
    return not cell.is_timed and len(old) == 1 == len(new) and old != new


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
