"""Divide one memory budget among models so that the total loading time of their answers is minimal.

Each model states the sizes that it may hold, and the time that an answer then spends on loading the rest. The
sum of these times over all models is minimised, each weighted by its request rate: memory usually saves more
for a frequently requested model. When memory is short, the weights that save least per byte are freed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp

from pliant.errors import BudgetError

WINDOW_S = 60.0
"""Time constant, in seconds, over which a model's requests are counted."""


@dataclass(frozen=True, slots=True)
class MemoryOption:
    """One size that a model may hold: `n_bytes`, and the `seconds` that an answer then spends on loading."""

    n_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class MemoryDemand:
    """The sizes that model `name` may hold, at least one of `holdings`, by increasing bytes.

    `weight` is its request rate relative to the other models.
    """

    name: str
    holdings: tuple[MemoryOption, ...]
    weight: float = 1.0

    @property
    def least_bytes(self) -> int:
        """The smallest size that it may hold."""
        return self.holdings[0].n_bytes

    def at_least(self, n_bytes: int) -> "MemoryDemand":
        """Return the demand with every holding raised to at least `n_bytes`, e.g. if that much is in use."""
        lifted = (replace(one, n_bytes=max(one.n_bytes, n_bytes)) for one in self.holdings)
        return replace(self, holdings=tuple(lifted))

    def at_most(self, n_bytes: int) -> "MemoryDemand":
        """Return the demand without holdings above `n_bytes`; the smallest is always kept."""
        fitting = tuple(one for one in self.holdings if one.n_bytes <= n_bytes)
        return replace(self, holdings=fitting or self.holdings[:1])


@dataclass(frozen=True, slots=True)
class RequestCount:
    """Requests of about the last `WINDOW_S` as of `at_s`, with exponentially decaying weight."""

    at_s: float
    count: float = 0.0

    def at(self, now_s: float) -> float:
        """Return the decayed count at a later time."""
        return self.count * exp((self.at_s - now_s) / WINDOW_S)

    def plus_one(self, now_s: float) -> "RequestCount":
        """Return the count with one more request at `now_s`."""
        return RequestCount(now_s, self.at(now_s) + 1.0)


@dataclass(frozen=True, slots=True)
class _Division:
    """The holdings of some models, in their order, with their sums of bytes and weighted seconds."""

    n_bytes: int
    cost_s: float
    holdings: tuple[MemoryOption, ...]


def divide(demands: Sequence[MemoryDemand], budget_bytes: int) -> tuple[MemoryOption, ...]:
    """Return the holding of each model, in order, with the least weighted sum of seconds in `budget_bytes`.

    Among equals, the fewest bytes. Raises BudgetError if the models' smallest holdings exceed the budget.
    """
    least = sum(demand.least_bytes for demand in demands)
    if least > budget_bytes:
        shares = ", ".join(f"{demand.name} {demand.least_bytes}" for demand in demands)
        raise BudgetError(
            f"the {len(demands)} models that share {budget_bytes} bytes of memory take at least {least} "
            f"({shares}). Give at least {least} bytes, or open fewer models.",
            least - budget_bytes,
        )
    found = [_Division(0, 0.0, ())]
    for demand in demands:
        least -= demand.least_bytes  # of the following models, which must fit too
        found = _pareto_front(
            _Division(
                division.n_bytes + one.n_bytes,
                division.cost_s + demand.weight * one.seconds,
                (*division.holdings, one),
            )
            for division in found
            for one in demand.holdings
            if division.n_bytes + one.n_bytes + least <= budget_bytes
        )
    return found[-1].holdings


def cost_s(demands: Sequence[MemoryDemand], holdings: Sequence[MemoryOption]) -> float:
    """Return the weighted loading time of all answers with these holdings, as `divide` counts it."""
    return sum(demand.weight * one.seconds for demand, one in zip(demands, holdings, strict=True))


def _pareto_front(divisions: Iterator[_Division]) -> list[_Division]:
    """Return the divisions that no other equals or beats in both bytes and seconds, by increasing bytes."""
    kept: list[_Division] = []
    for division in sorted(divisions, key=lambda one: (one.n_bytes, one.cost_s)):
        if not kept or division.cost_s < kept[-1].cost_s:
            kept.append(division)
    return kept
