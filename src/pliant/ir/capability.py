"""The capabilities of devices and of the links between them, as numbers."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import assert_never

from pliant.errors import ProfileError
from pliant.ir.curve import Curve
from pliant.ir.dilation import Dilation
from pliant.ir.link import Link
from pliant.ir.program import Compute, Exchange, Load, Work, value

_BRIEF_S = 1e-3
"""The time at the second point of the line of eq. 5."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Measured times of one kind of stage (a kernel's name): (FLOPs, seconds), as members report them."""

    kind: str
    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if not all(flops > 0 and seconds > 0 for flops, seconds in Curve(self.points).points):
            raise ProfileError(f"times of {self.kind!r} must be above 0: {self.points}; measure again.")


@dataclass(frozen=True, slots=True)
class Drift:
    """The recently observed slow-down of a kind of stage relative to its measurement."""

    kind: str
    factor: float


@dataclass(frozen=True, slots=True)
class MessageOverhead:
    """The compute thread's time to send or receive a message: a linear function of its bytes."""

    message_s: float = 0.0
    byte_s: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.message_s < float("inf") and 0 <= self.byte_s < float("inf")):
            raise ProfileError(f"a message cannot take {self.message_s} s and {self.byte_s} s a byte.")

    def seconds(self, n_bytes: int) -> float:
        """Return the seconds of one message of `n_bytes`."""
        return self.message_s + n_bytes * self.byte_s


@dataclass(frozen=True, slots=True)
class Capability:
    """The speed and memory of one device (Hepti, Table 1a).

    `cycles_per_flop` is rho, `frequency_Hz` f (calibrated if the machine reports none, so that rho / f is the
    time of a FLOP), `free_bytes` s: memory free for the model. `call_s` is the minimum cost of every stage.
    `curves` are measured times; a kind without one takes call_s + rho * FLOPs / f (eq. 5). For an emulated
    device, all of that is multiplied by `dilation`. `send` and `take` are the compute thread's cost of
    messages; they are not dilated, like exchanges in a run.
    """

    cycles_per_flop: float
    frequency_Hz: float
    free_bytes: int
    call_s: float = 0.0
    curves: tuple[StageTimes, ...] = ()
    drifts: tuple[Drift, ...] = ()
    dilation: Dilation = Dilation()  # noqa: RUF009 - frozen
    send: MessageOverhead = MessageOverhead()
    take: MessageOverhead = MessageOverhead()

    def __post_init__(self) -> None:
        for name in ("cycles_per_flop", "frequency_Hz"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ProfileError(f"{name} is {getattr(self, name)}, but must be above 0; measure again.")
        if self.free_bytes < 0 or not 0 <= self.call_s < float("inf"):
            raise ProfileError(f"{self.free_bytes} bytes free and {self.call_s} s a call cannot be.")

    def seconds(self, kind: str, flops: float) -> float:
        """Return the time of one stage of `kind` with `flops` operations; 0 for no operations."""
        return self.curve(kind).at(flops) if flops > 0 else 0.0

    def drift(self, kind: str) -> float:
        """Return the drift of a kind; 1 if none was observed."""
        return next((d.factor for d in self.drifts if d.kind == kind), 1.0)

    def curve(self, kind: str) -> Curve:
        """Return the seconds by FLOPs on this device, with its dilation and drift.

        As measured, and below the first point towards `call_s`; without a measurement by eq. 5.
        """
        by_rate = ((_BRIEF_S * self.frequency_Hz / self.cycles_per_flop, self.call_s + _BRIEF_S),)
        points = next((c.points for c in self.curves if c.kind == kind), by_rate)
        return _from_call(self.call_s, points, self.dilation.compute * self.drift(kind))


@lru_cache(maxsize=1024)
def _from_call(call_s: float, points: tuple[tuple[float, float], ...], factor: float) -> Curve:
    first = (0.0, min(call_s, points[0][1]))
    return Curve(tuple((flops, factor * seconds) for flops, seconds in (first, *points)))


@dataclass(frozen=True, slots=True)
class Interface:
    """The total bandwidth at which one device can send and receive, over all peers."""

    egress_Bps: float
    ingress_Bps: float

    def __post_init__(self) -> None:
        if not (self.egress_Bps > 0 and self.ingress_Bps > 0):
            raise ProfileError(f"an interface passes more than 0 B/s, not {self}; measure again.")


@dataclass(frozen=True, slots=True)
class Links:
    """The network: each device's interface, and the links between devices.

    A pair (source, destination) that is missing in `pairs` has `latency_s` and the slower of the two
    interfaces. No pair is faster than its interfaces, so a network behind one switch needs no pairs at all.
    """

    interfaces: Mapping[str, Interface]
    latency_s: float = 0.0
    pairs: Mapping[tuple[str, str], Link] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.latency_s < float("inf"):
            raise ProfileError(f"a latency of {self.latency_s} s cannot be; measure again.")
        for src, dst in self.pairs:
            if src not in self.interfaces or dst not in self.interfaces:
                raise ProfileError(
                    f"link {src}->{dst} joins devices that are not in {sorted(self.interfaces)}."
                )

    def link(self, src: str, dst: str) -> Link:
        """Return a link without other traffic. Raises ProfileError for a device without an interface."""
        for device in (src, dst):
            if device not in self.interfaces:
                raise ProfileError(f"{device!r} is not on the network of {sorted(self.interfaces)}.")
        most_Bps = min(self.interfaces[src].egress_Bps, self.interfaces[dst].ingress_Bps)
        pair = self.pairs.get((src, dst))
        if pair is None:
            return Link(self.latency_s, most_Bps)
        return Link(pair.latency_s, min(pair.bandwidth_Bps, most_Bps))


@dataclass(frozen=True, slots=True)
class ClusterCost:
    """The cost of a cluster's program, for `simulate`; a `Cost`.

    `flops` returns the number of operations of a step. Concurrent exchanges that leave, or reach, a device
    share its interface evenly.
    """

    capabilities: Mapping[str, Capability]
    links: Links
    flops: Callable[[Compute], float]

    def seconds(self, work: Work, busy: Collection[str] = ()) -> float:
        match work:
            case Compute():
                return self._capability(work).seconds(work.kernel, self.flops(work))
            case Exchange():
                return self._link(work.src, work.dst, busy).seconds(value(work.n_bytes, {}))
            case Load():
                raise ProfileError(f"a cluster's program loads nothing while it runs: '{work}'.")
            case _:
                assert_never(work)

    def link(self, lane: str, busy: Collection[str] = ()) -> Link:
        src, arrow, dst = lane.removeprefix("net:").partition("->")
        if not arrow:
            raise ProfileError(f"lane {lane!r} joins no two devices: a cluster moves bytes on net:src->dst.")
        return self._link(src, dst, busy)

    def _link(self, src: str, dst: str, busy: Collection[str]) -> Link:
        alone = self.links.link(src, dst)
        if not busy:
            return alone
        n_out = 1 + sum(lane.startswith(f"net:{src}->") for lane in busy)
        n_in = 1 + sum(lane.startswith("net:") and lane.endswith(f"->{dst}") for lane in busy)
        shared_Bps = min(
            alone.bandwidth_Bps,
            self.links.interfaces[src].egress_Bps / n_out,
            self.links.interfaces[dst].ingress_Bps / n_in,
        )
        return Link(alone.latency_s, shared_Bps)

    def message_overhead(self, work: Exchange) -> tuple[float, float]:
        n_bytes = value(work.n_bytes, {})
        src, dst = (self.capabilities.get(name) for name in (work.src, work.dst))
        return (
            0.0 if src is None else src.send.seconds(n_bytes),
            0.0 if dst is None else dst.take.seconds(n_bytes),
        )

    def _capability(self, work: Compute) -> Capability:
        if work.device not in self.capabilities:
            raise ProfileError(
                f"'{work}' runs on {work.device!r}; measured are {sorted(self.capabilities)}. Profile it."
            )
        return self.capabilities[work.device]


@dataclass(frozen=True, slots=True)
class ObservedStage:
    """One observed stage of a run: `seconds` include the dilation."""

    kind: str
    flops: float
    seconds: float


def refresh_capability(capability: Capability, seen: Sequence[ObservedStage]) -> Capability:
    """Return `capability` updated from a run's observations (Hepti 4.1: no second profiling pass).

    Per kind of stage, the drift becomes measured over predicted seconds; a kind that was not observed keeps
    its drift.
    """
    drifts = {d.kind: d.factor for d in capability.drifts}
    for kind in dict.fromkeys(s.kind for s in seen):
        mine = [s for s in seen if s.kind == kind]
        predicted_s = sum(capability.seconds(kind, s.flops) for s in mine)
        if predicted_s > 0:
            drifts[kind] = capability.drift(kind) * (sum(s.seconds for s in mine) / predicted_s)
    return replace(capability, drifts=tuple(Drift(kind, f) for kind, f in drifts.items()))


def refresh_links(links: Links, ratios: Mapping[tuple[str, str], float]) -> Links:
    """Return `links` updated from a run; `ratios` are measured over predicted seconds per pair.

    For a pair known to be slower than both interfaces, only the pair changes. For other slower pairs, the
    common factor of a sender's exchanges is attributed to its egress, the remaining common factor of a
    receiver's to its ingress, and the rest to the pair. A faster pair raises only the limit that applied to
    it: other limits would grow without end.
    """
    slower = dict(ratios)
    pairs = dict(links.pairs)
    for src, dst in [pair for pair in slower if _is_slow(links, *pair)]:
        known = links.pairs[src, dst]
        pairs[src, dst] = Link(known.latency_s, known.bandwidth_Bps / slower.pop((src, dst)))
    quicker = {ends: links.link(*ends).bandwidth_Bps / f for ends, f in slower.items() if f < 1}
    slower = {ends: max(f, 1.0) for ends, f in slower.items()}
    out = {src: min(f for (s, _), f in slower.items() if s == src) for src, _ in slower}
    rest = {(src, dst): f / out[src] for (src, dst), f in slower.items()}
    into = {dst: min(f for (_, d), f in rest.items() if d == dst) for _, dst in rest}
    sent_Bps, came_Bps = dict.fromkeys(links.interfaces, 0.0), dict.fromkeys(links.interfaces, 0.0)
    for (src, dst), n in quicker.items():
        sent_Bps[src], came_Bps[dst] = max(sent_Bps[src], n), max(came_Bps[dst], n)
        if (src, dst) in pairs:
            pairs[src, dst] = Link(pairs[src, dst].latency_s, max(pairs[src, dst].bandwidth_Bps, n))
    interfaces = {
        name: Interface(
            max(one.egress_Bps / out.get(name, 1.0), sent_Bps[name]),
            max(one.ingress_Bps / into.get(name, 1.0), came_Bps[name]),
        )
        for name, one in links.interfaces.items()
    }
    moved = Links(interfaces, links.latency_s, pairs)
    for (src, dst), f in rest.items():
        if f > into[dst] * (1 + 1e-9):
            alone = moved.link(src, dst)
            pairs[src, dst] = Link(alone.latency_s, alone.bandwidth_Bps * into[dst] / f)
    return Links(interfaces, links.latency_s, pairs)


def _is_slow(links: Links, src: str, dst: str) -> bool:
    pair = links.pairs.get((src, dst))
    most_Bps = min(links.interfaces[src].egress_Bps, links.interfaces[dst].ingress_Bps)
    return pair is not None and pair.bandwidth_Bps < most_Bps
