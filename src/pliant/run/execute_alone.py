"""Run a program that only computes on the caller's thread: `execute` without lanes, loads or waits."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from time import perf_counter

from pliant.ir.cost import Span
from pliant.ir.program import Compute, Program


def execute_alone(program: Program, compute: Callable[[int, Compute], None]) -> Sequence[float]:
    """Call `compute(step number, work)` for every step, in order, each of which is a `Compute` of one lane.

    Returns the time before the first step and after each, of which `spans_alone` makes spans: most runs are
    of one short step, and nobody reads its span. What a step raises is raised as it is.
    """
    readings_s = [perf_counter()]
    for segment in program.segments:
        for step in segment.steps:
            compute(len(readings_s) - 1, step.work)  # type: ignore[arg-type]
            readings_s.append(perf_counter())
    return readings_s


def spans_alone(program: Program, readings_s: Sequence[float]) -> tuple[Span, ...]:
    """The spans of a run of `program` that `execute_alone` made, one a step, from its first reading on."""
    times_s = pairwise(reading_s - readings_s[0] for reading_s in readings_s)
    steps = zip(program.steps, times_s, strict=True)
    return tuple(Span(i, step.lane, start_s, end_s) for i, (step, (start_s, end_s)) in enumerate(steps))
