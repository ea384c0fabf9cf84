"""A node's advert: its levels of accuracy, the nodes that they depend on, and its stamp."""

import re
from dataclasses import dataclass

from pliant.errors import RouteError
from pliant.ir.curve import Curve
from pliant.ir.endpoint import ServiceLevel

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:\[\]-]{0,63}")
"""Names of nodes: they are sent in headers, and only compared, never parsed."""
HOP_LIMIT = 8
MAX_LEVELS = 4
"""Maximum number of accuracies in an advert."""


def check_node_name(name: str) -> str:
    """Return `name` if it is valid for a node. Raises RouteError."""
    if not NAME.fullmatch(name):
        raise RouteError(
            f"{name!r:.80} is not a node's name: use 1 to 64 letters, digits and . _ : - [ ], a letter or "
            "digit first."
        )
    return name


@dataclass(frozen=True, slots=True)
class CurveAdvert:
    """A node's advert of itself: its levels, and `through`, the nodes that these depend on, including itself.

    `stamp` is (when this node started, how many times its advert has changed since): of two adverts of one
    start the later counts, and one of another start replaces both. It is no longer compared: adverts are
    taken in the order in which they arrive from the node itself.

    `levels`, worst first, give the time of an input without queueing; `wait_s` is the queueing time at recent
    lengths, now or, in a broadcast, on recent average.
    """

    node: str
    levels: tuple[ServiceLevel, ...]
    through: frozenset[str]
    stamp: tuple[int, int] = (0, 0)
    wait_s: float = 0.0

    @property
    def curve(self) -> Curve:
        """Seconds by length of the most accurate answer."""
        return self.levels[-1].curve

    def with_wait(self, wait_s: float) -> "CurveAdvert":
        """Return the same advert with another wait."""
        return CurveAdvert(self.node, self.levels, self.through, self.stamp, wait_s)


@dataclass(frozen=True, slots=True)
class Trail:
    """The nodes that a request has visited, the source first, and the number of hops left."""

    path: tuple[str, ...] = ()
    hops_left: int = HOP_LIMIT

    def visit(self, node: str) -> "Trail":
        """The trail after `node` receives the request. Raises RouteError if it had received it before."""
        if node in self.path:
            raise RouteError(
                f"a request came back to {node} by {' -> '.join(self.path)}: nodes call each other in a "
                "circle. Remove one of these from the upstreams of another."
            )
        return Trail((*self.path, node), self.hops_left)

    def may_reach(self, successor: str, advert: "CurveAdvert | None") -> bool:
        """Return whether the request may go to `successor`, whose last advert is `advert`."""
        return (
            self.hops_left > 0
            and successor not in self.path
            and (advert is None or advert.node not in self.path)
        )

    def next_hop(self) -> "Trail":
        """Return the trail of a request sent to the next node. Raises RouteError if no hops are left."""
        if self.hops_left < 1:
            raise RouteError(
                f"a request may make no further hop after {' -> '.join(self.path)}; it is answered here."
            )
        return Trail(self.path, self.hops_left - 1)
