"""Changes in a simulated fleet during a run: nodes that fail and restart, links that change."""

from collections.abc import Callable, Sequence
from math import inf
from typing import final

from research.fleet_node import FleetNode, ForwardedRequest
from research.fleet_upkeep import Upkeep
from research.fleet_world import Fleet, LinkChange
from research.virtual_clock import VirtualClock


@final
class Changes:
    """`unreachable` is called for requests whose upstream has failed."""

    def __init__(
        self,
        clock: VirtualClock,
        fleet: Fleet,
        nodes: Sequence[FleetNode],
        unreachable: Callable[[ForwardedRequest], None],
        upkeep: Upkeep,
    ) -> None:
        self._clock, self._fleet, self._nodes = clock, fleet, nodes
        self._unreachable, self._upkeep = unreachable, upkeep
        self._names = tuple(node.name for node in nodes)

    def schedule(self) -> None:
        for node in self._nodes:
            slower = node.spec.machines[0].slower
            for at_s, value in zip(slower.starts, slower.values, strict=True):
                if value == inf:
                    self._clock.at(at_s, self._die, node)
            for before, value, at_s in zip(slower.values, slower.values[1:], slower.starts[1:], strict=False):
                if before == inf and value < inf:
                    self._clock.at(at_s, self._revive, node)
        for change in self._fleet.changes:
            self._clock.at(change.at_s, self._follow, change)

    def _die(self, node: FleetNode) -> None:
        """Fail a node: its jobs are lost, and its connections are reset."""
        for away in node.guests.values():
            _, link = away.asked.node.links[node.name]
            if link is not None:
                self._clock.after(link.latency_s / 2.0, self._unreachable, away)
        node.n_starts += 1
        node.guests.clear()

    def _revive(self, node: FleetNode) -> None:
        node.start(self._names)
        self._upkeep.wake(node)

    def _follow(self, change: LinkChange) -> None:
        self._nodes[change.node].links[self._names[change.to]] = (change.to, change.link)
