"""The time that an answer spends on the event loop, on the way back from the compute thread."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from typing import final

_WINDOW, _KEPT = 256, 0.95
_LATELY_S = 10.0


@final
class ReturnDelay:
    """Of the last 256 answers within 10 s, 95 % came back within `bound_s`.

    Without the time limit, a rarely used node would refuse requests because of a delay long ago. The way to
    the thread does not count: over HTTP a deadline starts when its request arrived
    (serve/http/connections/arrival_loop.py).
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, float]] = deque()
        self._ranked: list[float] = []
        self._newest_s, self._bound_s = clock(), 0.0

    @property
    def bound_s(self) -> float:
        """The bound of recent answers; 0 without any."""
        return self._bound_s if self._clock() - self._newest_s <= _LATELY_S else 0.0

    def observe(self, seconds: float) -> None:
        """Record that an answer reached its caller `seconds` after the work ended."""
        now_s = self._newest_s = self._clock()
        seen, ranked = self._seen, self._ranked
        while seen and (len(seen) == _WINDOW or now_s - seen[0][0] > _LATELY_S):
            del ranked[bisect_left(ranked, seen.popleft()[1])]
        seen.append((now_s, max(seconds, 0.0)))
        insort(ranked, seen[-1][1])
        self._bound_s = ranked[int(_KEPT * (len(ranked) - 1))]
