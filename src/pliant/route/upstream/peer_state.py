"""An upstream's current state, for people, metrics and explanations."""

from dataclasses import dataclass
from typing import Literal

from pliant.ir.curve import Curve
from pliant.ir.endpoint import NO_ANSWER_S, ServiceLevel

PeerHealth = Literal["ready", "unknown", "down", "aside", "circle", "mismatch"]


@dataclass(frozen=True, slots=True)
class PeerState:
    """A successor's current state: `ready` ones are candidates; the others have a `reason` why not.

    `levels` are those of its last advert, empty without one. `wait_s` is the wait of an input there;
    `n_in_flight` of at most `limit` requests of this node are at it, and `n_waiting` are queued here.
    """

    name: str
    node: str | None
    state: PeerHealth
    rtt_s: float
    bandwidth_Bps: float
    levels: tuple[ServiceLevel, ...]
    contact_s: float | None
    reason: str | None = None
    wait_s: float = 0.0
    n_in_flight: int = 0
    n_waiting: int = 0
    limit: int = 0

    @property
    def curve(self) -> Curve | None:
        """The time of its most accurate level; None without an advert."""
        return self.levels[-1].curve if self.levels else None

    def may_answer_later(self, n: int, floor: float) -> bool:
        """Whether it does not answer now, but by its last advert can: an input of length n, at `floor`."""
        is_away = self.state in ("down", "aside")
        able = (level for level in self.levels if level.curve.at(n) < NO_ANSWER_S)
        return is_away and any(level.reaches(floor) for level in able)
