"""The expected time to compile for a new shape of a model, by the times of earlier ones."""

from collections import deque
from statistics import median
from typing import final

from pliant.ir.times.timing import Timing

_FIRST_S = 0.1
"""Expected before any; a few kernels of a small model that are not in the cache take as long."""
_KEPT = 8


@final
class CompileTimes:
    """The median of the last times, and the longest of them as the bound. The owner serialises `observe`."""

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=_KEPT)
        self.expected = Timing(_FIRST_S, _FIRST_S)

    def observe(self, seconds: float) -> None:
        """Record that compiling for one shape took `seconds`."""
        self._seen.append(seconds)
        self.expected = Timing(median(self._seen), max(self._seen))
