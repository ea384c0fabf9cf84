"""The idempotency cache: a repeated request is not run again."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Generic, TypeVar, final

T = TypeVar("T")


@dataclass(slots=True)
class _CacheEntry(Generic[T]):
    """A running or completed answer; a completed one is kept until `until_s`."""

    answer: "asyncio.Task[T]"
    until_s: float = inf
    n_waiting: int = 0


@final
class IdempotencyCache(Generic[T]):
    """Answers by request id: running ones, and the last `most` that completed within `keep_s` seconds.

    Answers with a `size` above `most_bytes` / `most` are not kept, so that all take at most `most_bytes`.
    Failed requests are removed, so that they can be retried.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        size: Callable[[T], int],
        keep_s: float = 30.0,
        most: int = 1024,
        most_bytes: int = 64 << 20,
    ) -> None:
        self._clock, self._size, self._keep_s = clock, size, keep_s
        self._most, self._largest = most, most_bytes // most
        self._running: dict[str, _CacheEntry[T]] = {}
        self._ended: OrderedDict[str, _CacheEntry[T]] = OrderedDict()
        """In order of completion."""

    def __len__(self) -> int:
        return len(self._running) + len(self._ended)

    async def __call__(self, id: str, answer: Callable[[], Awaitable[T]]) -> T:
        """Return the answer of `id`: computed now, or that of its first arrival.

        Raises the computation's errors. When all waiting callers are cancelled, the computation is cancelled
        too, and then removed.
        """
        self._forget()
        while True:
            kept = self._ended.get(id) or self._running.get(id)
            if kept is None or kept.answer.cancelled():
                task = asyncio.get_running_loop().create_task(self._make(id, answer))
                task.add_done_callback(partial(self._drop_failed, id))
                kept = self._running[id] = _CacheEntry(task)
            kept.n_waiting += 1
            try:
                return await asyncio.shield(kept.answer)
            except asyncio.CancelledError:
                if not kept.answer.cancelled() or _is_cancelled():
                    raise  # else all callers were cancelled just before this one
            finally:
                kept.n_waiting -= 1
                if not kept.n_waiting and not kept.answer.done():
                    kept.answer.cancel()

    async def _make(self, id: str, answer: Callable[[], Awaitable[T]]) -> T:
        result = await answer()
        kept = self._running.pop(id)
        if self._size(result) <= self._largest:
            kept.until_s = self._clock() + self._keep_s
            self._ended[id] = kept
        return result

    def _drop_failed(self, id: str, task: "asyncio.Task[T]") -> None:
        """Remove a failed answer, and retrieve its error, which asyncio would log if no caller is left."""
        if not task.cancelled() and task.exception() is None:
            return
        kept = self._running.get(id)
        if kept is not None and kept.answer is task:
            del self._running[id]

    def _forget(self) -> None:
        """Remove expired answers, and the oldest ones above the maximum number."""
        now_s = self._clock()
        while self._ended:
            first = next(iter(self._ended))
            if len(self._ended) <= self._most and self._ended[first].until_s > now_s:
                return
            del self._ended[first]


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
