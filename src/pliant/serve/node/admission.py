"""One thread that computes, behind a queue of bounded length."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Any, Generic, TypeVar, final

from pliant.errors import InputError, NodeError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """A result, what it waited for its turn, and what it took then (seconds)."""

    result: T
    waited_s: float
    spent_s: float


@dataclass(slots=True)
class Turn:
    """When a piece of work began; None while it waits for its turn."""

    begun_s: float | None = None


@dataclass(eq=False, slots=True)
class _Piece:
    """Work of one client, of which `done` is the result; `is_displaced` where another takes its place."""

    client: str
    expected_s: float
    turn: Turn = field(default_factory=Turn)
    done: "asyncio.Future[Any] | None" = None
    is_displaced: bool = False


@final
class Admission:
    """Work for one thread; kernels let go of the interpreter, so that the event loop goes on meanwhile.

    At most `queue` pieces wait behind the one that runs: more are refused at once, which costs a client less
    than an answer that comes too late. Where the queue is full, a client takes the place of the latest piece
    of the client with most, if that has two more waiting: one client alone may fill the queue, two get half.
    """

    def __init__(self, queue: int, clock: Callable[[], float] = time.monotonic) -> None:
        if queue < 0:
            raise InputError(f"a queue of {queue} cannot be; give 0 or more.")
        self._clock = clock
        self._most = queue + 1
        self._pieces: dict[_Piece, None] = {}
        self._waiting: dict[_Piece, Callable[[], Any]] = {}  # both threads take from it, by `pop` alone
        self._pool = ThreadPoolExecutor(1, "pliant-compute")

    @property
    def n_waiting(self) -> int:
        """Pieces that wait for their turn."""
        return max(0, len(self._pieces) - 1)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not self._pieces

    def has_room(self, client: str = "") -> bool:
        """Whether the next piece of `client` would be let in."""
        return len(self._pieces) < self._most or self._displaceable(client) is not None

    @property
    def backlog_s(self) -> float:
        """What is left of everything that was let in, as expected: about how long a new piece would wait."""
        now_s = self._clock()
        return sum(_left_s(piece, now_s) for piece in self._pieces)

    async def run(
        self, work: Callable[[], T], expected_s: float, client: str = "", turn: Turn | None = None
    ) -> Done[T]:
        """Do `work` when its turn comes, which `turn` is told; call on the event loop.

        Cancelled while it waits, it is not done; once it has begun, it is, and cancelling has no effect.
        Raises NodeError of status 503 where the queue is full or another client's piece takes its place, and
        what `work` raises.
        """
        if not self._make_room(client):
            raise self._refusal(
                f"{self.n_waiting} requests wait already, which is as many as may; ask again."
            )
        piece = _Piece(client, expected_s, turn or Turn())
        self._pieces[piece], self._waiting[piece] = None, work
        loop = asyncio.get_running_loop()
        asked_s = self._clock()
        # In the request's context, which log lines of the work name.
        work_of = partial(copy_context().run, self._timed, piece, asked_s)
        done: asyncio.Future[Done[T]] = loop.run_in_executor(self._pool, work_of)
        piece.done = done
        try:
            while True:
                try:
                    return await asyncio.shield(done)
                except asyncio.CancelledError:
                    if piece.is_displaced:
                        why = "others wait too, and this client has more requests in the queue than its share"
                        raise self._refusal(f"{why}; ask again, or fewer at once.") from None
                    if self._cancel(piece) or done.cancelled():
                        raise  # else it has begun, however often nobody waits for it any more
        finally:
            self._pieces.pop(piece, None)

    def run_now(self, work: Callable[[], T]) -> Done[T]:
        """Do `work` on the thread and wait for it, before there is an event loop."""
        piece = _Piece("", 0.0)
        self._waiting[piece] = work
        return self._pool.submit(self._timed, piece, self._clock()).result()

    def close(self) -> None:
        """Once what was let in is done."""
        self._pool.shutdown()

    def _make_room(self, client: str) -> bool:
        while len(self._pieces) >= self._most:
            piece = self._displaceable(client)
            if piece is None:
                return False
            if self._cancel(piece):  # else it has just begun, and another may be
                piece.is_displaced = True
                del self._pieces[piece]
        return True

    def _displaceable(self, client: str) -> _Piece | None:
        waiting = list(self._waiting)
        counts = Counter(piece.client for piece in waiting)
        most = max(counts.values(), default=0)
        if most < counts[client] + 2:
            return None
        return next(piece for piece in reversed(waiting) if counts[piece.client] == most)

    def _refusal(self, why: str) -> NodeError:
        return NodeError(why, status=503, retry_after_s=max(1, ceil(self.backlog_s)))

    def _cancel(self, piece: _Piece) -> bool:
        """False where it has begun."""
        if self._waiting.pop(piece, None) is None:
            return False
        if piece.done is not None:
            piece.done.cancel()
        return True

    def _timed(self, piece: _Piece, asked_s: float) -> Done[Any]:
        start_s = self._clock()
        work = self._waiting.pop(piece, None)
        if work is None:  # it was cancelled, and nobody hears of it
            return Done(None, start_s - asked_s, 0.0)
        piece.turn.begun_s = start_s
        return Done(work(), start_s - asked_s, self._clock() - start_s)


def _left_s(piece: _Piece, now_s: float) -> float:
    begun_s = piece.turn.begun_s
    return piece.expected_s if begun_s is None else max(piece.expected_s - (now_s - begun_s), 0.0)
