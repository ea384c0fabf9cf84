"""Join all members' reports to the spans of one program, to compare with the prediction."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

from pliant.cluster.control.messages import StepSpan
from pliant.cluster.member.ready_plan import ReadyPlan
from pliant.cluster.member.run_executor import SegmentTask
from pliant.ir.cost import Span, SpanState
from pliant.ir.program import Exchange, Program, Step


def join_programs(tasks: Sequence[SegmentTask], plans: Sequence[ReadyPlan]) -> Program:
    """Return the program that ran: the segments of all turns, each by its plan."""
    tensors = {tensor.name: tensor for plan in plans for tensor in plan.program.tensors}
    return Program(tuple(task.segment for task in tasks), tuple(tensors.values()), ())


def join_spans(
    tasks: Sequence[SegmentTask], said: Mapping[str, Sequence[StepSpan]], start_s: float
) -> tuple[Span, ...]:
    """The spans of all steps of `tasks`, from `start_s` on, by what each member `said` on one clock."""
    known = {(ran.epoch, ran.segment, ran.step, name): ran for name, spans in said.items() for ran in spans}
    arrived_s: dict[str, float] = {}
    found: list[Span] = []
    for task in tasks:
        for i, step in enumerate(task.segment.steps):
            first, last = (known.get((task.epoch, task.number, i, name)) for name in _ends(step))
            if first is None or last is None:
                found.append(Span(len(found), step.lane, 0.0, 0.0, SpanState.SKIPPED))
                continue
            began_s = max(first.start_s - start_s, arrived_s.get(step.lane, 0.0))
            ended_s = max(began_s, last.end_s - start_s)
            if isinstance(step.work, Exchange):  # messages of a pair travel one after another
                arrived_s[step.lane] = ended_s
            found.append(Span(len(found), step.lane, began_s, ended_s))
    return tuple(found)


def segment_ends(program: Program, spans: Sequence[Span]) -> list[float]:
    """Return when each segment ended (input, layers, head), in seconds from the start of the run."""
    rest = iter(spans)
    ends = (max((next(rest).end_s for _ in segment.steps), default=0.0) for segment in program.segments)
    return list(accumulate(ends, max))


def _ends(step: Step) -> tuple[str, str]:
    """Return the members that report a step's start and its end."""
    if isinstance(step.work, Exchange):
        return step.work.src, step.work.dst
    device = step.lane.partition("/")[0]
    return device, device
