"""Deadline worlds: the file format, and the scenario that a seed draws from a world.

A world is a TOML file in bench/worlds: a local device, workers of a cluster and a gateway, with the whole
model's time on each and the intervals in which it is slow or gone, the link to the gateway, and the requests.
Traces are referenced by file and window, not copied. Device times and deadlines are seconds of the clock;
points in time are seconds of the world, of which `speed` pass per second of the clock.
"""

import tomllib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from pathlib import Path
from typing import TypeVar
from zlib import crc32

import msgspec
import numpy as np

from pliant.errors import InputError
from pliant.ir.link import Link
from research.series import LinkSeries, read_ripe

LEAST_BPS = 1e3
"""The throughput of a link with a measured throughput of 0, since token buckets have no rate of 0."""
_MBIT_BYTES = 125_000.0
T = TypeVar("T")


class Interval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An interval of a world; `value` is a slowdown, a request rate, or a factor of the rate."""

    from_s: float
    to_s: float
    value: float = inf

    def __post_init__(self) -> None:
        if not 0 <= self.from_s < self.to_s or not self.value > 0:
            raise ValueError(f"{self.from_s} to {self.to_s} s with {self.value} is no part of a world")


class RequestKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of requests and its fraction of all requests."""

    share: float
    deadline_s: float
    floor: float

    def __post_init__(self) -> None:
        if not (self.share > 0 and self.deadline_s > 0 and 0 <= self.floor <= 1):
            raise ValueError(f"a share of {self.share} by {self.deadline_s} s above {self.floor} is no kind")


class Traffic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Poisson arrivals: `rate` per second of the world, multiplied in `bursts`."""

    rate: float
    kinds: tuple[RequestKind, ...]
    bursts: tuple[Interval, ...] = ()

    def __post_init__(self) -> None:
        if not self.rate > 0 or abs(sum(kind.share for kind in self.kinds) - 1.0) > 1e-9:
            raise ValueError("requests come at a rate above 0, of kinds whose shares add up to 1")


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A device: the seconds of the whole model at 24 tokens, and the intervals in which it is slower or
    `gone`.
    """

    whole_s: float
    slower: tuple[Interval, ...] = ()
    gone: tuple[Interval, ...] = ()

    def __post_init__(self) -> None:
        if not self.whole_s > 0:
            raise ValueError(f"no device answers in {self.whole_s} s")
        if any(one.value < 1.0 for one in self.slower):
            raise ValueError("an emulated device can only be slowed: give values of 1 or more")


class LinkWindow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows of a RIPE Atlas series from `row` on, and seconds of a Lumos5G trace from `second` on."""

    ripe: str
    row: int
    lumos: str
    second: int


class World(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One world: see the module. A row of a RIPE Atlas series lasts `row_s` seconds of the world.

    `load` is the rate of other clients' requests to the gateway. A seed shifts every interval by up to
    `shift_s`, and takes one of the `links`.
    """

    about: str
    arithmetic: str
    duration_s: float
    requests: Traffic
    local: Machine
    gateway: Machine
    workers: dict[str, Machine]
    links: tuple[LinkWindow, ...]
    load: tuple[Interval, ...] = ()
    row_s: float = 2.0
    shift_s: float = 2.0
    speed: float = 1.0

    def __post_init__(self) -> None:
        if not (self.duration_s > 0 and self.speed > 0 and self.row_s > 0 and self.shift_s >= 0):
            raise ValueError("a world has a duration, a speed and rows above 0")
        if not (self.links and self.workers):
            raise ValueError("a world has a link and a worker at least")


class Seeds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The seeds for tuning settings, held-out seeds that none is chosen by, and those of simulations."""

    tuning: tuple[int, ...]
    held_out: tuple[int, ...]
    simulated: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if set(self.tuning) & {*self.held_out, *self.simulated}:
            raise ValueError("a seed that was tuned with is not held out")


class Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The number of texts with `first`, `first` + 1, ... words."""

    source: str
    first: int
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Steps:
    """`values[i]` from `starts[i]` on, seconds of the world; starts ascend from 0."""

    starts: tuple[float, ...]
    values: tuple[float, ...]

    def at(self, now_s: float) -> float:
        return self.values[max(bisect_right(self.starts, now_s) - 1, 0)]


@dataclass(frozen=True, slots=True)
class Course:
    """A device over time: the time of its whole model, times `slower`; infinite while it is gone."""

    whole_s: float
    slower: Steps

    def seconds(self, now_s: float) -> float:
        return self.whole_s * self.slower.at(now_s)


@dataclass(frozen=True, slots=True)
class TimedRequest:
    """A request of a text of `n_words` words, at `at_s` of the world; `pick` selects one of the texts of this
    length.
    """

    number: int
    at_s: float
    n_words: int
    pick: int
    deadline_s: float
    floor: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """The events in a world for one seed. `others_s` are the times of other clients' requests to the
    gateway.
    """

    world: str
    seed: int
    duration_s: float
    speed: float
    requests: tuple[TimedRequest, ...]
    local: Course
    gateway: Course
    workers: Mapping[str, Course]
    link: LinkSeries
    others_s: tuple[float, ...]


def read_world(path: Path) -> World:
    """Read a world's file. Raises InputError naming the file and what is wrong in it."""
    return read_toml(path, World)


def read_seeds(path: Path) -> Seeds:
    """Read the seeds' file. Raises InputError."""
    return read_toml(path, Seeds)


def read_words(path: Path) -> Words:
    """Read the distribution of lengths. Raises InputError."""
    return read_toml(path, Words)


def draw(world: World, name: str, seed: int, words: Words, traces: Path) -> Scenario:
    """The scenario of a seed; deterministic. `traces` is the folder of traces.

    Raises InputError for a window that a trace does not have, OSError for a missing trace.
    """
    random = np.random.default_rng([seed, crc32(name.encode())])
    window = world.links[int(random.integers(len(world.links)))]
    shift = [float(x) for x in random.uniform(-world.shift_s, world.shift_s, 4)]
    link = read_link(window, traces, world)
    traffic = world.requests
    times_s = arrivals(
        traffic.rate, [_moved(one, shift[0]) for one in traffic.bursts], world.duration_s, random
    )
    kinds = random.choice(len(traffic.kinds), len(times_s), p=[kind.share for kind in traffic.kinds])
    counts = np.array(words.counts, float)
    lengths = words.first + random.choice(len(counts), len(times_s), p=counts / counts.sum())
    picks = random.integers(1 << 30, size=len(times_s))
    requests = tuple(
        TimedRequest(i, at_s, int(n), int(pick), traffic.kinds[k].deadline_s, traffic.kinds[k].floor)
        for i, (at_s, n, pick, k) in enumerate(zip(times_s, lengths, picks, kinds, strict=True))
    )
    others_s: list[float] = []
    for one in world.load:
        moved = _moved(one, shift[3])
        others_s += [moved.from_s + t for t in arrivals(one.value, (), moved.to_s - moved.from_s, random)]
    return Scenario(
        name,
        seed,
        world.duration_s,
        world.speed,
        requests,
        _course(world.local, shift[1]),
        _course(world.gateway, shift[3]),
        {who: _course(machine, shift[2]) for who, machine in sorted(world.workers.items())},
        link,
        tuple(sorted(others_s)),
    )


def arrivals(
    rate: float, bursts: Sequence[Interval], duration_s: float, random: np.random.Generator
) -> list[float]:
    """The times of a Poisson process whose rate is multiplied by `value` in bursts, by thinning."""
    most = rate * max((one.value for one in bursts), default=1.0)
    found, now_s = [], float(random.exponential(1.0 / most))
    while now_s < duration_s:
        here = rate * max((one.value for one in bursts if one.from_s <= now_s < one.to_s), default=1.0)
        if random.random() < here / most:
            found.append(now_s)
        now_s += float(random.exponential(1.0 / most))
    return found


def read_link(window: LinkWindow, traces: Path, world: World) -> LinkSeries:
    """The window's round trips, each for `row_s`, and throughputs, each for a second of the clock.

    A lost probe means that the link is down; a throughput of 0 becomes `LEAST_BPS`. Throughputs repeat when
    the trace ends. Raises InputError if there are fewer rows than the world needs, or no throughput.
    """
    path = traces / "ripe_atlas" / f"{window.ripe}.csv"
    n_rows = ceil(world.duration_s / world.row_s)
    trips_s = read_ripe(path.read_text(), window.ripe).rtts_s[window.row : window.row + n_rows]
    lines = (traces / "lumos5g" / window.lumos).read_text().splitlines()[window.second :]
    mbits = [float(line.split()[1]) for line in lines if line.strip()]
    if len(trips_s) < n_rows or not mbits:
        raise InputError(
            f"{window.ripe} from row {window.row} or {window.lumos} from second {window.second} ends before "
            f"{world.duration_s:g} s of a world: choose earlier ones."
        )
    seconds = [i * world.speed for i in range(ceil(world.duration_s / world.speed))]
    starts = sorted({i * world.row_s for i in range(n_rows)} | set(seconds))
    links = []
    for start_s in starts:
        trip_s = trips_s[int(start_s // world.row_s)]
        carried_Bps = max(mbits[int(start_s // world.speed) % len(mbits)] * _MBIT_BYTES, LEAST_BPS)
        links.append(None if trip_s is None else Link(trip_s, carried_Bps))
    return LinkSeries(tuple(starts), tuple(links))


def read_toml(path: Path, kind: type[T]) -> T:
    """Read a TOML file as `kind`. Raises InputError naming the file and what is wrong in it."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), kind)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{path.name} cannot be read as {kind.__name__}: {error}.") from error


def _moved(one: Interval, by_s: float) -> Interval:
    from_s = max(one.from_s + by_s, 0.0)
    return Interval(from_s, max(one.to_s + by_s, from_s + 1e-3), one.value)


def _course(machine: Machine, by_s: float) -> Course:
    """The course of a device; where intervals overlap, the slower one applies, and `gone` is the slowest."""
    told = [_moved(one, by_s) for one in machine.slower]
    told += [_moved(Interval(one.from_s, one.to_s), by_s) for one in machine.gone]
    starts = sorted({0.0, *(one.from_s for one in told), *(one.to_s for one in told)})
    values = [max([1.0, *(o.value for o in told if o.from_s <= at < o.to_s)]) for at in starts]
    return Course(machine.whole_s, Steps(tuple(starts), tuple(values)))
