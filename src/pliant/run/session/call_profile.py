"""Where the time of a session of compiled kernel calls goes, step by step: numbers, tables and a trace."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from rich.table import Table

from pliant.arrays import Float64
from pliant.compiler.executable.encode_image import Row
from pliant.ir.cost import Span
from pliant.ir.program import Compute, Program, Segment, Step
from pliant.quantities import format_seconds
from pliant.run.session.step_profile import StepProfile
from pliant.run.trace import perfetto_trace

_LANE = "cpu"


@dataclass(frozen=True, slots=True)
class StepTime:
    """One row of the native table over all runs; what it does on all threads, in seconds.

    `label` is the node it came from, with the operators that became one; `share` is its part of the
    steps' median time. `gflop_s` is None where no product is counted; of a node of several steps its
    operations are counted on the longest, over the time of all. `gb_s` counts every tensor once, from
    wherever it came: a rate above the memory's means that it came from a cache.
    """

    label: str
    op: str
    kernel: str
    n_units: int
    median_s: float
    min_s: float
    share: float
    gflop_s: float | None
    gb_s: float


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """All steps of one operator together."""

    op: str
    n: int
    median_s: float
    share: float


@dataclass(frozen=True, slots=True)
class Profile(StepProfile):
    """Steps in order, and `runs` timed walks over them: median and fastest, in seconds.

    `spans` are the steps of the fastest run. The clock is read between steps, which costs some 30 ns each.
    """

    steps: tuple[StepTime, ...]
    runs: int
    n_threads: int
    median_s: float
    min_s: float
    spans: tuple[Span, ...]

    def by_operator(self) -> tuple[OperatorTime, ...]:
        """Totals, the longest first."""
        found: dict[str, list[StepTime]] = {}
        for step in self.steps:
            found.setdefault(step.op, []).append(step)
        totals = [
            OperatorTime(op, len(s), sum(x.median_s for x in s), sum(x.share for x in s))
            for op, s in found.items()
        ]
        return tuple(sorted(totals, key=lambda total: -total.median_s))

    def tables(self) -> tuple[Table, Table]:
        """By operator, and step by step."""
        operators = Table("operator", "steps", "median", "share")
        for total in self.by_operator():
            operators.add_row(total.op, str(total.n), format_seconds(total.median_s), f"{total.share:.1%}")
        steps = Table("#")
        steps.add_column("step", overflow="fold")
        steps.add_column("kernel", overflow="ellipsis", max_width=28, no_wrap=True)
        for name in ("units", "median", "min", "share", "GFLOP/s", "GB/s"):
            steps.add_column(name, justify="right", no_wrap=True)
        for i, step in enumerate(self.steps):
            times = format_seconds(step.median_s), format_seconds(step.min_s), f"{step.share:.1%}"
            rates = "" if step.gflop_s is None else f"{step.gflop_s:.1f}", f"{step.gb_s:.1f}"
            steps.add_row(str(i), step.label, step.kernel, str(step.n_units), *times, *rates)
        return operators, steps

    @property
    def summary(self) -> str:
        """One line: how long, how often, on how many threads."""
        return (
            f"{format_seconds(self.median_s)} median, {format_seconds(self.min_s)} fastest of {self.runs} "
            f"runs, {len(self.steps)} steps, {self.n_threads} threads"
        )

    def chrome_trace(self) -> dict[str, Any]:
        """The fastest run as Chrome trace events, which ui.perfetto.dev opens."""
        works = (Compute(step.label, rows=step.n_units) for step in self.steps)
        program = Program((Segment(tuple(Step(_LANE, work) for work in works)),))
        return perfetto_trace(program, measured=self.spans)


def profile_of(rows: Sequence[Row], ends_s: Float64[np.ndarray, "runs ends"], n_threads: int) -> Profile:
    """The profile of a table from, for each run, the time before its first row and after each."""
    seconds = np.diff(ends_s, axis=1)
    median, least = np.median(seconds, axis=0), seconds.min(axis=0)
    total = float(median.sum()) or 1.0
    rates = _gflop_s(rows, median)
    steps = tuple(
        StepTime(
            row.label or row.kernel, row.op or row.kernel, row.kernel, row.n_units,
            float(median[i]), float(least[i]), float(median[i]) / total,
            rates[i], row.n_bytes / max(float(median[i]), 1e-9) / 1e9,
        )
        for i, row in enumerate(rows)
    )  # fmt: skip
    whole = ends_s[:, -1] - ends_s[:, 0]
    best = ends_s[int(whole.argmin())]
    spans = tuple(Span(i, _LANE, float(best[i]), float(best[i + 1])) for i in range(len(rows)))
    return Profile(steps, len(ends_s), n_threads, float(np.median(whole)), float(whole.min()), spans)


def _gflop_s(rows: Sequence[Row], seconds: Float64[np.ndarray, " rows"]) -> list[float | None]:
    """A node's operations over the time of its steps, on the longest of them."""
    rates: list[float | None] = [None] * len(rows)
    for _, group in groupby(range(len(rows)), key=lambda i: (rows[i].label, rows[i].op)):
        steps = list(group)
        longest = max(steps, key=lambda i: float(seconds[i]))
        if rows[longest].flops:
            rates[longest] = rows[longest].flops / max(float(seconds[steps].sum()), 1e-9) / 1e9
    return rates
