"""Run a program that only computes on the caller's thread: `execute` without lanes, loads or waits."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from time import perf_counter

from pliant.ir.cost import Span
from pliant.ir.program import Compute, Program


def execute_inline(program: Program, compute: Callable[[int, Compute], None]) -> Sequence[float]:
    """Call `compute(step number, work)` for every step in order; each is a `Compute` of one lane.

    Returns the time before the first step and after each, from which `inline_spans` makes spans on request:
    most runs have one short step, whose span is not read. An error of a step is raised unchanged.
    """
    readings_s = [perf_counter()]
    for segment in program.segments:
        for step in segment.steps:
            compute(len(readings_s) - 1, step.work)  # type: ignore[arg-type]
            readings_s.append(perf_counter())
    return readings_s


def inline_spans(program: Program, readings_s: Sequence[float]) -> tuple[Span, ...]:
    """The spans of a run by `execute_inline`, one per step; times count from the first reading."""
    times_s = pairwise(reading_s - readings_s[0] for reading_s in readings_s)
    steps = zip(program.steps, times_s, strict=True)
    return tuple(Span(i, step.lane, start_s, end_s) for i, (step, (start_s, end_s)) in enumerate(steps))
