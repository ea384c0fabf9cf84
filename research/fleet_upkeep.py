"""Perform the due pings and broadcasts of routers in a simulated fleet, as in serve/upstream."""

from collections.abc import Callable, Sequence
from math import inf
from typing import final

from pliant.ir.link import Link
from pliant.route.curve_advert import CurveAdvert
from pliant.route.router_tasks import BroadcastTask, PingTask, ProbeTask
from research.fleet_node import FleetNode, Job, Machine
from research.virtual_clock import VirtualClock

_THROTTLE_S = 0.02
_PATIENCE_S = 1.0
"""The timeout of a ping."""


@final
class Upkeep:
    """Performs due work; `work_on` makes a machine start its next job."""

    def __init__(
        self, clock: VirtualClock, nodes: Sequence[FleetNode], work_on: Callable[[FleetNode, Machine], None]
    ) -> None:
        self._clock, self._nodes, self._work_on = clock, nodes, work_on
        self._index = {node.name: node for node in nodes}
        self.n_pings = self.n_broadcasts = 0

    def wake(self, node: FleetNode) -> None:
        """Schedule the due work of a node's router, now or later."""
        now_s = self._clock.now_s
        soonest_s = max(node.due_done_s + _THROTTLE_S, now_s)
        if node.wakes_at_s <= soonest_s:
            return
        at_s = max(node.router.next_due_s(now_s), soonest_s)
        if at_s < node.wakes_at_s:
            node.wakes_at_s = at_s
            if at_s not in node.wakes_s:
                node.wakes_s.add(at_s)
                self._clock.at(at_s, self._do_due, node, at_s)

    def _do_due(self, node: FleetNode, at_s: float) -> None:
        node.wakes_s.discard(at_s)
        if at_s != node.wakes_at_s:
            return  # the work was done earlier
        now_s = self._clock.now_s
        node.wakes_at_s, node.due_done_s = inf, now_s
        if node.is_up(now_s):
            for due in node.router.take_due_tasks(now_s):
                self._do(node, due)
            self.wake(node)

    def _do(self, node: FleetNode, due: PingTask | BroadcastTask | ProbeTask) -> None:
        match due:
            case PingTask(successor=target):
                self.n_pings += 1
                to, link = node.links[target]
                if link is None:
                    self._clock.after(_PATIENCE_S, self._ping_failed, node, self._nodes[to])
                else:
                    self._clock.after(link.latency_s / 2.0, self._pinged, node, self._nodes[to], link)
            case BroadcastTask(predecessors=names, advert=advert):
                self.n_broadcasts += 1
                for name in names:
                    below = self._index[name]
                    _, link = below.links[node.name]
                    if link is not None:
                        self._clock.after(link.latency_s / 2.0, self._hear, below, node.name, advert)
            case ProbeTask(length=n, endpoint=name):
                machine = node.machines[name]
                if machine.running is None:
                    machine.add(Job(n, 0.0, self._clock.now_s))
                    self._work_on(node, machine)

    def _pinged(self, node: FleetNode, peer: FleetNode, link: Link) -> None:
        if not peer.is_up(self._clock.now_s):
            self._clock.after(link.latency_s / 2.0, self._ping_failed, node, peer)
            return
        peer.router.add_predecessor(node.name, node.listener if node.spec.tier else None, self._clock.now_s)
        peer.offer(self._clock.now_s)
        advert = peer.router.advertise(self._clock.now_s, node.name)
        self._clock.after(link.latency_s / 2.0, self._ping_back, node, peer, link, advert)

    def _ping_back(self, node: FleetNode, peer: FleetNode, link: Link, advert: CurveAdvert) -> None:
        node.router.record_ping(peer.name, link.latency_s, 0.0, advert, self._clock.now_s)
        self.wake(node)

    def _ping_failed(self, node: FleetNode, peer: FleetNode) -> None:
        node.router.record_failure(peer.name, self._clock.now_s)
        self.wake(node)

    def _hear(self, node: FleetNode, teller: str, advert: CurveAdvert) -> None:
        node.router.handle_broadcast(teller, advert, self._clock.now_s)
        self.wake(node)
