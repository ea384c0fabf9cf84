"""Bounds on times that follow what was observed: adaptive conformal inference. Knows no clock."""

from collections import deque
from math import exp
from statistics import median
from typing import final

KEPT = 0.95
"""The part of the answers that a bound holds for."""
_STEP = 0.05
_MOST_SLACK = 4.0
_MOST_PACE = 64.0
_N_RECENT = 9


@final
class AdaptiveBound:
    """How predicted times are corrected so that bounds hold for `KEPT` of what is observed.

    `pace` is the median of the last nine ratios of observed to expected time, so that four outliers among
    them do not move it. `slack` widens or narrows the predicted bounds: it grows by 5 % with an observation
    beyond its bound and shrinks by 0.25 % with any other (Gibbs and Candes, "Adaptive conformal inference
    under distribution shift", NeurIPS 2021, eq. 2, on a logarithmic scale). Their proposition 4.1 then gives
    the coverage in the long run whatever the times do, while `slack` is within its limits of 1/4 and 4.
    """

    __slots__ = ("_ratios", "pace", "slack")

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=_N_RECENT)
        self.pace = 1.0
        self.slack = 1.0

    def seconds(self, expected_s: float, bound_s: float) -> float:
        """What `KEPT` of the times stay under, where `bound_s` was predicted; at least their median."""
        return max(bound_s * self.slack, expected_s) * self.pace

    def observe(self, expected_s: float, bound_s: float, seconds: float) -> None:
        """Something took `seconds`, where a median of `expected_s` and a bound of `bound_s` were predicted.

        Times that are not finite, and what was expected to take no time, are ignored.
        """
        if not (expected_s > 0.0 and 0.0 <= seconds < float("inf")):
            return
        is_beyond = seconds > self.seconds(expected_s, bound_s)
        self.slack *= exp(_STEP * (KEPT if is_beyond else KEPT - 1.0))
        self.slack = min(max(self.slack, 1.0 / _MOST_SLACK), _MOST_SLACK)
        self._ratios.append(seconds / expected_s)
        self.pace = min(max(median(self._ratios), 1.0 / _MOST_PACE), _MOST_PACE)
