"""How much of a round trip's deviation from the usual persists after a given time.

Some links change with every packet, some stay the same for a second, some for minutes. How much the last trip
predicts the next is learned per time between them.
"""

from bisect import bisect_right

BOUNDS_S = tuple(0.125 * 2.0**k for k in range(10))
"""Boundaries between ages; all times beyond the last one form one age."""
_FORGET = 63.0 / 64.0
_DOUBT = 4.0


class Persistence:
    """Regression through 0 of a trip's deviation from the usual on that of the previous trip, per age.

    The coefficient is 0..1. With few observations, the next lower age's is used; below the first age it is 0.
    """

    def __init__(self) -> None:
        ages = len(BOUNDS_S) + 1
        self._m, self._xx, self._xy = [0.0] * ages, [0.0] * ages, [0.0] * ages
        self._parts = [0.0] * ages

    def observe(self, before_s: float, off_s: float, age_s: float) -> None:
        """Record a trip `off_s` from the usual, `age_s` after one that was `before_s` off."""
        if not before_s:
            return
        k = bisect_right(BOUNDS_S, age_s)
        self._m[k] = self._m[k] * _FORGET + 1.0
        self._xx[k] = self._xx[k] * _FORGET + before_s * before_s
        self._xy[k] = self._xy[k] * _FORGET + before_s * off_s
        part = self._parts[k - 1] if k else 0.0
        for age in range(k, len(self._parts)):
            m = self._m[age]
            if m:
                own = min(max(self._xy[age] / self._xx[age], 0.0), 1.0)
                part = (m * own + _DOUBT * part) / (m + _DOUBT)
            self._parts[age] = part

    def at(self, age_s: float) -> float:
        """Return the fraction that persists after `age_s`."""
        return self._parts[bisect_right(BOUNDS_S, age_s)]


def next_age_s(age_s: float) -> float:
    """Return the first age after `age_s` with another fraction; infinity if there is none."""
    k = bisect_right(BOUNDS_S, age_s)
    return BOUNDS_S[k] if k < len(BOUNDS_S) else float("inf")
