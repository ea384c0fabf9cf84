"""A request that arrives again is not run again. Knows no request: only its id and how it is answered."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, final

T = TypeVar("T")


@dataclass(slots=True)
class _Kept(Generic[T]):
    answer: "asyncio.Future[T]"
    until_s: float


@final
class Once(Generic[T]):
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
        """The answer of `id`: made now, or that of its first arrival. Raises what making it raises."""
        self._forget()
        known = self._kept.get(id)
        if known is not None:
            return await asyncio.shield(known.answer)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._kept[id] = _Kept(future, float("inf"))
        try:
            result = await answer()
        except BaseException as error:
            del self._kept[id]
            if isinstance(error, asyncio.CancelledError):
                future.cancel()
            else:
                future.set_exception(error)
                future.exception()  # whoever waits is told; nobody may be waiting
            raise
        future.set_result(result)
        if self._size(result) > self._largest:
            del self._kept[id]
            return result
        self._kept[id].until_s = self._clock() + self._keep_s
        self._kept.move_to_end(id)
        return result

    def _forget(self) -> None:
        """What ended stands in order of its end; what still runs stands among it, and stays."""
        now_s = self._clock()
        ended = [id for id, kept in self._kept.items() if kept.answer.done()]
        surplus = len(ended) - self._most
        for number, id in enumerate(ended):
            if number >= surplus and self._kept[id].until_s > now_s:
                break
            del self._kept[id]
