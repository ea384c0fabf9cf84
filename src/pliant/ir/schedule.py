"""Check whether spans are a schedule of a program: its steps in order, each after what it waits for."""

from collections.abc import Iterator, Sequence
from math import inf

from pliant.ir.cost import Span, SpanState
from pliant.ir.program import Load, Program, Step
from pliant.ir.projection import join_segments


def violations(program: Program, spans: Sequence[Span], slack_s: float = 1e-9) -> Iterator[str]:
    """Yield how `spans`, predicted or measured, violate `program`; nothing for a valid schedule.

    A schedule has one span per step, on the step's lane. A lane runs its steps in order, each after
    everything that it waits for has ended, also at barriers. A step waits for preferred steps until its
    latest start, and no load begins after that. Steps that did not run to their end, or are not known to have
    run, are not checked, and no step had to wait for them. `slack_s` is the tolerance for the difference
    between two devices' clocks.
    """
    steps = join_segments(program.segments).steps
    said = [(span.step, span.lane) for span in spans]
    wanted = [(i, step.lane) for i, step in enumerate(steps)]
    if said != wanted:
        odd = next((i for i, (a, b) in enumerate(zip(said, wanted, strict=False)) if a != b), len(said))
        yield f"{len(said)} spans are not those of {len(steps)} steps, first at {odd}."
        return
    before: dict[str, int] = {}
    for i, (step, span) in enumerate(zip(steps, spans, strict=True)):
        if span.state is not SpanState.RAN:
            continue
        waits = {*step.after, before.get(step.lane, i)} - {i}
        for j in sorted(waits):
            late_s = spans[j].end_s - span.start_s
            if spans[j].state is SpanState.RAN and late_s > slack_s:
                yield (
                    f"step {i} ({step.work}) begins {late_s * 1e3:.3f} ms before step {j} "
                    f"({steps[j].work}) ends."
                )
        yield from _latest(i, step, span, spans, slack_s)
        before[step.lane] = i


def _latest(number: int, step: Step, span: Span, spans: Sequence[Span], slack_s: float) -> Iterator[str]:
    latest_s = inf if step.latest_start_s is None else step.latest_start_s
    late_s = span.start_s - latest_s
    if isinstance(step.work, Load) and late_s > slack_s:
        yield f"step {number} ({step.work}) begins {late_s * 1e3:.3f} ms after its latest start."
    for j in step.prefer:
        early_s = min(latest_s, spans[j].end_s) - span.start_s
        if spans[j].state is SpanState.RAN and early_s > slack_s:
            yield f"step {number} ({step.work}) waits {early_s * 1e3:.3f} ms less for step {j} than it may."
