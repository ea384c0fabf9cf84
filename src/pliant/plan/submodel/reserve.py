"""Safety reserves of plans: coarse steps of an observed dilation, and IO for late base planes."""

from math import ceil, log

from pliant.ir.cost import Cost
from pliant.ir.dilation import Dilation

_STEP = 1.15
_MOST_RESERVE = 3.0


ANTICIPATED_DILATIONS = tuple(Dilation(f, f) for f in (round(_STEP**i, 6) for i in (2, 4, 6, 9, 12)))
"""Dilations to plan for before they are observed: other jobs on the cores."""


def round_dilation(factor: float, before: float) -> float:
    """Return `factor` rounded up to a power of 1.15; `before` while it is at most 1.5 steps above `factor`.

    A plan thus covers at least the observed dilation, and is not replaced after each answer.
    """
    if factor <= before < factor * _STEP**1.5:
        return before
    return float(round(_STEP ** ceil(log(factor) / log(_STEP) - 1e-9), 6))


def io_reserve(costs: Cost, expected: Cost | None, n_bytes: int) -> float:
    """How many times slower than in `costs` a read of `n_bytes` may be: the ratio of `costs` to `expected`.

    `costs` are 95th percentiles and `expected` medians: a slow read is assumed to exceed the percentile by
    the same factor as that exceeds the median. From 1 (no `expected`, or no spread) to 3.
    """
    if expected is None:
        return 1.0
    spread = costs.link("io").seconds(n_bytes) / expected.link("io").seconds(n_bytes)
    return min(max(spread, 1.0), _MOST_RESERVE)
