"""An upstream's current state, for people, metrics and explanations."""

from dataclasses import dataclass
from typing import Literal

from pliant.ir.curve import Curve

PeerHealth = Literal["ready", "unknown", "down", "aside", "circle", "mismatch"]


@dataclass(frozen=True, slots=True)
class PeerState:
    """A successor's current state: `ready` ones are candidates; the others have a `reason` why not.

    `wait_s` is the wait of an input there; `n_in_flight` of at most `limit` requests of this node are at it,
    and `n_waiting` are queued here.
    """

    name: str
    node: str | None
    state: PeerHealth
    rtt_s: float
    bandwidth_Bps: float
    curve: Curve | None
    contact_s: float | None
    reason: str | None = None
    wait_s: float = 0.0
    n_in_flight: int = 0
    n_waiting: int = 0
    limit: int = 0
