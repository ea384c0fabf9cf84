"""An event loop that knows how long received bytes may have waited for it."""

import asyncio
import selectors
import time
from typing import final

_AT_ONCE_S = 5e-5
"""A shorter `select` did not wait for any socket."""


class _TimedSelector(selectors.DefaultSelector):
    """`came_s` is the earliest arrival time of the bytes found by the last `select`."""

    def __init__(self) -> None:
        super().__init__()
        self.came_s = self._looked_s = time.monotonic()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        asked_s = time.monotonic()
        found = super().select(timeout)
        now_s = time.monotonic()
        self.came_s = self._looked_s if now_s - asked_s < _AT_ONCE_S else now_s
        self._looked_s = now_s
        return found


@final
class ArrivalLoop(asyncio.SelectorEventLoop):
    """Lets deadlines count from the arrival of a request: a busy loop reads it later."""

    def __init__(self) -> None:
        self._times = _TimedSelector()
        super().__init__(self._times)

    @property
    def came_s(self) -> float:
        """Earliest arrival of what is read in this turn, on the loop's clock."""
        return self._times.came_s


def arrival_s(loop: asyncio.AbstractEventLoop) -> float:
    """Earliest arrival of the bytes that `loop` reads now; the current time for other loops."""
    return loop.came_s if isinstance(loop, ArrivalLoop) else loop.time()
