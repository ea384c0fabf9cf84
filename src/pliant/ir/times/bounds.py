"""Bounds on times that follow what was observed: adaptive conformal inference."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from math import exp, inf
from typing import final

from pliant.ir.times.timing import Timing

COVERAGE = 0.95
"""The default fraction of observations within a bound."""
_STEP = 0.05
_MOST_SLACK = 4.0
_MOST = 64.0
_N_PACE = 9
_N_SLOWER, _N_QUICKER = 2, 4
_QUICKER = 1.25
_N_WINDOW = 40
_RANK = 2
"""Of 40 past and one future exchangeable observation, 2 of 41 exceed the second largest: 4.9 %."""


@final
class AdaptiveBound:
    """Corrects predicted times so that bounds hold for a fraction `kept` of observations.

    `pace` corrects medians: it is the median of the last nine ratios of observed to expected time, which
    tolerates four outliers. After a change of the device, fewer ratios count: the last two if one exceeded
    its bound, and the next did, or was slower than `pace` by a quarter, the last four if all were faster than
    `pace` by a quarter. `factor` corrects bounds: it is the second largest of the last 40 ratios of observed
    time to predicted bound, times `slack`. Initially all ratios are `before`. One outlier therefore changes
    nothing, two slow observations suffice to detect a slow-down, and a recovery takes 40 observations, or
    four that were faster than `pace` by a quarter: after these, earlier ratios count as 1 again. `slack`
    grows by 5 % with an observation beyond its bound and shrinks by 0.25 % with any other (Gibbs and Candes,
    "Adaptive conformal inference under distribution shift", NeurIPS 2021, eq. 2, on a logarithmic scale). By
    their proposition 4.1 this gives the coverage in the long run for any sequence of times, as long as
    `slack` stays within its limits of 1/4 and 4.
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

    def __init__(self, kept: float = COVERAGE, before: float = 1.0) -> None:
        self._kept = kept
        self._was_long = False
        self._n_slower = self._n_quicker = 0
        self._paces: deque[float] = deque(maxlen=_N_PACE)
        self._ratios: deque[float] = deque([before] * _N_WINDOW, maxlen=_N_WINDOW)
        self._ranked = [before] * _N_WINDOW
        """The ratios in ascending order."""
        self.pace = 1.0
        self.slack = 1.0

    def factor(self, most: float = inf) -> float:
        """Return the factor for predicted bounds, at most `most`.

        Ratios above `most` are missed in any case. If they are more than 5 %, the largest other ratio is
        used.
        """
        ratio = self._ranked[-_RANK]
        if ratio > most:
            ratio = next((ratio for ratio in reversed(self._ranked[:-_RANK]) if ratio <= most), most)
        factor = ratio * self.slack
        return factor if factor < most else most

    def correct(self, predicted: Timing) -> Timing:
        """Return `predicted` at the current pace, with a bound for `kept` of the times."""
        median_s = predicted.median_s * self.pace
        return Timing(median_s, max(predicted.p95_s * self.factor(), median_s))

    def observe(self, predicted: Timing, seconds: float, target_s: float = inf, most: float = inf) -> None:
        """Record an observation of `seconds` for the prediction `predicted`.

        With a `target_s`, a delay is modelled as a ratio, or as an interruption of fixed length that reduces
        the target for any work, whichever is smaller; otherwise a delay of the smallest work would rule out
        all larger work. A delay of a whole target is treated as lost, unless the previous one was as long.
        Ratios above `most` leave `slack` unchanged, because no plan could have avoided them. Non-finite
        times, and predictions of no time, are ignored.
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
        self._add_ratio(_limited(ratio))
        pace = seconds / predicted.median_s
        self._paces.append(pace)
        is_slower = is_beyond or (self._n_slower > 0 and pace > _QUICKER * self.pace)
        self._n_slower = self._n_slower + 1 if is_slower else 0
        self._n_quicker = self._n_quicker + 1 if pace * _QUICKER < self.pace else 0
        if self._n_slower == _N_SLOWER:
            self._keep(_N_SLOWER)
            if not is_beyond:  # the first may be an outlier
                self._paces.remove(max(self._paces))
        elif self._n_quicker == _N_QUICKER:
            self._keep(_N_QUICKER)
            lately = [*self._ratios][-_N_QUICKER:]
            self._ratios.extend([1.0] * (_N_WINDOW - _N_QUICKER) + lately)
            self._ranked = sorted(self._ratios)
        self.pace = _limited(_median(self._paces))

    def _add_ratio(self, ratio: float) -> None:
        ranked = self._ranked
        del ranked[bisect_left(ranked, self._ratios[0])]
        insort(ranked, ratio)
        self._ratios.append(ratio)

    def _keep(self, n: int) -> None:
        """Drop times before the last n: the device has changed, and they no longer apply."""
        while len(self._paces) > n:
            self._paces.popleft()


def _median(values: Iterable[float]) -> float:
    """`statistics.median`, in a fifth of its time for a few values."""
    ranked = sorted(values)
    middle = len(ranked) // 2
    return ranked[middle] if len(ranked) % 2 else (ranked[middle - 1] + ranked[middle]) / 2.0


def _limited(factor: float) -> float:
    return min(max(factor, 1.0 / _MOST), _MOST)
