"""What an answer spends on the event loop, on the way back from the thread that computed it."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from typing import final

_WINDOW, _KEPT = 256, 0.995
_LATELY_S = 10.0


@final
class HandOver:
    """Of the last 256 answers, in 10 s at most, 995 of 1,000 came back within `bound_s`.

    A node that is seldom asked would else refuse requests for what is long over. The way there is no part of
    it: a deadline counts from when its request came (serve/http/arrival_loop.py).
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, float]] = deque()
        self._ranked: list[float] = []
        self._newest_s, self._bound_s = clock(), 0.0

    @property
    def bound_s(self) -> float:
        """0 where nothing was seen lately."""
        return self._bound_s if self._clock() - self._newest_s <= _LATELY_S else 0.0

    def observe(self, seconds: float) -> None:
        """So long after the end of the work the answer came to whoever waits for it."""
        now_s = self._newest_s = self._clock()
        seen, ranked = self._seen, self._ranked
        while seen and (len(seen) == _WINDOW or now_s - seen[0][0] > _LATELY_S):
            del ranked[bisect_left(ranked, seen.popleft()[1])]
        seen.append((now_s, max(seconds, 0.0)))
        insort(ranked, seen[-1][1])
        self._bound_s = ranked[int(_KEPT * (len(ranked) - 1))]
