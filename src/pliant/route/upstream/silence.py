"""Track whether an upstream is silent: its answers are overdue, and it was not heard since."""

from math import inf
from typing import final

_DOUBTFUL = 2.0


@final
class SilenceDetector:
    """One upstream's silence: `is_silent` from an answer overdue beyond its bound until it is heard."""

    def __init__(self) -> None:
        self.is_silent = False
        self._n_overdue = 0
        self._back_s = -inf
        self._overdue_s = inf

    def record_overdue(self, late_s: float, spread_s: float, now_s: float) -> bool:
        """Record an answer `late_s` later than expected, with a usual spread of `spread_s`.

        Returns whether it is not the first since the last answer: the first may have met a gap of the link.
        """
        self.is_silent = late_s > spread_s
        self._n_overdue += 1
        self._overdue_s = now_s
        return self._n_overdue > 1

    @property
    def least_bound(self) -> float:
        """Least factor of the way's bound: after an overdue answer, requests are hedged or sent elsewhere."""
        return _DOUBTFUL if self._n_overdue else 1.0

    def record_answer(self) -> None:
        """Record an answer."""
        self._n_overdue, self._overdue_s = 0, inf

    def record_contact(self, now_s: float) -> None:
        """Record an answer or a ping."""
        if self.is_silent:
            self.is_silent, self._back_s = False, now_s

    def is_forgiven(self, now_s: float, after_s: float) -> bool:
        """Return whether overdue answers had raised its bound, the last more than `after_s` ago; once only.

        This clears the doubt, also after a single overdue answer that long ago.
        """
        if now_s - self._overdue_s <= after_s:
            return False
        was_raised = self._n_overdue > 1
        self._n_overdue, self._overdue_s = 0, inf
        return was_raised

    def was_silent_during(self, away_s: float, now_s: float) -> bool:
        """Return whether it was silent during part of an exchange, which then says nothing about the way."""
        return self.is_silent or now_s - away_s < self._back_s
