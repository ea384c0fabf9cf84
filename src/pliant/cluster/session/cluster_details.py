"""Reply details specific to a cluster: shares, faults, and predicted beside measured times."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from pliant.cluster.lead.adaptive_planner import AdaptivePlanner
from pliant.cluster.lead.join_spans import segment_ends
from pliant.cluster.lead.lead_run import RunRecord
from pliant.cluster.lead.margin import Margins
from pliant.cluster.lead.plan_inputs import Switch
from pliant.cluster.lead.predict import Prediction
from pliant.cluster.lead.run_log import Fault
from pliant.ir.capability import Links
from pliant.ir.cost import Span, SpanState, latency, simulate
from pliant.ir.partition import Mode, Partition
from pliant.ir.program import Exchange, Program, value


@dataclass(frozen=True, slots=True)
class ClusterDetails:
    """The details of one answer's run, and its prediction.

    `run_s` is the run alone, from the start of its first step: it excludes reading the input, measuring
    devices and loading weights for a new plan. `predicted_s` is its prediction; texts that ran together are
    priced as one text of all their rows. `mode` is that of the last
    segment, `partitions` are those of all segments (input, layers, head), `switches` the changes of plan
    inside the run, and `faults` the segments that were repeated. `spans` and `predicted_spans` have one
    entry per step of `program`; `sent_bytes` counts exchanges. `links` are the network's links as used by
    the last plan. `n_together` inputs ran together, and all else is that of their run.
    """

    run_s: float
    predicted_s: float
    mode: Mode
    partitions: tuple[Partition, ...]
    faults: tuple[Fault, ...]
    switches: tuple[Switch, ...]
    sent_bytes: int
    program: Program
    spans: tuple[Span, ...]
    predicted_spans: tuple[Span, ...]
    links: Links
    n_together: int


def details_of(led: RunRecord, planner: AdaptivePlanner, margins: Margins) -> ClusterDetails:
    """Return a finished run's details; `margins` learn from runs of one plan without faults.

    If a kind of plan must save more from now on, `planner` searches anew for its plans of that kind.
    """
    solved = [planner.inputs_of(held).solved for held in led.plans]
    predicted = _predicted(led.program, solved)
    is_single = len(led.answers) == 1  # texts together take less time than one of as many rows
    is_whole = is_single and all(span.state is SpanState.RAN for span in led.spans)
    if is_whole and not led.faults and len({held.number for held in led.plans}) == 1:
        predicted_s, layers_s = (_layers_s(led.program, one) for one in (predicted, led.spans))
        raised = margins.observe(led.plans[0].partition, predicted_s, layers_s)
        if raised is not None:
            planner.doubt(raised)
    exchanges = [step.work for step in led.program.steps if isinstance(step.work, Exchange)]
    return ClusterDetails(
        run_s=led.seconds,
        predicted_s=latency(predicted),
        mode=led.plans[-1].partition.mode,
        partitions=tuple(held.partition for held in led.plans),
        faults=led.faults,
        switches=tuple(planner.switches),
        sent_bytes=sum(value(work.n_bytes, {}) for work in exchanges),
        program=led.program,
        spans=led.spans,
        predicted_spans=predicted,
        links=solved[-1].topology.links,
        n_together=len(led.answers),
    )


def _predicted(program: Program, planned: Sequence[Prediction]) -> tuple[Span, ...]:
    """Return the predicted spans, each segment by the plan that it ran by."""
    if all(one is planned[0] for one in planned) and program.segments == planned[0].program.segments:
        return planned[0].spans  # the same object for repeated answers
    spans: list[Span] = []
    start_s = 0.0
    ran = zip(program.segments, planned, strict=True)
    for _, some in groupby(ran, key=lambda one: id(one[1])):
        segments, (solved, *_) = zip(*some, strict=True)
        for span in simulate(replace(program, segments=segments), solved.cost):
            moved = replace(span, step=len(spans), start_s=start_s + span.start_s, end_s=start_s + span.end_s)
            spans.append(moved)
        start_s = max((span.end_s for span in spans), default=0.0)
    return tuple(spans)


def _layers_s(program: Program, spans: Sequence[Span]) -> float:
    """Return the seconds from the end of the input's segment to the end of the last layer."""
    ends = segment_ends(program, spans)
    return ends[-2] - ends[0]
