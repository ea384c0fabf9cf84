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
    answer: "asyncio.Task[T]"
    until_s: float
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
        self._kept: OrderedDict[str, _Kept[T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    async def __call__(self, id: str, answer: Callable[[], Awaitable[T]]) -> T:
        """The answer of `id`: made now, or that of its first arrival. Raises what making it raises.

        Making it is cancelled once all who wait for it are: where that has an effect, it is forgotten.
        """
        self._forget()
        while True:
            kept = self._kept.get(id)
            if kept is None or kept.answer.cancelled():
                task = asyncio.get_running_loop().create_task(self._make(id, answer))
                task.add_done_callback(partial(self._ended, id))
                kept = self._kept[id] = _Kept(task, inf)
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
        if self._size(result) > self._largest:
            del self._kept[id]
            return result
        self._kept[id].until_s = self._clock() + self._keep_s
        self._kept.move_to_end(id)
        return result

    def _ended(self, id: str, task: "asyncio.Task[T]") -> None:
        """Forget what failed; its error is nobody's where all who waited have left, and would be logged."""
        if not task.cancelled() and task.exception() is None:
            return
        kept = self._kept.get(id)
        if kept is not None and kept.answer is task:
            del self._kept[id]

    def _forget(self) -> None:
        """What ended stands in order of its end; what still runs stands among it, and stays."""
        now_s = self._clock()
        ended = [id for id, kept in self._kept.items() if kept.answer.done()]
        surplus = len(ended) - self._most
        for number, id in enumerate(ended):
            if number >= surplus and self._kept[id].until_s > now_s:
                break
            del self._kept[id]


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
