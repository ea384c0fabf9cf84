"""When to probe an endpoint that looks slower than before, with an input that serves no request.

Otherwise a recovery would go unnoticed, because inputs go elsewhere. While inputs arrive, an endpoint of
several levels is probed more often: even if it is no longer the most accurate in time, it may still be the
fastest.
"""

from collections.abc import Callable
from typing import final

from pliant.ir.curve import Curve

_CONFIRM_S = 0.5
_SLOWED = 1.25
_SHARE = 0.33
"""Maximum share of an endpoint's time for probes while inputs arrive."""


@final
class ProbeSchedule:
    """The next probe is due at `at_s`, `after_s` after the last answer or probe (None: never).

    It is sooner in doubt. `best` is the device's fastest curve so far.
    """

    def __init__(self, after_s: float | None, best: Curve | None) -> None:
        self._after_s = after_s or float("inf")
        self._best = best
        self._here_s = float("-inf")
        self._n_inputs = 0
        self.at_s = self._after_s

    def is_overdue(self, now_s: float) -> bool:
        """Return whether this device's last answer is older than the probe interval."""
        return now_s - self._here_s > self._after_s

    def record_answer(
        self,
        curve: Curve | None,
        is_in_doubt: bool,
        last_n: int | None,
        now_s: float,
        least_s: float | None = None,
    ) -> None:
        """Record an answer; answers now take `curve`. If that is new, the last input had length `last_n`.

        With several levels, the fastest answer takes `least_s`.
        """
        self._here_s = now_s
        self.at_s = now_s + (_CONFIRM_S if is_in_doubt else self._after_s)
        if curve is not None and last_n is not None:
            self.record_curve(curve, last_n, None if is_in_doubt else least_s)

    def record_curve(self, curve: Curve, last_n: int, least_s: float | None) -> None:
        """Record that answers take `curve`; see `record_answer`. `least_s` is None if no probe is urgent."""
        best, seconds = self._best, curve.at(last_n)
        if best is None or seconds < best.at(last_n):
            self._best = curve
        elif least_s is None or self._after_s == float("inf"):
            return
        elif seconds > _SLOWED * best.at(last_n):
            self.at_s = min(self.at_s, self._here_s + self._pause_s(least_s))

    def next_length(
        self,
        curve: Curve | None,
        is_in_doubt: bool,
        last_n: int,
        others_s: Callable[[int], float],
        now_s: float,
        n_inputs: int = 0,
        least_s: float | None = None,
        *,
        is_awaited: bool = False,
    ) -> int:
        """Return the length to probe now, at which a recovered endpoint would be chosen; 0 for none.

        `others_s` is the least seconds elsewhere by length; `n_inputs` have arrived so far. With several
        levels, the fastest of which takes `least_s`, every length is probed at that level. If it
        `is_awaited`, other nodes would send inputs after a recovery.
        """
        is_overdue, is_asked = self.is_overdue(now_s), is_awaited or n_inputs > self._n_inputs
        self.at_s, self._n_inputs = now_s + self._after_s, n_inputs
        best = self._best
        if curve is None or best is None or curve.at(last_n) <= _SLOWED * best.at(last_n):
            return 0
        if least_s is None:
            return last_n if is_in_doubt else _longest_won(best, last_n, others_s)
        self.at_s = now_s + self._pause_s(least_s)
        return last_n if is_in_doubt or is_asked or is_overdue else 0

    def _pause_s(self, least_s: float) -> float:
        return min(max(_CONFIRM_S, least_s / _SHARE), self._after_s)


def _longest_won(best: Curve, last_n: int, others_s: Callable[[int], float]) -> int:
    """Return the last length, if `best` were fastest at it, else the longest shorter one that is; or 0.

    The last length may not qualify: lower nodes keep short inputs while this device is slow, and the long
    ones go further upstream.
    """
    won, lost = 0, last_n + 1
    while lost - won > 1:
        middle = (won + lost) // 2
        if best.at(middle) <= others_s(middle):
            won = middle
        else:
            lost = middle
    return won
