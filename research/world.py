"""The world of a simulated run: devices, links, loads and inputs, as values."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import isfinite

import numpy as np

from pliant.arrays import Float64, Int64
from pliant.errors import RouteError
from pliant.ir.curve import Curve
from pliant.route.choice.energy import PowerModel, RadioModel
from pliant.route.choice.objective import TIME, Objective
from pliant.route.router_settings import RouterSettings
from research.series import LinkSeries

_LEARNED = (1, 4, 8, 16, 32, 64) * 4


@dataclass(frozen=True, slots=True)
class SlowPeriod:
    """A part of a run, from `first` to `last` of its inputs (0..1), in which a device changes.

    It takes `slower` times as long (Figure 6: other tasks), or with None it is dead, and loses its state.
    """

    first: float
    last: float
    slower: float | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.first < self.last or (self.slower is not None and not self.slower > 0.0):
            raise RouteError(
                f"from {self.first} to {self.last} of the inputs {self.slower} times slower cannot be: give "
                "rising parts and a factor above 0."
            )


@dataclass(frozen=True, slots=True)
class Device:
    """A node: the true mean time of an input of length n, and its variation.

    A time is `curve` times a log-normal factor of mean 1 and standard deviation `spread`, or times a random
    one of the measured `factors` of the nearest length, since short inputs vary more.
    """

    name: str
    curve: Curve
    spread: float = 0.0
    spells: tuple[SlowPeriod, ...] = ()
    factors: tuple[tuple[int, tuple[float, ...]], ...] = ()

    def __post_init__(self) -> None:
        if not (self.spread >= 0.0 and isfinite(self.spread)):
            raise RouteError(f"the times of {self.name} spread by {self.spread}; give 0 or more.")
        if any(a.last > b.first for a, b in pairwise(self.spells)):
            raise RouteError(f"spells of {self.name} overlap: give them in turn, each after the one before.")


@dataclass(frozen=True, slots=True)
class Edge:
    """Inputs may go from `below` to `above`, both names of devices."""

    below: str
    above: str
    series: LinkSeries


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a request (CRIME 3.1: two per word) and of its response (Figure 7: label, time, points)."""

    request_bytes: int = 50
    per_item_bytes: int = 2
    response_bytes: int = 16
    point_bytes: int = 8


@dataclass(frozen=True, slots=True)
class World:
    """Devices, the source first, and the edges of a DAG between them.

    A request to a dead device, or over a link that is down, fails after `failure_s`. A source with a `power`
    model and a `radio` counts joules, and minimises `objective`.
    """

    devices: tuple[Device, ...]
    edges: tuple[Edge, ...]
    sizes: Sizes = field(default_factory=Sizes)
    failure_s: float = 1.0
    power: PowerModel | None = None
    radio: RadioModel | None = None
    objective: Objective = TIME

    def __post_init__(self) -> None:
        names = [device.name for device in self.devices]
        if not names or len(set(names)) != len(names):
            raise RouteError(f"devices {names} are no world: give one at least, each with its own name.")
        for edge in self.edges:
            if edge.below not in names or edge.above not in names:
                raise RouteError(f"an edge leads from {edge.below} to {edge.above}; devices are {names}.")
        self.ways()

    def ways(self) -> tuple[tuple[tuple[Edge, ...], ...], ...]:
        """For each device, every path from the source, as edges. Raises RouteError for a cycle."""
        found: dict[str, list[tuple[Edge, ...]]] = {device.name: [] for device in self.devices}
        open_ways: list[tuple[Edge, ...]] = [()]
        while open_ways:
            way = open_ways.pop()
            here = way[-1].above if way else self.devices[0].name
            found[here].append(way)
            if here in {edge.below for edge in way}:
                raise RouteError(f"edges lead back to {here}; give a graph without circles (CRIME 4.1).")
            open_ways += [(*way, edge) for edge in self.edges if edge.below == here]
        return tuple(tuple(found[device.name]) for device in self.devices)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Lengths, and the true time of each input on each device without load, equal in every run."""

    lengths: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    """Seconds by device, then by input."""

    @property
    def max_n(self) -> int:
        return max(self.lengths)


def draw(world: World, lengths: Sequence[int] | Int64[np.ndarray, " m"], seed: int) -> Inputs:
    """Each input's time on each device, drawn from the devices' spreads; deterministic."""
    array = np.asarray(lengths, np.int64)
    if array.size == 0 or array.min() < 0:
        raise RouteError("a run takes inputs of lengths >= 0, one at least.")
    random = np.random.default_rng(seed)
    seconds = []
    for device in world.devices:
        table = np.array([device.curve.at(n) for n in range(int(array.max()) + 1)])
        seconds.append(tuple((table[array] * _factors(device, array, random)).tolist()))
    return Inputs(tuple(array.tolist()), tuple(seconds))


def sample_times(device: Device, max_n: int, seed: int) -> list[tuple[int, float]]:
    """The measurements of a node before its first request: a few lengths, with the device's spread."""
    random = np.random.default_rng(seed)
    lengths = [n for n in _LEARNED if n <= max_n]
    factors = _factors(device, np.array(lengths, np.int64), random)
    return [(n, device.curve.at(n) * f) for n, f in zip(lengths, factors.tolist(), strict=True)]


def settings_of(world: World, k: int, settings: RouterSettings) -> RouterSettings:
    """`settings` for device k: only the source has power models (CRIME 4.4)."""
    if k:
        return settings
    radio = None if world.radio is None else world.radio.without_tail()  # as eq. 9 and the oracle count
    return replace(settings, power=world.power, radio=radio)


def _factors(
    device: Device, lengths: Int64[np.ndarray, " m"], random: np.random.Generator
) -> Float64[np.ndarray, " m"]:
    if not device.factors:
        sigma = float(np.sqrt(np.log1p(device.spread**2)))
        return random.lognormal(-(sigma**2) / 2.0, sigma, len(lengths))
    measured = np.array([n for n, _ in device.factors])
    nearest = np.abs(lengths[:, None] - measured[None, :]).argmin(axis=1)
    found = np.ones(len(lengths))
    for k, (_, factors) in enumerate(device.factors):
        here = nearest == k
        found[here] = random.choice(np.array(factors, np.float64), int(here.sum()))
    return found
