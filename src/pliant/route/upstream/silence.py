"""Track whether an upstream is silent: its answers are overdue, and it was not heard since."""

from math import inf
from typing import final

_DOUBTFUL = 2.0


@final
class Silence:
    """Of one upstream. `is_silent` from an answer that was overdue beyond its bound until it is heard."""

    def __init__(self) -> None:
        self.is_silent = False
        self._n_overdue = 0
        self._back_s = -inf
        self._overdue_s = inf

    def overdue(self, late_s: float, spread_s: float, now_s: float) -> bool:
        """An answer is `late_s` later than expected, where `spread_s` are usual; whether it is not the first
        since the last that came: that one may have met a gap of the link."""
        self.is_silent = late_s > spread_s
        self._n_overdue += 1
        self._overdue_s = now_s
        return self._n_overdue > 1

    @property
    def least_bound(self) -> float:
        """How many times as long as its time the way may take at least, by what is overdue: after an answer
        that was, requests are hedged or go elsewhere until one comes."""
        return _DOUBTFUL if self._n_overdue else 1.0

    def answered(self) -> None:
        """An answer came."""
        self._n_overdue, self._overdue_s = 0, inf

    def heard(self, now_s: float) -> None:
        """An answer or a ping came."""
        if self.is_silent:
            self.is_silent, self._back_s = False, now_s

    def is_forgiven(self, now_s: float, after_s: float) -> bool:
        """Whether overdue answers raised what its answers may take, the last longer ago than that; said once.

        Then it is not in doubt any more, nor after a single one so long ago.
        """
        if now_s - self._overdue_s <= after_s:
            return False
        was_raised = self._n_overdue > 1
        self._n_overdue, self._overdue_s = 0, inf
        return was_raised

    def held_up(self, away_s: float, now_s: float) -> bool:
        """Whether it was silent while something was away, at least in part: that says nothing of the way."""
        return self.is_silent or now_s - away_s < self._back_s
