"""Costs corrected by what was observed, and the IO reserve that their spread asks for."""

from dataclasses import dataclass, replace
from math import ceil, log

from pliant.errors import BudgetError
from pliant.ir.cost import Cost, CostTable

_STEP = 1.15
_MOST_RESERVE = 3.0


@dataclass(frozen=True, slots=True)
class Slowdown:
    """What a plan allows for beyond its profile: answers that take `factor` times as long as bounded, and
    reads that have become `reads` times slower than compute has. Below 1 for what is faster."""

    factor: float = 1.0
    reads: float = 1.0

    def __post_init__(self) -> None:
        if not (0 < self.factor < float("inf") and 0 < self.reads < float("inf")):
            raise BudgetError(f"slowdowns are positive factors, not {self.factor} and {self.reads}.")

    def covers(self, other: "Slowdown") -> bool:
        """Whether a plan that keeps its target under this slowdown keeps it under `other` as well."""
        return self.factor >= other.factor and self.factor * self.reads >= other.factor * other.reads

    @property
    def reason(self) -> str:
        """What a plan made for it says."""
        return (
            f"by the latest answers compute may take {self.factor:.2f} times as long as the profile's 95th "
            f"percentile and reads {self.factor * self.reads:.2f} times"
        )


AHEAD = tuple(Slowdown(round(_STEP**i, 6)) for i in (2, 4, 6, 9, 12))
"""Slowdowns that are worth a plan before they are observed: other jobs on the cores."""


def slowed(costs: CostTable, by: Slowdown) -> CostTable:
    """`costs` of a device that computes and reads that many times slower."""
    f = by.factor
    return replace(
        costs,
        layers=tuple(replace(row, alone_s=row.alone_s * f, busy_s=row.busy_s * f) for row in costs.layers),
        disk=costs.disk.times(f * by.reads),
        tokenise_s=costs.tokenise_s * f,
        embed_s=costs.embed_s * f,
        head_s=costs.head_s * f,
    )


def coarse(factor: float, before: float) -> float:
    """`factor` rounded up to a power of 1.15; `before` while it is at most a step and a half above `factor`.

    So a plan is made for at least the slowdown observed, and not anew after each answer.
    """
    if factor <= before < factor * _STEP**1.5:
        return before
    return float(round(_STEP ** ceil(log(factor) / log(_STEP) - 1e-9), 6))


def io_reserve(costs: Cost, expected: Cost | None, n_bytes: int) -> float:
    """How many times slower than by `costs` a read of `n_bytes` may be: as `costs` are than `expected`.

    `costs` are 95th percentiles and `expected` medians: what a slow read takes lies as far above the one as
    that above the other. From 1 (nothing expected, or no spread) to 3.
    """
    if expected is None:
        return 1.0
    spread = costs.link("io").seconds(n_bytes) / expected.link("io").seconds(n_bytes)
    return min(max(spread, 1.0), _MOST_RESERVE)
