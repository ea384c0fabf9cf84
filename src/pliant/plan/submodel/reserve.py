"""What plans keep in hand: coarse steps of an observed dilation, and IO for base planes that are late."""

from math import ceil, log

from pliant.ir.cost import Cost
from pliant.ir.dilation import Dilation

_STEP = 1.15
_MOST_RESERVE = 3.0


AHEAD = tuple(Dilation(f, f) for f in (round(_STEP**i, 6) for i in (2, 4, 6, 9, 12)))
"""Dilations that are worth a plan before they are observed: other jobs on the cores."""


def coarse(factor: float, before: float) -> float:
    """`factor` rounded up to a power of 1.15; `before` while it is at most a step and a half above `factor`.

    So a plan is made for at least the dilation observed, and not anew after each answer.
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
