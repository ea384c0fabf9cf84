"""The timeline of a run whose primary has no share: its receives overlap with the next layer.

Before each layer the primary must hold x, to repeat the layer from; a primary that computes nothing of it
takes x in while the others are at the next layer. Only the answer waits for all of it.
"""

from dataclasses import replace

from pliant.ir.program import Compute, Exchange, Program, Segment, Step, Work

Numbers = tuple[int, ...]


def ahead(program: Program, primary: str) -> Program:
    """The same steps in the same order, to be simulated: as one segment where `primary` has no share.

    Otherwise `program` itself: its stages wait for x, and all others for them.
    """
    if any(_is_stage(step.work, primary) for step in program.steps):
        return program
    made: list[Step] = []
    barrier: Numbers = ()
    whole: Numbers = ()
    for segment in program.segments:
        first = len(made)
        for step in segment.steps:
            waits = whole if _is_from(step.work, primary) else barrier
            made.append(replace(step, after=tuple(first + i for i in step.after) or waits))
        barrier = tuple(first + i for i in _last(segment, primary)) or barrier
        whole = tuple(range(first, len(made))) or whole
    return replace(program, segments=(Segment(tuple(made)),))


def _is_stage(work: Work, device: str) -> bool:
    return isinstance(work, Compute) and work.device == device and work.layer is not None


def _is_from(work: Work, device: str) -> bool:
    """Of the primary: its input, its answer, x as it sends it."""
    match work:
        case Compute():
            return work.device == device
        case Exchange():
            return work.src == device
    return False


def _last(segment: Segment, primary: str) -> Numbers:
    """The steps that no other waits for, but what the primary is sent."""
    back = {i for i, s in enumerate(segment.steps) if isinstance(s.work, Exchange) and s.work.dst == primary}
    waited = {j for i, s in enumerate(segment.steps) if i not in back for j in s.after}
    return tuple(i for i in range(len(segment.steps)) if i not in back and i not in waited)
