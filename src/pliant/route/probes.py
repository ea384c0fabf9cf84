"""When to probe a device that looks slower than before, with an input that no request needs.

Nothing else would show that it has recovered: inputs go elsewhere.
"""

from collections.abc import Callable
from typing import final

from pliant.ir.curve import Curve

_CONFIRM_S = 1.0
_SLOWED = 1.25


@final
class Probes:
    """The next is due at `at_s`, `after_s` after the last answer or probe (None: never); sooner in doubt.

    `best` is the quickest that the device has been.
    """

    def __init__(self, after_s: float | None, best: Curve | None) -> None:
        self._after_s = after_s or float("inf")
        self._best = best
        self._here_s = float("-inf")
        self.at_s = self._after_s

    def is_overdue(self, now_s: float) -> bool:
        """Whether the last answer of this device is longer ago than probes are apart."""
        return now_s - self._here_s > self._after_s

    def answered(self, curve: Curve | None, is_in_doubt: bool, last_n: int | None, now_s: float) -> None:
        """An answer came; answers take `curve` now. Where that is new, the last input was `last_n` long."""
        self._here_s = now_s
        self.at_s = now_s + (_CONFIRM_S if is_in_doubt else self._after_s)
        best = self._best
        if curve is None or last_n is None:
            return
        if best is None or curve.at(last_n) < best.at(last_n):
            self._best = curve

    def length(
        self,
        curve: Curve | None,
        is_in_doubt: bool,
        last_n: int,
        others_s: Callable[[int], float],
        now_s: float,
    ) -> int:
        """The length to try now, one at which the device would be chosen if it had recovered; 0 for none.

        `others_s` is the least seconds elsewhere by length.
        """
        self.at_s = now_s + self._after_s
        best = self._best
        if curve is None or best is None or curve.at(last_n) <= _SLOWED * best.at(last_n):
            return 0
        return last_n if is_in_doubt else _longest_won(best, last_n, others_s)


def _longest_won(best: Curve, last_n: int, others_s: Callable[[int], float]) -> int:
    """The last length that came, if `best` were quickest at it, or the longest below of that kind; or 0.

    What came last may be none of it: below, short inputs are kept while this device is slow, and the
    long ones go further up.
    """
    won, lost = 0, last_n + 1
    while lost - won > 1:
        middle = (won + lost) // 2
        if best.at(middle) <= others_s(middle):
            won = middle
        else:
            lost = middle
    return won
