"""References for simulated runs: the best device for each input, and each device alone (CRIME 5.1).

The oracle knows all times, including those of an input on devices that do not run it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import final

import numpy as np

from pliant.arrays import Bool, Int64
from pliant.errors import RouteError
from research.series import LinkSeries
from research.simulate import Run
from research.world import Edge, Inputs, World


def oracle(world: World, inputs: Inputs) -> Run:
    """Each input on the device of least cost at its time, by `world.objective`, without pings, broadcasts or
    errors.

    If links change only with the inputs, no other mapping has a lower total; if they change with time, a
    mapping that waits for a better link might.
    """
    truth = _TrueCosts(world, inputs)
    return _follow(truth, range(len(world.devices)))


def alone(world: World, inputs: Inputs, device: str) -> Run:
    """All inputs on `device`, by the best way there; without a way, they wait.

    `seconds` are infinite if waiting does not help: if a device is dead, or a link is down, for a part of the
    inputs.
    """
    names = [d.name for d in world.devices]
    if device not in names:
        raise RouteError(f"there is no device {device!r}; known are {names}.")
    truth = _TrueCosts(world, inputs)
    return _follow(truth, (names.index(device),))


@dataclass(frozen=True, slots=True)
class Verdict:
    """A run compared with the best device at each of its own points in time.

    `right` marks the inputs that went to the best device (or to one within 0.1 % of its time), `lost_s` is
    the time lost by the others, `least_s` the time of the best devices.
    """

    best: Int64[np.ndarray, " m"]
    right: Bool[np.ndarray, " m"]
    lost_s: float
    least_s: float


def judge(world: World, inputs: Inputs, run: Run) -> Verdict:
    """Compare each input of `run` with the best device at its time."""
    truth = _TrueCosts(world, inputs)
    count = len(inputs.lengths)
    best, right = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    lost_s = least_s = 0.0
    everyone = range(len(world.devices))
    starts_s = run.starts_s.tolist()
    for i, chosen in enumerate(run.targets.tolist()):
        costs = [truth.cost(k, i, starts_s[i]) for k in everyone]
        least = min(costs)
        best[i] = costs.index(least)
        right[i] = costs[chosen][0] <= least[0] * 1.001
        least_s += least[1]
        if costs[chosen][1] < inf:
            lost_s += costs[chosen][1] - least[1]
    return Verdict(best, right, lost_s, least_s)


@final
class _TrueCosts:
    """The true cost of each device at each time."""

    def __init__(self, world: World, inputs: Inputs) -> None:
        self.world, self.inputs = world, inputs
        self._index = {device.name: k for k, device in enumerate(world.devices)}
        self._ways = [[self._drawn(way) for way in ways] for ways in world.ways()]
        count = len(inputs.lengths)
        slower = []
        for device in world.devices:
            factors = np.ones(count)
            for spell in device.spells:
                span = slice(round(spell.first * count), round(spell.last * count))
                factors[span] = inf if spell.slower is None else spell.slower
            slower.append(factors.tolist())
        self._slower: list[list[float]] = slower
        self._can_die = any(spell.slower is None for d in world.devices for spell in d.spells)

    def cost(self, k: int, i: int, now_s: float) -> tuple[float, float, float]:
        """(cost by the objective, seconds, the source's joules) of input i on device k, sent at `now_s`."""
        world = self.world
        here_s = self.inputs.seconds[k][i] * self._slower[k][i]
        if k == 0:
            seconds, joules = here_s, 0.0 if world.power is None else world.power.compute_W * here_s
        else:
            n = self.inputs.lengths[i]
            seconds = min(self._transfer(way, i, n, now_s) for way in self._ways[k]) + here_s
            joules = 0.0
            if world.radio is not None:
                sent = world.sizes.request_bytes + world.sizes.per_item_bytes * n
                received = world.sizes.response_bytes
                joules = world.radio.transfer_j(sent, received) + world.radio.waiting_W * seconds
        objective = world.objective
        per_second, per_joule = objective.per_second, objective.per_joule
        if not per_joule:
            return per_second * seconds, seconds, joules
        return per_second * seconds + per_joule * joules, seconds, joules

    def back_at(self, k: int, i: int, now_s: float) -> float:
        """The time when a way to device k is open again; infinity if it never is while inputs wait."""
        part = i / len(self.inputs.lengths)
        found = inf
        for way in self._ways[k]:
            moments = [series.back_at(now_s, part) for series, _ in way]
            known = [m for m in moments if m is not None and m > now_s]
            if known and None not in moments:
                found = min(found, *known)
        return found

    def _drawn(self, way: tuple[Edge, ...]) -> tuple[tuple[LinkSeries, int], ...]:
        return tuple((edge.series, self._index[edge.above]) for edge in way)

    def _transfer(self, way: tuple[tuple[LinkSeries, int], ...], i: int, n: int, now_s: float) -> float:
        """The transfer time there and back, hop by hop, with the state of each link when the input reaches
        it.
        """
        sizes, part = self.world.sizes, i / len(self.inputs.lengths)
        sent = sizes.request_bytes + sizes.per_item_bytes * n
        there_s, total_s = now_s, 0.0
        for series, above in way:
            link = series.at(there_s, part)
            if link is None or (self._can_die and self._slower[above][i] == inf):
                return inf
            there_s += link.latency_s / 2.0 + sent / link.bandwidth_Bps
            total_s += link.latency_s + (sent + sizes.response_bytes) / link.bandwidth_Bps
        return total_s


def _follow(truth: _TrueCosts, devices: Sequence[int]) -> Run:
    """All inputs, each on the device of `devices` with the least cost at its time."""
    begun_s = perf_counter()
    count = len(truth.inputs.lengths)
    targets, starts_s = np.zeros(count, np.int64), np.zeros(count)
    now_s = joules = 0.0
    for i in range(count):
        best = min([(*truth.cost(k, i, now_s), k) for k in devices])
        while best[1] == inf and now_s < inf:
            now_s = min(truth.back_at(k, i, now_s) for k in devices)
            if now_s < inf:
                best = min([(*truth.cost(k, i, now_s), k) for k in devices])
        starts_s[i], targets[i] = now_s, best[3]
        now_s += best[1]
        joules += best[2]
        if now_s == inf:
            break
    return Run(now_s, joules, targets, starts_s, wall_s=perf_counter() - begun_s)
