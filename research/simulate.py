"""Simulate routers under a virtual clock: inputs one after another, each as soon as the last is answered.

Each device decides with a `Router`, as a node does. Time is accounted as in CRIME (5.1, 5.3): an input takes
its way's round trips, transfers and computation; a ping, and a broadcast's reception, on any device, delay
the next input by their time. (A real node pings concurrently.) A probe occupies its device: the source at
once, another device only if an input is answered there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import final

import numpy as np

from pliant.arrays import Float64, Int64
from pliant.errors import RouteError
from pliant.ir.link import Link
from pliant.route.choice.choose_endpoint import LOCAL
from pliant.route.choice.objective import TIME
from pliant.route.curve_advert import CurveAdvert
from pliant.route.predecessors import Listener
from pliant.route.router import Router
from pliant.route.router_settings import RouterSettings
from pliant.route.router_tasks import BroadcastTask, PingTask, ProbeTask
from research.series import LinkSeries
from research.world import Inputs, World, sample_times, settings_of

_PRIOR_RTT_S = 0.1
_LINE_BYTES = 12


@dataclass(frozen=True, slots=True)
class Run:
    """The results of a run: `seconds` and `joules` (of the source) in total, and input by input.

    `targets` are indices of devices; an input starts at `starts_s`. `upkeep_s` is the part of `seconds` for
    pings, broadcasts and probes, `failures_s` that for requests to dead devices; `wall_s` is real time.
    """

    seconds: float
    joules: float
    targets: Int64[np.ndarray, " m"]
    starts_s: Float64[np.ndarray, " m"]
    upkeep_s: float = 0.0
    failures_s: float = 0.0
    n_pings: int = 0
    n_broadcasts: int = 0
    n_probes: int = 0
    n_failures: int = 0
    wall_s: float = 0.0


def simulate(world: World, inputs: Inputs, settings: RouterSettings, seed: int = 0) -> Run:
    """Run every input on the device that the routers choose. Deterministic except for `wall_s`."""
    return _Simulation(world, inputs, settings, seed).run()


@final
class _Node:
    """The state of a device during a run: its router, its upstream links, and its current spell."""

    __slots__ = ("below", "busy_until_s", "is_up", "listener", "name", "router", "seconds", "slower", "ups")

    def __init__(self, name: str, seconds: tuple[float, ...]) -> None:
        self.name, self.seconds = name, seconds
        self.listener = Listener(f"sim://{name}")
        self.is_up, self.slower, self.busy_until_s = True, 1.0, 0.0
        self.ups: dict[str, tuple[LinkSeries, int]] = {}
        self.below: dict[str, LinkSeries] = {}
        self.router: Router


@final
class _Simulation:
    def __init__(self, world: World, inputs: Inputs, settings: RouterSettings, seed: int) -> None:
        self._world, self._inputs, self._settings, self._seed = world, inputs, settings, seed
        self._nodes = [_Node(d.name, s) for d, s in zip(world.devices, inputs.seconds, strict=True)]
        index = {node.name: k for k, node in enumerate(self._nodes)}
        for edge in world.edges:
            self._nodes[index[edge.below]].ups[edge.above] = (edge.series, index[edge.above])
            self._nodes[index[edge.above]].below[edge.below] = edge.series
        self._index = index
        self._joules = self._upkeep_s = self._failures_s = 0.0
        self._n_pings = self._n_broadcasts = self._n_probes = self._n_failures = 0
        self._n_starts = 0
        self._part = 0.0
        for k in range(len(self._nodes)):
            self._start(k)

    def run(self) -> Run:
        begun_s = perf_counter()
        lengths = self._inputs.lengths
        changes = self._changes()
        targets, starts_s = np.zeros(len(lengths), np.int64), np.zeros(len(lengths))
        now_s = 0.0
        for i, n in enumerate(lengths):
            self._part = i / len(lengths)
            while changes and changes[-1][0] <= i:
                changes.pop()[1]()
            now_s = self._upkeep(now_s)
            starts_s[i] = now_s
            now_s, targets[i], _ = self._answer(0, i, n, now_s)
        return Run(
            now_s,
            self._joules,
            targets,
            starts_s,
            self._upkeep_s,
            self._failures_s,
            self._n_pings,
            self._n_broadcasts,
            self._n_probes,
            self._n_failures,
            perf_counter() - begun_s,
        )

    # -- an input

    def _answer(self, k: int, i: int, n: int, now_s: float) -> tuple[float, int, float]:
        """(time when device k has the answer, answering device, wait for a busy device)."""
        node, world = self._nodes[k], self._world
        failed: tuple[str, ...] = ()
        objective = TIME if k else world.objective
        node.router.set_wait(max(node.busy_until_s - now_s, 0.0), now_s)
        while True:
            target = node.router.choose(n, now_s, objective, failed).target
            if target == LOCAL:
                seconds = node.seconds[i] * node.slower
                waited_s = max(node.busy_until_s - now_s, 0.0)
                now_s += waited_s
                node.router.record_local_answer(n, seconds, now_s + seconds)
                if k == 0 and world.power is not None:
                    self._joules += world.power.compute_W * seconds
                return now_s + seconds, k, waited_s
            series, up = node.ups[target]
            link, peer = series.at(now_s, self._part), self._nodes[up]
            if link is not None and peer.is_up:
                return self._away(node, peer, up, link, i, n, now_s)
            now_s = self._fail(node, target, now_s)
            failed = (*failed, target)

    def _away(
        self, node: _Node, peer: _Node, up: int, link: Link, i: int, n: int, now_s: float
    ) -> tuple[float, int, float]:
        """Send an input upstream: the transfer by equation 2, and the answer of the device above."""
        sizes, is_source = self._world.sizes, node is self._nodes[0]
        sent = sizes.request_bytes + sizes.per_item_bytes * n
        there_s = now_s + link.latency_s / 2.0 + sent / link.bandwidth_Bps
        peer.router.add_predecessor(node.name, node.listener, there_s)
        done_s, who, waited_s = self._answer(up, i, n, there_s)
        advert = peer.router.advertise(done_s, node.name)
        received = sizes.response_bytes + sizes.point_bytes * len(advert.curve.points)
        back_s = done_s + link.latency_s / 2.0 + received / link.bandwidth_Bps
        away_s = back_s - now_s
        times_s = (away_s, done_s - there_s, advert, back_s, waited_s)
        node.router.record_answer(peer.name, n, sent, received, *times_s)
        radio = self._world.radio
        if is_source and radio is not None:
            self._joules += radio.transfer_j(sent, received) + radio.waiting_W * away_s
        return back_s, who, waited_s

    def _fail(self, node: _Node, target: str, now_s: float) -> float:
        now_s += self._world.failure_s
        self._failures_s += self._world.failure_s
        self._n_failures += 1
        if node is self._nodes[0] and self._world.radio is not None:
            self._joules += self._world.radio.waiting_W * self._world.failure_s
        node.router.record_failure(target, now_s)
        return now_s

    # -- between inputs

    def _upkeep(self, now_s: float) -> float:
        """Perform the due work on every device, repeatedly, since a received broadcast may make another one
        due.
        """
        start_s = now_s
        is_more = True
        while is_more:
            is_more = False
            for node in self._nodes:
                if node.is_up and node.router.next_due_s(now_s) <= now_s:
                    for due in node.router.take_due_tasks(now_s):
                        is_more = True
                        now_s = self._do(node, due, now_s)
        self._upkeep_s += now_s - start_s
        return now_s

    def _do(self, node: _Node, due: PingTask | BroadcastTask | ProbeTask, now_s: float) -> float:
        match due:
            case PingTask(successor=target):
                return self._ping(node, target, now_s)
            case BroadcastTask(predecessors=names, advert=advert):
                return self._broadcast(node, names, advert, now_s)
            case ProbeTask(length=n):
                self._n_probes += 1
                seconds = self._world.devices[self._index[node.name]].curve.at(n) * node.slower
                node.router.record_local_answer(n, seconds, now_s + seconds)
                if node is not self._nodes[0]:
                    node.busy_until_s = now_s + seconds
                    return now_s
                if self._world.power is not None:
                    self._joules += self._world.power.compute_W * seconds
                return now_s + seconds

    def _ping(self, node: _Node, target: str, now_s: float) -> float:
        """A ping takes a round trip without payload. A failed ping costs as much as other failures, in the
        background.
        """
        self._n_pings += 1
        series, up = node.ups[target]
        link, peer = series.at(now_s, self._part), self._nodes[up]
        if link is None or not peer.is_up:
            node.router.record_failure(target, now_s)
            return now_s
        peer.router.add_predecessor(node.name, node.listener, now_s)
        advert = peer.router.advertise(now_s, node.name)
        node.router.record_ping(target, link.latency_s, 0.0, advert, now_s + link.latency_s)
        if node is self._nodes[0] and self._world.radio is not None:
            self._joules += self._world.radio.waiting_W * link.latency_s
        return now_s + link.latency_s

    def _broadcast(self, node: _Node, names: tuple[str, ...], advert: CurveAdvert, now_s: float) -> float:
        """Broadcast to all predecessors at once, which takes one direction of the link; the source's
        reception delays its sending.
        """
        self._n_broadcasts += 1
        slowest_s = now_s
        for name in names:
            link, peer = node.below[name].at(now_s, self._part), self._nodes[self._index[name]]
            if link is None or not peer.is_up:
                node.router.predecessors.remove(name)
                continue
            size = _LINE_BYTES + self._world.sizes.point_bytes * len(advert.curve.points)
            here_s = now_s + link.latency_s / 2.0 + size / link.bandwidth_Bps
            peer.router.handle_broadcast(node.name, advert, here_s)
            slowest_s = max(slowest_s, here_s)
        return slowest_s

    # -- devices change

    def _start(self, k: int) -> None:
        """Start a node: it has a few measurements of itself, and the names of its upstreams."""
        node, device = self._nodes[k], self._world.devices[k]
        self._n_starts += 1
        router = Router(node.name, settings_of(self._world, k, self._settings), started=self._n_starts)
        for n, seconds in sample_times(device, self._settings.max_n, self._seed + self._n_starts):
            router.record_local_answer(n, seconds * node.slower, 0.0)
        for name, (series, _) in node.ups.items():
            link = next((link for link in series.links if link is not None), None)
            bandwidth_Bps = 250e3 if link is None else link.bandwidth_Bps
            router.add_successor(name, Link(_PRIOR_RTT_S, bandwidth_Bps))
        node.router, node.is_up = router, True

    def _changes(self) -> list[tuple[int, Callable[[], None]]]:
        """(first input, change), the last one first."""
        found: list[tuple[int, Callable[[], None]]] = []
        count = len(self._inputs.lengths)
        for k, device in enumerate(self._world.devices):
            for spell in device.spells:
                if spell.slower is None and k == 0:
                    raise RouteError("the source cannot die in a run: nobody would send the inputs.")
                found.append((round(spell.first * count), partial(self._enter, k, spell.slower)))
                found.append((round(spell.last * count), partial(self._leave, k, spell.slower)))
        return sorted(found, key=lambda change: -change[0])

    def _enter(self, k: int, slower: float | None) -> None:
        if slower is None:
            self._nodes[k].is_up = False
        else:
            self._nodes[k].slower = slower

    def _leave(self, k: int, slower: float | None) -> None:
        if slower is None:
            self._start(k)
        else:
            self._nodes[k].slower = 1.0
