"""The cost model of all planners: what steps cost and when they run."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol, assert_never, runtime_checkable

from pliant.errors import ProfileError
from pliant.ir.device import DeviceProfile as DeviceProfile
from pliant.ir.dilation import Dilation
from pliant.ir.link import Link
from pliant.ir.program import Compute, Exchange, Extents, Load, Program, Segment, Step, Work, bind
from pliant.ir.projection import add_overheads, n_devices
from pliant.ir.times.timing import Percentile

TOKENISE, EMBED, HEAD = Compute("tokenise"), Compute("embed"), Compute("head")
"""A run's computation outside its layers, as `Cost` prices it."""


class SpanState(Enum):
    """The outcome of a step: it ran, was skipped as late, or was cut off by the end of the run."""

    RAN = "ran"
    SKIPPED = "skipped"
    CUT = "cut"


@dataclass(frozen=True, slots=True)
class Span:
    """The time of one step, in seconds from the start of the run; predicted or measured."""

    step: int
    lane: str
    start_s: float
    end_s: float
    state: SpanState = SpanState.RAN

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@runtime_checkable
class Cost(Protocol):
    """Measured costs of work: the only interface of planners and `simulate` to devices."""

    def seconds(self, work: Work, busy: Collection[str] = ()) -> float:
        """Return the seconds of `work` (with bound extents) while the lanes `busy` are continuously active.

        At least the seconds without busy lanes. Raises ProfileError for work that was not measured.
        """

    def link(self, lane: str, busy: Collection[str] = ()) -> Link:
        """Return the link of `lane` meanwhile: of reads (`io`), or of exchanges (`net:src->dst`)."""

    def message_overhead(self, work: Exchange) -> tuple[float, float]:
        """The thread time of a message in seconds: the sender's, before it travels, and the receiver's."""


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One layer at `width` slices: alone, and during IO."""

    width: int
    alone_s: float
    busy_s: float

    def __post_init__(self) -> None:
        if not 0 < self.alone_s <= self.busy_s:
            raise ProfileError(f"a layer needs 0 < alone <= busy, not {self.alone_s} and {self.busy_s} s.")


@dataclass(frozen=True, slots=True)
class CostTable:
    """Costs of one model on one device at one input length, as plain numbers; a `Cost`.

    `tokenise_s` is spent before the program starts, and priced as separate work (`TOKENISE`); `io_slowdown`
    multiplies reads during compute.
    """

    layers: tuple[LayerCost, ...]
    disk: Link
    tokenise_s: float = 0.0
    embed_s: float = 0.0
    head_s: float = 0.0
    io_slowdown: float = 1.0

    def __post_init__(self) -> None:
        if not self.layers or self.io_slowdown < 1:
            raise ProfileError(f"a cost table needs a layer and an IO slowdown of at least 1: {self}.")

    def _layer(self, width: int) -> LayerCost:
        for row in self.layers:
            if row.width == width:
                return row
        raise ProfileError(f"width {width} was not profiled, only {[r.width for r in self.layers]}.")

    def seconds(self, work: Work, busy: Collection[str] = ()) -> float:
        match work:
            case Compute(kernel="tokenise"):
                return self.tokenise_s
            case Compute(kernel="embed"):
                return self.embed_s
            case Compute(kernel="head"):
                return self.head_s
            case Compute(kernel="layer", width=int(width)):
                row = self._layer(width)
                return row.busy_s if "io" in busy else row.alone_s
            case Load(n_bytes=n_bytes, n_reads=n_reads):
                return self.link("io", busy).seconds(n_bytes, n_reads)
            case Compute() | Exchange():
                raise ProfileError(f"this device was not measured for '{work}'.")
            case _:
                assert_never(work)

    def link(self, lane: str, busy: Collection[str] = ()) -> Link:
        if lane != "io":
            raise ProfileError(f"this device was measured to read on lane io, not to move bytes on {lane!r}.")
        return self.disk.times(self.io_slowdown) if "cpu" in busy else self.disk

    def message_overhead(self, work: Exchange) -> tuple[float, float]:
        return 0.0, 0.0


def dilate(table: CostTable, dilation: Dilation) -> CostTable:
    """Return `table` with all costs multiplied by `dilation`."""
    factors = [dilation.factor(Compute("layer", width=row.width)) for row in table.layers]
    return replace(
        table,
        layers=tuple(
            LayerCost(row.width, row.alone_s * factor, row.busy_s * factor)
            for row, factor in zip(table.layers, factors, strict=True)
        ),
        disk=table.disk.times(dilation.io),
        tokenise_s=table.tokenise_s * dilation.compute,
        embed_s=table.embed_s * dilation.compute,
        head_s=table.head_s * dilation.compute,
    )


def cost_table(profile: DeviceProfile, length: int, percentile: Percentile) -> CostTable:
    """The costs of a run of `length` tokens; raises ProfileError beyond the longest measured length."""
    layers = []
    for width in profile.widths:
        row = profile.layer_time(length, width)
        alone_s = row.alone.at(percentile)
        layers.append(LayerCost(width, alone_s, max(alone_s, row.with_io.at(percentile))))
    over = profile.overhead(length)
    measured = CostTable(
        layers=tuple(layers),
        disk=profile.disk if percentile == "median" else profile.disk_p95,
        tokenise_s=over.tokenise.at(percentile),
        embed_s=over.embed.at(percentile),
        head_s=over.head.at(percentile),
        io_slowdown=max(1.0, profile.io_slowdown),
    )
    return dilate(measured, profile.dilation)


def simulate(program: Program, cost: Cost, extents: Extents = {}) -> tuple[Span, ...]:  # noqa: B006 - never written
    """Return when each step runs, one span per step in the program's order.

    Lanes run concurrently, each its steps in order; a step's speed changes whenever the set of busy lanes
    does. A step waits for preferred work until its latest start. As in `execute`, a load is skipped if its
    turn comes after its latest start, or if all steps that want it have started without it; it is cut off
    when the segment has nothing else left to do. With several devices, each device's thread also sends and
    receives its messages.
    """
    bound = program if not program.extents else bind(program, extents)
    if n_devices(bound.segments) > 1:
        return _simulate_devices(bound.segments, cost)
    spans: list[Span] = []
    start_s = 0.0
    for segment in bound.segments:
        spans += _simulate_segment(segment, [None] * len(segment.steps), cost, len(spans), start_s)
        start_s = max((s.end_s for s in spans), default=0.0)
    return tuple(spans)


def _simulate_devices(segments: Sequence[Segment], cost: Cost) -> tuple[Span, ...]:
    """Make an exchange last from its hand-over, or the previous arrival on its lane, until its arrival."""
    expanded = add_overheads(segments, cost.message_overhead)
    steps = expanded.segment.steps
    found: dict[int, Span] = {}
    begun_s: dict[int, float] = {}
    arrived_s: dict[str, float] = {}
    made = _simulate_segment(expanded.segment, expanded.seconds, cost, 0, 0.0)
    for span, step, number, taken_s in zip(made, steps, expanded.numbers, expanded.seconds, strict=True):
        if taken_s is not None:
            begun_s.setdefault(number, span.start_s)
            continue
        start_s = span.start_s
        if number in begun_s:
            start_s = max(begun_s[number], arrived_s.get(step.lane, 0.0))
        arrived_s[step.lane] = span.end_s
        found[number] = replace(span, step=number, start_s=start_s)
    return tuple(found[number] for number in range(len(found)))


def latency(spans: Collection[Span]) -> float:
    """Return the seconds from the start of the run to the end of its last step."""
    return max((s.end_s for s in spans), default=0.0)


def _simulate_segment(
    segment: Segment, seconds: Sequence[float | None], cost: Cost, first: int, now: float
) -> list[Span]:
    """`seconds` are those of steps that `cost` does not price."""
    steps = segment.steps
    queues: dict[str, deque[int]] = {}
    missing = [len(step.after) for step in steps]
    n_preferred = [len(step.prefer) for step in steps]
    for i, step in enumerate(steps):
        queues.setdefault(step.lane, deque()).append(i)
    unblocks, preferred_by = _consumers(segment)
    alone_s = [cost.seconds(step.work) for step in steps]
    left = [s if other_s is None else other_s for s, other_s in zip(alone_s, seconds, strict=True)]
    started_s = [0.0] * len(steps)
    is_started = [False] * len(steps)
    states = [SpanState.RAN] * len(steps)
    ended_s = [0.0] * len(steps)
    running: dict[str, int] = {}
    is_optional = [_is_optional(step, unblocks[i] + preferred_by[i]) for i, step in enumerate(steps)]
    n_required = is_optional.count(False)
    while queues or running:
        if not n_required and all(
            _is_late(unblocks[i] + preferred_by[i], is_started) for i in running.values()
        ):
            break
        wake_s = float("inf")
        for lane in [lane for lane in queues if lane not in running]:
            i = queues[lane][0]
            if missing[i]:
                continue
            latest_s = steps[i].latest_start_s
            if n_preferred[i] and (latest_s is None or latest_s > now):
                wake_s = wake_s if latest_s is None else min(wake_s, latest_s)
                continue
            running[lane] = queues[lane].popleft()
            started_s[i] = now
            is_started[i] = True
            if not queues[lane]:
                del queues[lane]
            if isinstance(steps[i].work, Load) and (
                (latest_s is not None and now > latest_s + 1e-9)
                or _is_late(unblocks[i] + preferred_by[i], is_started)
            ):
                left[i] = 0.0
                states[i] = SpanState.SKIPPED
        # The lowest unfinished step waits only for finished ones, so a lane is running or a wake-up is due.
        slow = _slowdowns(running, steps, alone_s, cost)
        then_s = min(wake_s, *[now + left[i] * slow[lane] for lane, i in running.items()])
        for lane, i in list(running.items()):
            end_s = now + left[i] * slow[lane]
            if end_s > then_s:
                left[i] -= (then_s - now) / slow[lane]
                continue
            ended_s[i] = then_s
            n_required -= not is_optional[i]
            del running[lane]
            for j in unblocks[i]:
                missing[j] -= 1
            for j in preferred_by[i]:
                n_preferred[j] -= 1
        now = then_s
    for i in running.values():
        ended_s[i] = now
        states[i] = SpanState.CUT
    for i in [i for queue in queues.values() for i in queue]:
        started_s[i] = ended_s[i] = now
        states[i] = SpanState.SKIPPED
    return [Span(first + i, step.lane, started_s[i], ended_s[i], states[i]) for i, step in enumerate(steps)]


def _is_optional(step: Step, consumers: list[int]) -> bool:
    """Return True for a load that a step waits for: without waiting steps, its end is irrelevant."""
    return bool(consumers) and isinstance(step.work, Load)


def _is_late(consumers: list[int], is_started: list[bool]) -> bool:
    return bool(consumers) and all(is_started[j] for j in consumers)


def _consumers(segment: Segment) -> tuple[list[list[int]], list[list[int]]]:
    """Return, for each step, the steps that need it and those that only prefer it."""
    unblocks: list[list[int]] = [[] for _ in segment.steps]
    preferred_by: list[list[int]] = [[] for _ in segment.steps]
    for i, step in enumerate(segment.steps):
        for j in step.after:
            unblocks[j].append(i)
        for j in step.prefer:
            preferred_by[j].append(i)
    return unblocks, preferred_by


def _slowdowns(
    running: Mapping[str, int], steps: Sequence[Step], alone_s: Sequence[float], cost: Cost
) -> dict[str, float]:
    """Return how many times longer than alone the step on each lane takes beside the others."""
    if len(running) < 2:
        return dict.fromkeys(running, 1.0)
    busy = set(running)
    return {
        lane: cost.seconds(steps[i].work, busy - {lane}) / alone_s[i] if alone_s[i] else 1.0
        for lane, i in running.items()
    }
