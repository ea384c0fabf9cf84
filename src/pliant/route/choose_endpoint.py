"""The decision (CRIME eq. 5, 6, 8, 9): the candidate that costs least."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from pliant.errors import RouteError
from pliant.ir.curve import Curve

LOCAL = ""
"""The name of this device among candidates; other nodes have names that are not empty."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What a second and a joule cost; the least sum wins. Energy counts at the source alone (CRIME 4.4)."""

    per_second: float = 1.0
    per_joule: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.per_second < float("inf") and 0 <= self.per_joule < float("inf")) or not (
            self.per_second or self.per_joule
        ):
            raise RouteError(
                f"an objective of {self.per_second} per second and {self.per_joule} per joule ranks nothing: "
                "give weights >= 0, one of them above 0."
            )


TIME = Objective()
ENERGY = Objective(0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to answer an input of length n, as lines and a curve.

    It takes `fixed_s` + `per_item_s` * n + curve(n) seconds: waiting, or round trip and bytes, apart from
    the time spent answering (eq. 4). This device spends `fixed_j` + `per_item_j` * n + `watts` * seconds
    joules on it (eq. 8; eq. 9 with E_tx0 and P_tx).
    """

    name: str
    curve: Curve
    fixed_s: float = 0.0
    per_item_s: float = 0.0
    fixed_j: float = 0.0
    per_item_j: float = 0.0
    watts: float = 0.0

    def seconds(self, n: int) -> float:
        """Until the answer to an input of length n is here."""
        return self.fixed_s + self.per_item_s * n + self.curve.at(n)

    def joules(self, n: int, seconds: float) -> float:
        """What this device spends on an input of length n that takes `seconds`."""
        return self.fixed_j + self.per_item_j * n + self.watts * seconds


@dataclass(frozen=True, slots=True)
class Option:
    """A candidate's estimates for one input."""

    name: str
    seconds: float
    energy_j: float
    cost: float


@dataclass(frozen=True, slots=True)
class Choice:
    """Where an input goes (`LOCAL` or a successor's name), what that takes, and the others, best first."""

    target: str
    seconds: float
    energy_j: float
    _among: tuple[int, Sequence[Candidate], Objective] = field(repr=False, compare=False)
    """What it was chosen by: most choices are followed without a look at the others."""

    @property
    def runners_up(self) -> tuple[Option, ...]:
        """What would be next, best first; of equals, the one that was given first."""
        n, candidates, objective = self._among
        options = []
        for c in candidates:
            seconds = c.seconds(n)
            joules = c.joules(n, seconds)
            cost = objective.per_second * seconds + objective.per_joule * joules
            options.append(Option(c.name, seconds, joules, cost))
        return tuple(sorted((o for o in options if o.name != self.target), key=attrgetter("cost")))


def choose(n: int, candidates: Sequence[Candidate], objective: Objective = TIME) -> Choice:
    """The candidate with the least cost for length n; of equals the first, so put this device first (eq. 6).

    Raises RouteError if there is no candidate.
    """
    per_second, per_joule = objective.per_second, objective.per_joule
    best: Candidate | None = None
    least = best_s = best_j = 0.0
    for c in candidates:
        seconds = c.fixed_s + c.per_item_s * n + c.curve.at(n)
        joules = c.fixed_j + c.per_item_j * n + c.watts * seconds
        cost = per_second * seconds + per_joule * joules
        if best is None or cost < least:
            best, least, best_s, best_j = c, cost, seconds, joules
    if best is None:
        raise RouteError(
            "no device may answer this input: none is left of those that answered lately. Try again later."
        )
    return Choice(best.name, best_s, best_j, (n, candidates, objective))
