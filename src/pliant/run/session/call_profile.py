"""Profile of a session of compiled kernel calls, step by step: numbers, tables and a trace."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, groupby, pairwise
from typing import Any

import numpy as np
from rich.table import Table

from pliant.arrays import Float64
from pliant.compiler.executable.encode_image import CallEntry
from pliant.ir.cost import Span, latency
from pliant.ir.program import Program
from pliant.ir.text.timeline_text import timeline_text
from pliant.quantities import format_seconds
from pliant.run.session.step_profile import StepProfile
from pliant.run.trace import perfetto_trace


@dataclass(frozen=True, slots=True)
class StepTime:
    """Times of one row of the native call table over all runs, on all threads, in seconds.

    `label` is the node it came from, with the operators that were fused; `share` is its fraction of the
    steps' median time. `gflop_s` is None for a step without a product; for a node of several steps, the
    operations are shown on the longest step, divided by the time of all its steps. `gb_s` counts every tensor
    once: a rate above the memory bandwidth means that tensors came from a cache.
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


@dataclass(frozen=True, slots=True, eq=False)
class TimedRun:
    """One run of a program: the spans of its steps, and for each step the end times of its kernel calls.

    `ends_s` are seconds from the start of the step's first call; the first entry is that start.
    """

    spans: Sequence[Span]
    ends_s: Sequence[Float64[np.ndarray, " _"]]


@dataclass(frozen=True, slots=True)
class Profile(StepProfile):
    """Kernel calls in order, and `runs` timed runs over them: median and fastest, in seconds.

    `program` is the program that ran, `spans` are its steps in the fastest run, and `calls` the kernel calls
    within these, numbered as `steps`. Reading the clock between calls costs about 30 ns per call.
    """

    steps: tuple[StepTime, ...]
    runs: int
    n_threads: int
    median_s: float
    min_s: float
    program: Program
    spans: tuple[Span, ...]
    calls: tuple[Span, ...]

    def by_operator(self) -> tuple[OperatorTime, ...]:
        """Totals by operator, the longest first."""
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
        """One line: times, number of runs, number of threads."""
        return (
            f"{format_seconds(self.median_s)} median, {format_seconds(self.min_s)} fastest of {self.runs} "
            f"runs, {len(self.steps)} steps, {self.n_threads} threads"
        )

    def chrome_trace(self) -> dict[str, Any]:
        """The fastest run as Chrome trace events, which ui.perfetto.dev opens: steps, and calls within."""
        trace = perfetto_trace(self.program, measured=self.spans)
        calls = [
            {
                "ph": "X", "name": self.steps[call.step].label, "cat": self.steps[call.step].kernel,
                "pid": 1, "tid": 1, "ts": call.start_s * 1e6, "dur": call.seconds * 1e6,
            }
            for call in self.calls
        ]  # fmt: skip
        return trace | {"traceEvents": [*trace["traceEvents"], *calls]}

    def _timeline(self) -> str:
        return timeline_text(self.program, self.spans) if len(self.spans) > 1 else ""


def profile_of(
    program: Program, rows: Sequence[Sequence[CallEntry]], runs: Sequence[TimedRun], n_threads: int
) -> Profile:
    """The profile of one or more runs of a program whose steps make these kernel calls."""
    calls = list(chain.from_iterable(rows))
    seconds = np.array([np.concatenate([np.diff(ends_s) for ends_s in run.ends_s]) for run in runs])
    median, least = np.median(seconds, axis=0), seconds.min(axis=0)
    total = float(median.sum()) or 1.0
    rates = _gflop_s(calls, median)
    steps = tuple(
        StepTime(
            row.label or row.kernel, row.op or row.kernel, row.kernel, row.n_units,
            float(median[i]), float(least[i]), float(median[i]) / total,
            rates[i], row.n_bytes / max(float(median[i]), 1e-9) / 1e9,
        )
        for i, row in enumerate(calls)
    )  # fmt: skip
    whole = [latency(run.spans) for run in runs]
    best = runs[int(np.argmin(whole))]
    return Profile(
        steps, len(runs), n_threads, float(np.median(whole)), min(whole), program,
        tuple(best.spans), tuple(_call_spans(best)),
    )  # fmt: skip


def _call_spans(run: TimedRun) -> Iterator[Span]:
    """The spans of a run's kernel calls, offset by the start of their step."""
    number = count()
    for span, ends_s in zip(run.spans, run.ends_s, strict=True):
        for start_s, end_s in pairwise(ends_s.tolist()):
            yield Span(next(number), span.lane, span.start_s + start_s, span.start_s + end_s)


def _gflop_s(rows: Sequence[CallEntry], seconds: Float64[np.ndarray, " rows"]) -> list[float | None]:
    """A node's operations divided by the time of its steps, listed on the longest step."""
    rates: list[float | None] = [None] * len(rows)
    for _, group in groupby(range(len(rows)), key=lambda i: (rows[i].label, rows[i].op)):
        steps = list(group)
        longest = max(steps, key=lambda i: float(seconds[i]))
        if rows[longest].flops:
            rates[longest] = rows[longest].flops / max(float(seconds[steps].sum()), 1e-9) / 1e9
    return rates
