"""Predict the time of a batch from the times of its requests alone, learned from previous batches."""

from typing import final

from pliant.ir.times.bounds import AdaptiveBound
from pliant.ir.times.timing import Timing

_KEPT = 0.95
"""Fraction of batches within the bound. The plan of the queue has time to spare besides
(`overload.SPARE`), so that 99 of 100 requests are in time."""
_SHORT = 16
"""Mean length up to which batches gain alike; each doubling beyond is learned separately."""
_TRY_AGAIN = 256
"""Batches after which an unused kind is tried again, since the device may have changed."""


@final
class BatchTimes:
    """Times of batches by number of requests and mean length, each to a power of two.

    An unseen kind of batch is expected to gain as much as one of fewer requests, and is tried.
    """

    def __init__(self) -> None:
        self._classes: dict[tuple[int, int], AdaptiveBound] = {}
        self._tried: dict[tuple[int, int], int] = {}
        self._n_batches = 0
        self._found: dict[tuple[int, int], AdaptiveBound | None] = {}

    def expected(self, n: int, length: int, alone: Timing) -> Timing:
        """Expected time of a batch: `n` requests of `length` items in total, `alone` if run one by one."""
        key = _class(n, length)
        try:
            known = self._found[key]  # used several times between two batches
        except KeyError:
            fewer = (self._recent_bound((m, key[1])) for m in range(key[0], -1, -1))
            # Read once: a thread whose batch ends clears them at any time.
            known = self._found[key] = next((bound for bound in fewer if bound is not None), None)
        if known is None:
            return alone
        median_s = alone.median_s * known.pace
        return Timing(median_s, max(median_s, alone.median_s * known.factor()))

    def observe(self, n: int, length: int, alone: Timing, seconds: float) -> None:
        """Record that such a batch took `seconds`."""
        key = _class(n, length)
        self._n_batches += 1
        self._tried[key] = self._n_batches
        self._found.clear()
        known = self._classes.setdefault(key, AdaptiveBound(_KEPT))
        known.observe(Timing(alone.median_s, alone.median_s), seconds)

    def _recent_bound(self, key: tuple[int, int]) -> AdaptiveBound | None:
        is_old = self._n_batches - self._tried.get(key, 0) > _TRY_AGAIN
        return None if is_old and key[0] else self._classes.get(key)


def _class(n: int, length: int) -> tuple[int, int]:
    return (n - 1).bit_length(), max(length // n // _SHORT, 1).bit_length()
