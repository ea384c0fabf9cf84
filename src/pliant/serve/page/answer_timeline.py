"""The timeline of one answer for the page: predicted and measured spans, bits of shards, and the choice."""

from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any, Protocol, assert_never, runtime_checkable

import msgspec

from pliant.ir.capability import Links
from pliant.ir.cost import Span, SpanState
from pliant.ir.partition import Partition
from pliant.ir.program import Compute, Exchange, Load, Program, Work
from pliant.run.submodel.elastic_details import ElasticDetails
from pliant.serve.page.answer_feed import AnswerEvent, AnswerRecord, CandidateEstimate

_MOST_SPANS = 2000
"""Maximum number of spans of each side; more would be unreadable."""


@runtime_checkable
class TimedDetails(Protocol):
    """Details of an answer with the time at which each step of `program` ran."""

    @property
    def program(self) -> Program: ...

    @property
    def spans(self) -> tuple[Span, ...]: ...


@runtime_checkable
class PredictedDetails(TimedDetails, Protocol):
    """Details that also have the predicted times."""

    @property
    def predicted_s(self) -> float: ...

    @property
    def predicted_spans(self) -> tuple[Span, ...]: ...


@runtime_checkable
class PartitionedDetails(Protocol):
    """Details of a cluster's answer: the partitions of its segments, and the faults during the run."""

    @property
    def partitions(self) -> tuple[Partition, ...]: ...

    @property
    def faults(self) -> Sequence[object]: ...

    @property
    def links(self) -> Links: ...


class Bar(msgspec.Struct, frozen=True, omit_defaults=True):
    """Work on a lane, in seconds since the arrival of the request.

    `kind` is wait, way, compute, load or exchange.
    """

    lane: str
    label: str
    kind: str
    start_s: float
    end_s: float
    layer: int | None = None
    n_bytes: int | None = None
    state: str = "ran"


class ShardBits(msgspec.Struct, frozen=True):
    """Bits of shards by layer and slice; `planned` are the plan's bits, if known."""

    ran: tuple[tuple[int, ...], ...]
    planned: tuple[tuple[int, ...], ...] | None = None


class DeviceShare(msgspec.Struct, frozen=True):
    """The share of a cluster device."""

    device: str
    heads: int
    rows: int
    columns: int


class LinkDirection(msgspec.Struct, frozen=True):
    """One direction of a link between two devices of a cluster."""

    src: str
    dst: str
    latency_s: float
    bandwidth_Bps: float


class ClusterSplit(msgspec.Struct, frozen=True):
    """The partition of an answer among cluster devices, and the links that its plan assumed."""

    mode: str
    primary: str
    tokens: int
    shares: tuple[DeviceShare, ...]
    bits: tuple[int, ...] = ()
    ways: tuple[LinkDirection, ...] = ()


class AnswerTimeline(msgspec.Struct, frozen=True):
    """Everything that the page shows of one answer."""

    event: AnswerEvent
    reason: str | None
    error: str | None
    candidates: tuple[CandidateEstimate, ...]
    lanes: tuple[str, ...]
    predicted: tuple[Bar, ...]
    measured: tuple[Bar, ...]
    shards: ShardBits | None
    split: ClusterSplit | None
    n_faults: int
    text: str | None


def build_timeline(record: AnswerRecord) -> AnswerTimeline:
    """Build the timeline of a record."""
    event, route = record.event, record.route
    predicted, measured = tuple(_predicted(record)), tuple(_measured(record))
    return AnswerTimeline(
        event,
        None if route is None else route.reason,
        record.error,
        () if route is None else route.candidates,
        tuple(dict.fromkeys(bar.lane for bar in (*measured, *predicted))),
        predicted,
        measured,
        shards_of(record.details),
        split_of(record.details),
        len(record.details.faults) if isinstance(record.details, PartitionedDetails) else 0,
        record.text,
    )


def shards_of(details: Any) -> ShardBits | None:
    """The bits that an elastic answer ran with; None for other answers."""
    return ShardBits(details.bits, details.planned_bits) if isinstance(details, ElasticDetails) else None


def split_of(details: Any) -> ClusterSplit | None:
    """The partition of the last layers of a cluster's answer; None for other answers."""
    if not isinstance(details, PartitionedDetails):
        return None
    partition, links = details.partitions[-1], details.links
    shares = tuple(DeviceShare(s.device, s.heads, s.rows, s.columns) for s in partition.shares)
    known = [name for name in partition.devices if name in links.interfaces]
    ways = tuple(
        LinkDirection(src, dst, link.latency_s, link.bandwidth_Bps)
        for src, dst in permutations(known, 2)
        for link in [links.link(src, dst)]
    )
    bits = partition.bits
    return ClusterSplit(partition.mode, partition.primary, partition.tokens, shares, bits, ways)


def _predicted(record: AnswerRecord) -> Iterator[Bar]:
    """The predicted bars: waiting or network time, then the work, by steps if predicted."""
    route, event, details = record.route, record.event, record.details
    start_s = 0.0
    if route is not None:
        start_s = max(route.candidates[0].seconds - route.work_s, 0.0)
        yield from _waiting_bar(event, start_s)
        if not isinstance(details, PredictedDetails):
            yield Bar(_lane(event), "answer", "compute", start_s, start_s + route.work_s)
    if isinstance(details, PredictedDetails):
        start_s += max(details.predicted_s - _end_s(details.predicted_spans), 0.0)
        yield from _bars(details.program, details.predicted_spans, start_s)


def _measured(record: AnswerRecord) -> Iterator[Bar]:
    event, details = record.event, record.details
    yield from _waiting_bar(event, event.waited_s)
    if event.outcome != "ok":
        return
    if isinstance(details, TimedDetails):
        # The remaining time is before the first step: reading the input.
        start_s = max(event.seconds - _end_s(details.spans), event.waited_s)
        if start_s > event.waited_s:
            yield Bar(_lane(event), "read the input", "compute", event.waited_s, start_s)
        yield from _bars(details.program, details.spans, start_s)
    else:
        label = "way and answer" if _is_away(event) else "answer"
        yield Bar(_lane(event), label, "compute", event.waited_s, event.seconds)


def _waiting_bar(event: AnswerEvent, seconds: float) -> Iterator[Bar]:
    """The time before work begins: in the local queue, or on the network to and from another node."""
    if seconds > 0.0:
        yield Bar("queue", "way and queue" if _is_away(event) else "queue", "wait", 0.0, seconds)


def _is_away(event: AnswerEvent) -> bool:
    return event.target.startswith(("http:", "https:"))


def _lane(event: AnswerEvent) -> str:
    return "cpu" if event.target == "local" else event.target


def _end_s(spans: Sequence[Span]) -> float:
    return max((span.end_s for span in spans), default=0.0)


def _bars(program: Program, spans: Sequence[Span], start_s: float) -> Iterator[Bar]:
    steps = program.steps
    for span in spans[:_MOST_SPANS]:
        if span.state is SpanState.SKIPPED or span.step >= len(steps):
            continue
        kind, label, layer, n_bytes = _describe_work(steps[span.step].work)
        yield Bar(
            span.lane,
            label,
            kind,
            start_s + span.start_s,
            start_s + span.end_s,
            layer,
            n_bytes,
            span.state.value,
        )


def _describe_work(work: Work) -> tuple[str, str, int | None, int | None]:
    """Kind, label, layer and bytes of a step's work."""
    match work:
        case Compute(kernel=kernel, layer=layer):
            return "compute", kernel if layer is None else f"{kernel} {layer}", layer, None
        case Load(layer=layer, n_bytes=n_bytes):
            return "load", f"load of layer {layer}", layer, n_bytes
        case Exchange(n_bytes=n_bytes):
            return "exchange", str(work), None, n_bytes if isinstance(n_bytes, int) else None
        case _:
            assert_never(work)
