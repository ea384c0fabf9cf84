"""An event loop that knows since when the bytes that it reads may have waited for it."""

import asyncio
import selectors
import time
from typing import final

_AT_ONCE_S = 5e-5
"""A look at the sockets that takes less did not wait for any of them."""


class _TimedSelector(selectors.DefaultSelector):
    """`came_s` is when the bytes that the last look found came at the earliest."""

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
    """A busy loop reads late: each deadline counts from when its request came, not from when it was read."""

    def __init__(self) -> None:
        self._times = _TimedSelector()
        super().__init__(self._times)

    @property
    def came_s(self) -> float:
        """When what is read in this turn came, at the earliest; of the loop's clock."""
        return self._times.came_s


def arrival_s(loop: asyncio.AbstractEventLoop) -> float:
    """When bytes that `loop` reads now came, at the earliest; now for a loop that does not know."""
    return loop.came_s if isinstance(loop, ArrivalLoop) else loop.time()
