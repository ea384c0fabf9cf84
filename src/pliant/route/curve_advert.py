"""A node's advert: its levels of accuracy, the nodes that they depend on, and its stamp."""

import re
from dataclasses import dataclass

from pliant.errors import RouteError
from pliant.ir.curve import Curve
from pliant.ir.endpoint import ServiceLevel

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:\[\]-]{0,63}")
"""Names of nodes: they travel in headers, and are compared, never read."""
HOP_LIMIT = 8
MAX_LEVELS = 4
"""Accuracies in an advert, at most."""


def checked_name(name: str) -> str:
    """`name`, if it may be a node's. Raises RouteError."""
    if not NAME.fullmatch(name):
        raise RouteError(
            f"{name!r:.80} is no name of a node: use 1 to 64 letters, digits and . _ : - [ ], a letter or "
            "digit first."
        )
    return name


@dataclass(frozen=True, slots=True)
class CurveAdvert:
    """What a node tells of itself: its levels, and `through`, the nodes these depend on, itself among them.

    `stamp` is (when this node started, how many times its advert has changed since): of two adverts of one
    start the later counts, and one of another start replaces both. Nobody compares them any more: adverts are
    taken in the order in which they come from the node itself.

    `levels`, worst first, say what an input takes once its turn has come; `wait_s` is what it would wait
    until then, at lengths as they came lately and as it is now, or in a broadcast on average lately.
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


@dataclass(frozen=True, slots=True)
class Trail:
    """Where a request has been, the source first, and how many hops it may still make."""

    path: tuple[str, ...] = ()
    hops_left: int = HOP_LIMIT

    def at(self, node: str) -> "Trail":
        """The trail once `node` has the request. Raises RouteError if it had it before."""
        if node in self.path:
            raise RouteError(
                f"a request came back to {node} by {' -> '.join(self.path)}: nodes call each other in a "
                "circle. Remove one of these from the upstreams of another."
            )
        return Trail((*self.path, node), self.hops_left)

    def may_reach(self, successor: str, told: "CurveAdvert | None") -> bool:
        """Whether the request may go to `successor`, which `told` its node's name if anything."""
        return (
            self.hops_left > 0 and successor not in self.path and (told is None or told.node not in self.path)
        )

    def sent(self) -> "Trail":
        """The trail of the request on its way to the next node. Raises RouteError if it may make no hop."""
        if self.hops_left < 1:
            raise RouteError(
                f"a request may make no further hop after {' -> '.join(self.path)}; it is answered here."
            )
        return Trail(self.path, self.hops_left - 1)
