"""Judge whether spans are a schedule of a program: its steps in its order, each after what it waits for."""

from collections.abc import Iterator, Sequence

from pliant.ir.cost import Span, SpanState
from pliant.ir.program import Program
from pliant.ir.projection import joined


def violations(program: Program, spans: Sequence[Span], slack_s: float = 1e-9) -> Iterator[str]:
    """What `spans`, predicted or measured, do that `program` does not allow; nothing for a schedule of it.

    A schedule has one span a step, on the step's lane. A lane's steps come one after another, in their order,
    and none before what it waits for has ended, at barriers too. Steps that did not run to their end, or are
    not known to have run, are not judged, and nobody had to wait for them. `slack_s` is how far the clocks of
    two devices may be apart.
    """
    steps = joined(program.segments).steps
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
        before[step.lane] = i
