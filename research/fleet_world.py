"""Fleets of nodes in a tree: the file format, and the fleet that a seed draws.

A fleet is a TOML file in bench/worlds: tiers of machines, the bottom tier first, with the whole model's time
on each; links to the tiers above, levels of the model, and requests that arrive at the bottom tier. A node
may send only to its ancestors. All times are seconds of the (virtual) clock.
"""

import tomllib
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf, log1p, sqrt
from pathlib import Path

import msgspec
import numpy as np

from pliant.arrays import Float64, Int64
from pliant.errors import InputError
from pliant.ir.link import Link
from pliant.route.choice.choose_endpoint import CLUSTER, LOCAL
from research.deadline_world import RequestKind, Steps, World

USUAL_WORDS = 24
_SHORT_PART = 0.55
"""The time of an empty input relative to one with `USUAL_WORDS` words; the time is linear in the words."""


class ElasticLevel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An accuracy of the model, and its time relative to the whole model's."""

    accuracy: float
    part: float

    def __post_init__(self) -> None:
        if not (0 <= self.accuracy <= 1 and 0 < self.part <= 1):
            raise ValueError(f"an accuracy of {self.accuracy} for a part of {self.part} is no level")


class AncestorLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The link to the ancestor in `tier`: its median over nodes, which vary log-normally by `spread`."""

    tier: str
    rtt_s: float
    bandwidth_Bps: float
    spread: float = 0.0

    def __post_init__(self) -> None:
        if not (self.rtt_s > 0 and self.bandwidth_Bps > 0 and self.spread >= 0):
            raise ValueError(f"no link has a round trip of {self.rtt_s} s and {self.bandwidth_Bps} B/s")


class SlowPeriods(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Each node of `tier` is `value` times slower (inf: gone) for `lasts_s`, about once every `every_s`.

    For requests, the subtrees of `tier` send `value` times as many.
    """

    tier: str
    every_s: float
    lasts_s: float
    value: float = inf

    def __post_init__(self) -> None:
        if not (0 < self.lasts_s < self.every_s and self.value >= 1.0):
            raise ValueError(f"spells of {self.lasts_s} s every {self.every_s} s cannot be")


class Tier(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`count` machines that take `whole_s` for the whole model, varying log-normally by `spread`."""

    name: str
    count: int
    whole_s: float
    spread: float = 0.0
    ups: tuple[AncestorLink, ...] = ()

    def __post_init__(self) -> None:
        if not (self.count >= 1 and self.whole_s > 0 and self.spread >= 0):
            raise ValueError(f"{self.count} machines that take {self.whole_s} s are no tier")


class FleetTraffic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Poisson arrivals, `rate` per second in total; the rates of single nodes vary log-normally by
    `spread`.
    """

    rate: float
    kinds: tuple[RequestKind, ...]
    spread: float = 0.0
    bursts: tuple[SlowPeriods, ...] = ()

    def __post_init__(self) -> None:
        if not self.rate > 0 or abs(sum(kind.share for kind in self.kinds) - 1.0) > 1e-9:
            raise ValueError("requests come at a rate above 0, of kinds whose shares add up to 1")


class FleetWorld(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fleet: see the module. Times of inputs vary by `spread`, those of ways by `jitter`, both
    log-normally.
    """

    about: str
    arithmetic: str
    levels: tuple[ElasticLevel, ...]
    tiers: tuple[Tier, ...]
    requests: FleetTraffic
    spells: tuple[SlowPeriods, ...] = ()
    spread: float = 0.0
    jitter: float = 0.0
    words: tuple[int, int] = (4, 48)

    def __post_init__(self) -> None:
        names = [tier.name for tier in self.tiers]
        if not names or len(set(names)) != len(names) or not self.levels:
            raise ValueError("a fleet has tiers, each of its own name, and a level of accuracy at least")
        if any(above.count > below.count for below, above in pairwise(self.tiers)):
            raise ValueError("a tier has no more machines than the one below")
        for i, tier in enumerate(self.tiers):
            if any(up.tier not in names[i + 1 :] for up in tier.ups):
                raise ValueError(f"links of {tier.name} lead to tiers above it")
        if any(one.tier not in names for one in (*self.spells, *self.requests.bursts)):
            raise ValueError("spells are of tiers that there are")


ALWAYS = Steps((0.0,), (1.0,))


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """An endpoint of a node: the whole model takes `whole_s` times `slower` (inf: gone) there."""

    name: str
    whole_s: float
    levels: tuple[ElasticLevel, ...]
    slower: Steps = ALWAYS


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node: its endpoints, `LOCAL` first, and its upstreams by index with the links to them."""

    name: str
    tier: int
    machines: tuple[MachineSpec, ...]
    ups: tuple[tuple[int, Link], ...] = ()


@dataclass(frozen=True, slots=True)
class FleetRequests:
    """Request i arrives at node `source[i]` at `at_s[i]`, has `words[i]` words and the kind `kinds[kind[i]]`.

    Its processing takes `work[i]` times the mean for its length, and its transfers `way[i]` times the link's
    time, equally in every run.
    """

    kinds: tuple[RequestKind, ...]
    at_s: Float64[np.ndarray, " m"]
    source: Int64[np.ndarray, " m"]
    words: Int64[np.ndarray, " m"]
    kind: Int64[np.ndarray, " m"]
    work: Float64[np.ndarray, " m"]
    way: Float64[np.ndarray, " m"]

    def __len__(self) -> int:
        return len(self.at_s)


@dataclass(frozen=True, slots=True)
class LinkChange:
    """From `at_s` on, the link of `node` to its upstream `to` (indexes) changes; None is down."""

    at_s: float
    node: int
    to: int
    link: Link | None


@dataclass(frozen=True, slots=True)
class Fleet:
    """The fleet that a seed draws from a world."""

    nodes: tuple[NodeSpec, ...]
    requests: FleetRequests
    changes: tuple[LinkChange, ...] = ()


def read_fleet(path: Path) -> FleetWorld:
    """Read a fleet's file. Raises InputError naming the file and what is wrong in it."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), FleetWorld)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{path.name} cannot be read as a fleet: {error}.") from error


def part_of_length(words: float) -> float:
    """The time of an input of `words` words relative to one with `USUAL_WORDS` words."""
    return _SHORT_PART + (1.0 - _SHORT_PART) * words / USUAL_WORDS


def draw_fleet(world: FleetWorld, n_requests: int, seed: int) -> Fleet:
    """The fleet and `n_requests` requests of a seed; deterministic."""
    random = np.random.default_rng(seed)
    counts = [tier.count for tier in world.tiers]
    starts = [sum(counts[:t]) for t in range(len(counts))]
    # An upper limit of the duration: bursts add requests.
    duration_s = 1.2 * n_requests / world.requests.rate + 10.0
    nodes: list[NodeSpec] = []
    for t, tier in enumerate(world.tiers):
        for k in range(tier.count):
            whole_s = tier.whole_s * _one(random, tier.spread)
            slower = _course([s for s in world.spells if s.tier == tier.name], duration_s, random)
            ups = []
            for up in tier.ups:
                to = next(i for i, other in enumerate(world.tiers) if other.name == up.tier)
                rtt_s = up.rtt_s * _one(random, up.spread)
                ups.append((starts[to] + k * counts[to] // tier.count, Link(rtt_s, up.bandwidth_Bps)))
            machine = MachineSpec(LOCAL, whole_s, world.levels, slower)
            nodes.append(NodeSpec(f"{tier.name}-{k}", t, (machine,), tuple(ups)))
    return Fleet(tuple(nodes), _requests(world, n_requests, duration_s, random))


def steady_fleet(
    world: World, cluster_s: float, link: Link, levels: tuple[ElasticLevel, ...], n_requests: int, seed: int
) -> Fleet:
    """The devices of a deadline world in their initial state, for clients in a closed loop.

    One node has this device and a cluster, which runs the whole model in `cluster_s`; its upstream is a
    gateway.
    """
    random = np.random.default_rng(seed)
    here = MachineSpec(LOCAL, world.local.whole_s, levels)
    beside = MachineSpec(CLUSTER, cluster_s, levels[-1:])
    above = MachineSpec(LOCAL, world.gateway.whole_s, levels)
    nodes = (NodeSpec("device", 0, (here, beside), ((1, link),)), NodeSpec("gateway", 1, (above,)))
    nothing = np.zeros(n_requests)
    kinds, source = world.requests.kinds, np.zeros(n_requests, np.int64)
    return Fleet(nodes, draw_requests(kinds, nothing, source, (4, 48), (0.15, 0.25), random))


def draw_requests(
    kinds: tuple[RequestKind, ...],
    at_s: Float64[np.ndarray, " m"],
    source: Int64[np.ndarray, " m"],
    words: tuple[int, int],
    spreads: tuple[float, float],
    random: np.random.Generator,
) -> FleetRequests:
    """Draw requests: kinds by their shares, lengths uniformly in `words`, works and ways with `spreads`."""
    m = len(at_s)
    kind = random.choice(len(kinds), m, p=[kind.share for kind in kinds])
    lengths = random.integers(words[0], words[1], m, endpoint=True)
    work, way = (log_normal(random, spread, m) for spread in spreads)
    return FleetRequests(kinds, at_s, source, lengths, kind, work, way)


def _requests(
    world: FleetWorld, n_requests: int, duration_s: float, random: np.random.Generator
) -> FleetRequests:
    """Draw requests by thinning, with rates of nodes, and of whole subtrees in bursts."""
    traffic, n_ends = world.requests, world.tiers[0].count
    weights = log_normal(random, traffic.spread, n_ends)
    weights /= weights.sum()
    bursts = {tier.name: [b for b in traffic.bursts if b.tier == tier.name] for tier in world.tiers}
    courses = [
        (tier.count, [_course(bursts[tier.name], duration_s, random) for _ in range(tier.count)])
        for tier in world.tiers
        if bursts[tier.name]
    ]
    most = float(np.prod([max(b.value for b in of_tier) for of_tier in bursts.values() if of_tier]))
    at_s, source = np.zeros(0), np.zeros(0, np.int64)
    begun_s = 0.0
    while len(at_s) < n_requests:
        m = ceil(1.5 * n_requests) + 100
        times = begun_s + np.cumsum(random.exponential(1.0 / (traffic.rate * most), m))
        ends = random.choice(n_ends, m, p=weights)
        rates = np.ones(m)
        for count, steps in courses:
            rates *= _values(steps, ends * count // n_ends, times)
        kept = random.random(m) < rates / most
        at_s, source = np.append(at_s, times[kept]), np.append(source, ends[kept])
        begun_s = float(times[-1])
    spreads = (world.spread, world.jitter)
    return draw_requests(traffic.kinds, at_s[:n_requests], source[:n_requests], world.words, spreads, random)


def _values(
    steps: list[Steps], who: Int64[np.ndarray, " m"], times: Float64[np.ndarray, " m"]
) -> Float64[np.ndarray, " m"]:
    """`steps[who[i]]` at `times[i]`."""
    found = np.ones(len(times))
    for k, one in enumerate(steps):
        here = who == k
        at = np.searchsorted(one.starts, times[here], "right") - 1
        found[here] = np.array(one.values)[at]
    return found


def _course(spells: list[SlowPeriods], duration_s: float, random: np.random.Generator) -> Steps:
    """The course of a value: 1 outside of spells; where two overlap, the larger value applies."""
    told: list[tuple[float, float, float]] = []
    for one in spells:
        at_s = float(random.exponential(one.every_s))
        while at_s < duration_s:
            told.append((at_s, at_s + one.lasts_s, one.value))
            at_s += one.lasts_s + float(random.exponential(one.every_s - one.lasts_s))
    starts = sorted({0.0, *(s for s, _, _ in told), *(e for _, e, _ in told)})
    values = [max([1.0, *(v for s, e, v in told if s <= at < e)]) for at in starts]
    return Steps(tuple(starts), tuple(values))


def log_normal(random: np.random.Generator, spread: float, size: int) -> Float64[np.ndarray, " size"]:
    """Log-normal values of mean 1 and standard deviation `spread`."""
    sigma = sqrt(log1p(spread**2))
    return random.lognormal(-(sigma**2) / 2.0, sigma, size)


def _one(random: np.random.Generator, spread: float) -> float:
    return float(log_normal(random, spread, 1)[0])
