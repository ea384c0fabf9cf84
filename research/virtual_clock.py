"""A virtual clock with its pending events."""

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any, final


@final
class VirtualClock:
    """Events run in order of time; those of equal times in the order of scheduling."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._order = count()

    def at(self, when_s: float, act: Callable[..., object], *arguments: Any) -> None:
        """Schedule `act(*arguments)` at `when_s`, which must not be in the past."""
        heapq.heappush(self._events, (when_s, next(self._order), act, arguments))

    def after(self, wait_s: float, act: Callable[..., object], *arguments: Any) -> None:
        """Schedule `act(*arguments)` in `wait_s` >= 0."""
        heapq.heappush(self._events, (self.now_s + wait_s, next(self._order), act, arguments))

    def run_until(self, when_s: float) -> None:
        """Run the events up to `when_s`, which is then the present time."""
        events, pop = self._events, heapq.heappop
        while events and events[0][0] <= when_s:
            self.now_s, _, act, arguments = pop(events)
            act(*arguments)
        self.now_s = when_s

    def step(self) -> None:
        """Run the next event. Raises IndexError if there is none."""
        self.now_s, _, act, arguments = heapq.heappop(self._events)
        act(*arguments)
