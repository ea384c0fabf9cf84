"""One thread that computes, behind a queue of bounded length. Knows no request and no model."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil
from typing import Generic, TypeVar, final

from pliant.errors import InputError, NodeError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """A result, what it waited for its turn, and what it took then (seconds)."""

    result: T
    waited_s: float
    spent_s: float


@final
class Admission:
    """Work for one thread; kernels let go of the interpreter, so that the event loop goes on meanwhile.

    At most `queue` pieces wait behind the one that runs: more are refused at once, which costs a client less
    than an answer that comes too late.
    """

    def __init__(self, queue: int) -> None:
        if queue < 0:
            raise InputError(f"a queue of {queue} cannot be; give 0 or more.")
        self._most = queue + 1
        self._expected_s: list[float] = []
        self._pool = ThreadPoolExecutor(1, "pliant-compute")

    @property
    def n_waiting(self) -> int:
        """Pieces that wait for their turn."""
        return max(0, len(self._expected_s) - 1)

    @property
    def is_full(self) -> bool:
        """Whether the next piece would be refused."""
        return len(self._expected_s) >= self._most

    @property
    def backlog_s(self) -> float:
        """What everything that was let in is expected to take: about how long a new piece would wait."""
        return sum(self._expected_s)

    async def run(self, work: Callable[[], T], expected_s: float) -> Done[T]:
        """Do `work` when its turn comes; call on the event loop.

        Raises NodeError of status 503 where the queue is full, and what `work` raises.
        """
        if self.is_full:
            raise NodeError(
                f"{self.n_waiting} requests wait already, which is as many as may; ask again.",
                status=503,
                retry_after_s=max(1, ceil(self.backlog_s)),
            )
        self._expected_s.append(expected_s)
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, self._timed, work, time.perf_counter())
        finally:
            self._expected_s.remove(expected_s)

    def run_now(self, work: Callable[[], T]) -> Done[T]:
        """Do `work` on the thread and wait for it, before there is an event loop."""
        return self._pool.submit(self._timed, work, time.perf_counter()).result()

    def close(self) -> None:
        """Once what was let in is done."""
        self._pool.shutdown()

    def _timed(self, work: Callable[[], T], asked_s: float) -> Done[T]:
        start_s = time.perf_counter()
        result = work()
        return Done(result, start_s - asked_s, time.perf_counter() - start_s)
