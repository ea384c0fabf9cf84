"""The idempotency cache: a request that arrives again is not run again."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Generic, TypeVar, final

T = TypeVar("T")


@dataclass(slots=True)
class _Kept(Generic[T]):
    """An answer that is made, or was; then it is kept until `until_s`."""

    answer: "asyncio.Task[T]"
    until_s: float = inf
    n_waiting: int = 0


@final
class IdempotencyCache(Generic[T]):
    """Answers by id: of what runs now, and of the last `most` that ended in the last `keep_s` seconds.

    Those of a `size` above `most_bytes` / `most` are not kept, so that all of them take `most_bytes` at most.
    What failed is forgotten, so that the same request may be tried again.
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
        self._running: dict[str, _Kept[T]] = {}
        self._ended: OrderedDict[str, _Kept[T]] = OrderedDict()
        """In order of their ends."""

    def __len__(self) -> int:
        return len(self._running) + len(self._ended)

    async def __call__(self, id: str, answer: Callable[[], Awaitable[T]]) -> T:
        """The answer of `id`: made now, or that of its first arrival. Raises what making it raises.

        Making it is cancelled once all who wait for it are: where that has an effect, it is forgotten.
        """
        self._forget()
        while True:
            kept = self._ended.get(id) or self._running.get(id)
            if kept is None or kept.answer.cancelled():
                task = asyncio.get_running_loop().create_task(self._make(id, answer))
                task.add_done_callback(partial(self._drop_failed, id))
                kept = self._running[id] = _Kept(task)
            kept.n_waiting += 1
            try:
                return await asyncio.shield(kept.answer)
            except asyncio.CancelledError:
                if not kept.answer.cancelled() or _is_cancelled():
                    raise  # else all who waited had left just before this one came
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
        """Forget what failed; its error is nobody's where all who waited have left, and would be logged."""
        if not task.cancelled() and task.exception() is None:
            return
        kept = self._running.get(id)
        if kept is not None and kept.answer is task:
            del self._running[id]

    def _forget(self) -> None:
        """What ended too long ago, and of more than are kept the oldest."""
        now_s = self._clock()
        while self._ended:
            first = next(iter(self._ended))
            if len(self._ended) <= self._most and self._ended[first].until_s > now_s:
                return
            del self._ended[first]


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
