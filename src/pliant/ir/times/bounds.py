"""Bounds on times that follow what was observed: adaptive conformal inference."""

from collections import deque
from math import exp, inf
from statistics import median
from typing import final

from pliant.ir.times.timing import Timing

KEPT = 0.95
"""The part of the observations that a bound holds for, unless another is asked for."""
_STEP = 0.05
_MOST_SLACK = 4.0
_MOST = 64.0
_N_PACE = 9
_N_SLOWER, _N_QUICKER = 2, 4
_QUICKER = 1.25
_N_WINDOW = 40
_RANK = 2
"""Of 40 past and one coming observation, exchangeable, the second largest is exceeded by 2 in 41: 4.9 %."""


@final
class AdaptiveBound:
    """How predicted times are corrected so that bounds hold for `kept` of what is observed.

    `pace` corrects medians: the median of the last nine ratios of observed to expected time, so that four
    outliers among them do not move it; of fewer once the device has changed: of the last two where both
    were beyond their bounds, of the last four where all were quicker than `pace` by a quarter. `factor`
    corrects bounds: the second largest of the last 40 ratios of observed time to predicted bound, times
    `slack`. Before anything was observed all ratios count as 1, so one outlier moves nothing, two slow
    observations are enough to learn that a device has become slower, and 40 that it has recovered, or four
    that were quicker than `pace` by a quarter: after these, what came before counts as 1 again. `slack`
    grows by 5 % with an observation beyond its bound and shrinks by 0.25 % with any other (Gibbs and
    Candes, "Adaptive conformal inference under distribution shift", NeurIPS 2021, eq. 2, on a logarithmic
    scale). By their proposition 4.1 this gives the coverage in the long run whatever the times do, as long
    as `slack` stays within its limits of 1/4 and 4.
    """

    __slots__ = (
        "_kept",
        "_n_quicker",
        "_n_slower",
        "_paces",
        "_ranked",
        "_ratios",
        "_was_long",
        "pace",
        "slack",
    )

    def __init__(self, kept: float = KEPT) -> None:
        self._kept = kept
        self._was_long = False
        self._n_slower = self._n_quicker = 0
        self._paces: deque[float] = deque(maxlen=_N_PACE)
        self._ratios: deque[float] = deque([1.0] * _N_WINDOW, maxlen=_N_WINDOW)
        self._ranked = [1.0]
        self.pace = 1.0
        self.slack = 1.0

    def factor(self, most: float = inf) -> float:
        """What predicted bounds are multiplied by, at most `most`.

        Ratios beyond that are lost in any case. Where they are more than 5 % the largest other counts.
        """
        if self._ranked[0] <= most:
            return min(self._ranked[0] * self.slack, most)
        return min(next((ratio for ratio in self._ranked if ratio <= most), most) * self.slack, most)

    def corrected(self, predicted: Timing) -> Timing:
        """`predicted` at the pace lately, and what `kept` of the times stay under."""
        median_s = predicted.median_s * self.pace
        return Timing(median_s, max(predicted.p95_s * self.factor(), median_s))

    def observe(self, predicted: Timing, seconds: float, target_s: float = inf, most: float = inf) -> None:
        """Something took `seconds`, where `predicted` had been expected.

        With a `target_s`, a delay is taken to be a ratio or an interruption as long for whatever it
        interrupts, which leaves that much less of the target: the lesser of the two. Else what delays the
        smallest work would forbid all larger. One of a whole target is lost, unless the one before was as
        long. Ratios beyond `most` leave `slack` as it is: nothing could have avoided them. Times that are not
        finite, and what was expected to take no time, are ignored.
        """
        if not (predicted.median_s > 0.0 and 0.0 <= seconds < inf):
            return
        ratio = seconds / predicted.p95_s
        late_s = seconds - predicted.p95_s
        was_long, self._was_long = self._was_long, late_s >= target_s
        if self._was_long:
            ratio = ratio if was_long else _MOST
        elif late_s > 0.0 and target_s < inf:
            ratio = min(ratio, 1.0 / (1.0 - late_s / target_s))
        is_beyond = ratio > self.factor()
        if not is_beyond or ratio <= most:
            slack = self.slack * exp(_STEP * (self._kept if is_beyond else self._kept - 1.0))
            self.slack = min(max(slack, 1.0 / _MOST_SLACK), _MOST_SLACK)
        self._ratios.append(_limited(ratio))
        self._ranked = sorted(self._ratios, reverse=True)[_RANK - 1 :]
        pace = seconds / predicted.median_s
        self._paces.append(pace)
        self._n_slower = self._n_slower + 1 if is_beyond else 0
        self._n_quicker = self._n_quicker + 1 if pace * _QUICKER < self.pace else 0
        if self._n_slower == _N_SLOWER:
            self._keep(_N_SLOWER)
        elif self._n_quicker == _N_QUICKER:
            self._keep(_N_QUICKER)
            lately = [*self._ratios][-_N_QUICKER:]
            self._ratios.extend([1.0] * (_N_WINDOW - _N_QUICKER) + lately)
            self._ranked = sorted(self._ratios, reverse=True)[_RANK - 1 :]
        self.pace = _limited(median(self._paces))

    def _keep(self, n: int) -> None:
        """The device has changed: what it took before the last n observations says nothing any more."""
        while len(self._paces) > n:
            self._paces.popleft()


def _limited(factor: float) -> float:
    return min(max(factor, 1.0 / _MOST), _MOST)
