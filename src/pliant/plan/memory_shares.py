"""Divide one budget of memory among models, so that loading costs their answers the least time in all.

Each model tells what it may hold, and what an answer then spends on loading the rest. What is held for a
model that is asked often saves more: the sum of what all models spend is least, each weighted by how often it
is asked. So where memory is short, what saves least for its bytes is let go of.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp

from pliant.errors import BudgetError

WINDOW_S = 60.0
"""How often a model is asked is counted over about so long."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one model may hold: `n_bytes`, and the `seconds` that an answer then spends on loading."""

    n_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class MemoryDemand:
    """What the model `name` may hold, at least one of `holdings`, by rising bytes.

    `weight` is how often it is asked, beside the others.
    """

    name: str
    holdings: tuple[Holding, ...]
    weight: float = 1.0

    @property
    def least_bytes(self) -> int:
        """What it holds at the least."""
        return self.holdings[0].n_bytes

    def at_least(self, n_bytes: int) -> "MemoryDemand":
        """The demand while the model cannot do with fewer bytes: it takes these where it would hold less."""
        lifted = (replace(one, n_bytes=max(one.n_bytes, n_bytes)) for one in self.holdings)
        return replace(self, holdings=tuple(lifted))

    def at_most(self, n_bytes: int) -> "MemoryDemand":
        """The demand of a model that takes no more than `n_bytes`, unless that is less than the least."""
        fitting = tuple(one for one in self.holdings if one.n_bytes <= n_bytes)
        return replace(self, holdings=fitting or self.holdings[:1])


@dataclass(frozen=True, slots=True)
class RequestCount:
    """Requests of about the last `WINDOW_S`, as of `at_s`: older ones count ever less."""

    at_s: float
    count: float = 0.0

    def at(self, now_s: float) -> float:
        """What they count at a later time."""
        return self.count * exp((self.at_s - now_s) / WINDOW_S)

    def plus_one(self, now_s: float) -> "RequestCount":
        """With one that came just now."""
        return RequestCount(now_s, self.at(now_s) + 1.0)


@dataclass(frozen=True, slots=True)
class _Division:
    """Some models' holdings, in their order, with the sums of bytes and of weighted seconds."""

    n_bytes: int
    cost_s: float
    holdings: tuple[Holding, ...]


def divide(demands: Sequence[MemoryDemand], budget_bytes: int) -> tuple[Holding, ...]:
    """The holding of each model, in their order, of `budget_bytes` at most together: the least weighted sum
    of seconds there is, and of equals the fewest bytes.

    Raises BudgetError where the least that each can do with is more than the budget.
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
        least -= demand.least_bytes  # of those that follow, which must fit as well
        found = _worthwhile(
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


def cost_s(demands: Sequence[MemoryDemand], holdings: Sequence[Holding]) -> float:
    """What all answers spend on loading with these holdings, weighted as `divide` does."""
    return sum(demand.weight * one.seconds for demand, one in zip(demands, holdings, strict=True))


def _worthwhile(divisions: Iterator[_Division]) -> list[_Division]:
    """Without those that another beats or equals in bytes and seconds; by rising bytes."""
    kept: list[_Division] = []
    for division in sorted(divisions, key=lambda one: (one.n_bytes, one.cost_s)):
        if not kept or division.cost_s < kept[-1].cost_s:
            kept.append(division)
    return kept
