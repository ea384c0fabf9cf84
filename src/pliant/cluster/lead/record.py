"""Join the spans of all members into one measured program, to compare with the prediction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from pliant.cluster.control.messages import Ran
from pliant.cluster.lead.lead_run import RunRecord
from pliant.ir.cost import Span, SpanState
from pliant.ir.program import Exchange, Program, Segment


@dataclass(frozen=True, slots=True)
class Record:
    """The segments that were committed, and when each step ran, in seconds from the start of the run.

    An exchange lasts from when it was handed over until it was received; a step whose member did not say
    when it ran, because it failed or its report came too late, counts as skipped.
    """

    program: Program
    spans: tuple[Span, ...]


def record(led: RunRecord) -> Record:
    """One program of all turns of a run, and its measured spans."""
    program = Program(tuple(Segment(turn.segment.steps) for turn in led.turns), (), ())
    said: dict[tuple[int, int, int, str], Ran] = {}
    for device, spans in led.spans.items():
        for ran in spans:
            said[ran.epoch, ran.segment, ran.step, device] = ran
    found: list[Span] = []
    for turn in led.turns:
        for i, step in enumerate(turn.segment.steps):
            at = turn.epoch, turn.number, i
            if isinstance(step.work, Exchange):
                first, last = said.get((*at, step.work.src)), said.get((*at, step.work.dst))
            else:
                first = last = _whose(said, at, step.lane)
            found.append(_span(len(found), step.lane, first, last, led.start_s))
    return Record(program, tuple(found))


def segment_ends(program: Program, spans: Sequence[Span]) -> list[float]:
    """When each segment ended (input, layers, head), in seconds from the start of the run."""
    rest = iter(spans)
    ends = (max((next(rest).end_s for _ in segment.steps), default=0.0) for segment in program.segments)
    return list(accumulate(ends, max))


def _whose(said: Mapping[tuple[int, int, int, str], Ran], at: tuple[int, int, int], lane: str) -> Ran | None:
    return said.get((*at, lane.partition("/")[0]))


def _span(number: int, lane: str, first: Ran | None, last: Ran | None, origin_s: float) -> Span:
    if first is None or last is None:
        return Span(number, lane, 0.0, 0.0, SpanState.SKIPPED)
    start_s = first.start_s - origin_s
    return Span(number, lane, start_s, max(start_s, last.end_s - origin_s))
