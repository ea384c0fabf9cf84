"""An endpoint as a choice sees it: its levels of accuracy, and the way to it."""

from dataclasses import dataclass

from pliant.errors import RouteError
from pliant.ir.endpoint import NO_ANSWER_S, ServiceLevel
from pliant.route.choice.crowding import Crowding


@dataclass(frozen=True, slots=True)
class Candidate:
    """One endpoint for an input of length n: its `levels`, worst first, and the way to it.

    An answer takes `fixed_s` + `per_item_s` * n + curve(n) seconds: queueing, or round trip and bytes,
    besides the time spent answering (eq. 4). The first two vary: 95 % of ways take less than `way_bound`
    times that. This device spends `fixed_j` + `per_item_j` * n joules on it, and `watts` for the seconds that
    it takes, except the first `free_s` (eq. 8; eq. 9 with E_tx0 and P_tx). Where the devices of a cluster
    exchange by radio, a level's `exchange_j` is added, and `tail_j` for waking the radios and their tails.
    `crowding` describes the requests that depend on the endpoint. Levels' times include `compiling_s`.
    """

    name: str
    levels: tuple[ServiceLevel, ...]
    fixed_s: float = 0.0
    per_item_s: float = 0.0
    fixed_j: float = 0.0
    per_item_j: float = 0.0
    watts: float = 0.0
    way_bound: float = 1.0
    free_s: float = 0.0
    crowding: Crowding | None = None
    tail_j: float = 0.0
    compiling_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.levels:
            raise RouteError(f"{self.name} has no level of accuracy; give one at least.")

    @property
    def best(self) -> ServiceLevel:
        """The most accurate level."""
        return self.levels[-1]

    def behind(self, wait_s: float) -> "Candidate":
        """Return it behind a queue of `wait_s`: a separate estimate, to which `way_bound` does not apply.

        `dataclasses.replace` takes twice as long, and every choice does this for each upstream with a queue.
        """
        if not wait_s:
            return self
        fixed_s = self.fixed_s + wait_s
        return Candidate(
            self.name,
            self.levels,
            fixed_s,
            self.per_item_s,
            self.fixed_j,
            self.per_item_j,
            self.watts,
            (self.fixed_s * self.way_bound + wait_s) / fixed_s,
            self.free_s,
            self.crowding,
            self.tail_j,
            self.compiling_s,
        )

    def levels_for(self, n: int) -> tuple[ServiceLevel, ...]:
        """Return the levels with memory for an input of length n."""
        return tuple(level for level in self.levels if level.curve.at(n) < NO_ANSWER_S)

    def seconds(self, n: int) -> float:
        """Return the seconds until the most accurate answer to an input of length n arrives."""
        return self.fixed_s + self.per_item_s * n + self.best.curve.at(n)

    def joules(self, n: int, seconds: float, level: ServiceLevel | None = None) -> float:
        """Return the energy for an input of length n that takes `seconds` at `level`, by default the best."""
        joules = self.fixed_j + self.per_item_j * n + self.watts * max(seconds - self.free_s, 0.0)
        exchange = (level or self.best).exchange_j
        exchanged_j = 0.0 if exchange is None else exchange.at(n)
        return joules + exchanged_j + self.tail_j if exchanged_j else joules
