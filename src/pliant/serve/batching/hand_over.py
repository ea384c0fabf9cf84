"""What a request and its answer spend on the event loop, on the way to the thread that computes and back."""

from collections import deque
from typing import final

_WINDOW, _EACH = 64, 8
_KEPT = 0.99


@final
class HandOver:
    """The way back is timed: of the last 64 answers all but one were handed over within half of `bound_s`.

    The way there cannot be: who sent a request waits while the loop has not read it. It counts as the same.
    """

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._n = 0
        self.bound_s = 0.0

    def observe(self, seconds: float) -> None:
        """So long after the end of the work the answer came to whoever waits for it."""
        self._seconds.append(max(seconds, 0.0))
        self._n += 1
        if self._n % _EACH == 0:
            ranked = sorted(self._seconds)
            self.bound_s = 2.0 * ranked[int(_KEPT * (len(ranked) - 1))]
