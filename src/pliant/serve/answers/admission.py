"""One thread that computes, behind a bounded queue: what has least slack next, with company that gains."""

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any, Generic, TypeVar, final

from pliant.errors import InputError, NodeError
from pliant.ir.times.timing import Timing
from pliant.serve.batching.batch_times import BatchTimes
from pliant.serve.batching.hand_over import HandOver
from pliant.serve.batching.plan_batch import Waiting, plan_batch, wait_s
from pliant.serve.batching.worker import Load, Worker

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """A result, what it waited for its turn, and what it took then (seconds).

    Of a batch, each result took what it would have taken alone, or the whole batch where that is less: the
    rest is waiting. `n_together` results came at once.
    """

    result: T
    waited_s: float
    spent_s: float
    n_together: int = 1


@dataclass(slots=True)
class Turn:
    """When a piece of work began; None while it waits for its turn."""

    begun_s: float | None = None


@dataclass(eq=False, slots=True)
class _Piece:
    """Work of one client; `done` will have its result. `is_displaced` where another takes its place."""

    worker: Worker
    one: Any
    waiting: Waiting
    client: str
    turn: Turn
    asked_s: float
    done: "asyncio.Future[Done[Any]]"
    context: Context
    is_displaced: bool = False


@dataclass(frozen=True, slots=True)
class _Run:
    """Pieces that work together, since when, and what is expected of them."""

    pieces: tuple[_Piece, ...]
    begun_s: float
    expected_s: float


@final
class _Alone:
    """A worker for one piece of work that is called."""

    most_together = most_items = 1

    def __init__(self) -> None:
        self.times = BatchTimes()

    def refusal(self, one: Callable[[], Any], is_contended: bool) -> None:
        return None

    def work(self, ones: Sequence[Callable[[], Any]]) -> list[Any]:
        return [one() for one in ones]


@final
class Admission:
    """Work for one thread; kernels let go of the interpreter, so that the event loop goes on meanwhile.

    At most `queue` pieces wait behind what runs: more are refused at once, which costs a client less
    than an answer that comes too late. Where the queue is full, a client takes the place of the latest piece
    of the client with most, if that has two more waiting: one client alone may fill the queue, two get half.
    """

    def __init__(self, queue: int, clock: Callable[[], float] = time.monotonic) -> None:
        if queue < 0:
            raise InputError(f"a queue of {queue} cannot be; give 0 or more.")
        self._clock, self.queue = clock, queue
        self.hand_over = HandOver(clock)
        self._pieces: dict[_Piece, None] = {}
        self._lock = threading.RLock()  # who is refused hears of the backlog
        self._waiting: dict[_Piece, None] = {}  # under the lock, as what follows: both threads take from it
        self._ahead: deque[Callable[[], None]] = deque()
        self._is_working = False
        self._loads: dict[Worker, Load] = {}
        self._running: _Run | None = None
        self._fair_s = -inf
        self._alone = _Alone()
        self._pool = ThreadPoolExecutor(1, "pliant-compute")

    @property
    def n_waiting(self) -> int:
        """Pieces that wait for their turn."""
        n_begun = len(self._pieces) - len(self._waiting)
        return len(self._pieces) - min(max(1, n_begun), len(self._pieces))

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not self._pieces

    def has_room(self, client: str = "") -> bool:
        """Whether the next piece of `client` would be let in."""
        return self._is_free or self._displaceable(client) is not None

    @property
    def backlog_s(self) -> float:
        """What is left of everything that was let in, as expected: about how long a new piece would wait."""
        with self._lock:  # the thread takes from what waits
            return self._busy_s + sum(load.seconds * load.pace for load in self._loads.values())

    def wait_s(self, new: Waiting) -> float:
        """What a piece that came now would wait for, by its slack (`batching.plan_batch.wait_s`)."""
        with self._lock:
            waiting = [piece.waiting for piece in self._waiting]
            pace = max((load.pace for load in self._loads.values()), default=1.0)
        return wait_s(waiting, new, self._clock(), self._busy_s, pace)

    async def run(
        self, work: Callable[[], T], expected_s: float, client: str = "", turn: Turn | None = None
    ) -> Done[T]:
        """Do `work` alone when its turn comes: as `join`."""
        return await self.join(self._alone, work, Waiting(Timing(expected_s, expected_s)), client, turn)

    async def join(
        self, worker: Worker, one: Any, waiting: Waiting, client: str = "", turn: Turn | None = None
    ) -> Done[Any]:
        """Have `worker` work on `one` when its turn comes, which `turn` is told; call on the event loop.

        Cancelled while it waits, it is not done; once it has begun, it is, and cancelling has no effect.
        Raises NodeError of status 503 where the queue is full or another client's piece takes its place, and
        what the work raises.
        """
        if not self._make_room(client):
            full = f"{self.n_waiting} requests wait already, which is as many as may; ask again."
            raise self._refusal(full)
        asked_s = self._clock()
        self._fair_s = max(self._fair_s, asked_s + self.backlog_s)  # expectations change, the order does not
        waiting = replace(waiting, fair_s=self._fair_s)
        done: asyncio.Future[Done[Any]] = asyncio.get_running_loop().create_future()
        piece = _Piece(worker, one, waiting, client, turn or Turn(), asked_s, done, copy_context())
        self._pieces[piece] = None
        with self._lock:
            self._waiting[piece] = None
            self._loads.setdefault(worker, Load(worker)).add(waiting, +1)
            begins, self._is_working = not self._is_working, True
        if begins:  # else the thread takes it when it comes to it
            asyncio.get_running_loop().run_in_executor(self._pool, self._work)
        try:
            while True:
                try:
                    found = await asyncio.shield(done)
                    self.hand_over.observe(self._clock() - asked_s - found.waited_s - found.spent_s)
                    return found
                except asyncio.CancelledError:
                    if piece.is_displaced:
                        why = "others wait too, and this client has more requests in the queue than its share"
                        raise self._refusal(f"{why}; ask again, or fewer at once.") from None
                    if self._cancel(piece) or done.cancelled():
                        raise  # else it has begun, however often nobody waits for it any more
        finally:
            self._pieces.pop(piece, None)

    def run_now(self, work: Callable[[], T]) -> Done[T]:
        """Do `work` on the thread, before what waits, and wait for it; not on the event loop."""
        done: Future[Done[T]] = Future()

        def timed() -> None:
            start_s = self._clock()
            try:
                done.set_result(Done(work(), 0.0, self._clock() - start_s))
            except BaseException as error:  # noqa: BLE001 - whoever asked is told
                done.set_exception(error)

        with self._lock:
            self._ahead.append(timed)
            begins, self._is_working = not self._is_working, True
        if begins:
            self._pool.submit(self._work)
        return done.result()

    def close(self) -> None:
        """Once what was let in is done."""
        self._pool.shutdown()

    @property
    def _is_free(self) -> bool:
        return not self._pieces or self.n_waiting < self.queue

    @property
    def _busy_s(self) -> float:
        """What is left of the work that runs, as expected."""
        run = self._running
        return 0.0 if run is None else max(run.begun_s + run.expected_s - self._clock(), 0.0)

    def _waiting_now(self) -> list[_Piece]:
        with self._lock:
            return list(self._waiting)

    def _make_room(self, client: str) -> bool:
        while not self._is_free:
            piece = self._displaceable(client)
            if piece is None:
                return False
            if self._cancel(piece):  # else it has just begun, and another may be
                piece.is_displaced = True
                del self._pieces[piece]
        return True

    def _displaceable(self, client: str) -> _Piece | None:
        waiting = self._waiting_now()
        counts = Counter(piece.client for piece in waiting)
        most = max(counts.values(), default=0)
        if most < counts[client] + 2:
            return None
        return next(piece for piece in reversed(waiting) if counts[piece.client] == most)

    def _refusal(self, why: str) -> NodeError:
        return NodeError(why, status=503, retry_after_s=max(1, ceil(self.backlog_s)))

    def _cancel(self, piece: _Piece) -> bool:
        """False where it has begun, or was refused."""
        with self._lock:
            if piece not in self._waiting:
                return False
            self._leaves(piece)
        piece.done.cancel()
        return True

    # On the thread

    def _work(self) -> None:
        """Work until nothing waits."""
        while True:
            with self._lock:
                ahead = self._ahead.popleft() if self._ahead else None
            if ahead is not None:
                ahead()
                continue
            run, is_over = self._taken()
            if run is not None:
                self._work_on(run)
            if is_over:
                return

    def _work_on(self, run: _Run) -> None:
        worker, begun_s = run.pieces[0].worker, run.begun_s
        try:
            # In the context of the most urgent request, which log lines of the work name.
            results = run.pieces[0].context.run(worker.work, [piece.one for piece in run.pieces])
        except BaseException as error:  # noqa: BLE001 - whoever asked is told
            results = [error] * len(run.pieces)
        spent_s = self._clock() - begun_s
        if not any(isinstance(result, BaseException) for result in results):
            alone_s = sum(piece.waiting.alone.median_s for piece in run.pieces)
            n_items = sum(piece.waiting.length for piece in run.pieces)
            worker.times.observe(len(run.pieces), n_items, Timing(alone_s, alone_s), spent_s)
        self._running = None
        _tell(
            [
                (piece, _done(piece, result, run, spent_s))
                for piece, result in zip(run.pieces, results, strict=True)
            ]
        )

    def _taken(self) -> tuple[_Run | None, bool]:
        """What begins now, and whether the thread ends, which is when nothing does."""
        with self._lock:
            now_s = self._clock()
            refused = list(self._refused(now_s))
            for piece, _ in refused:
                self._leaves(piece)
            run = self._next(now_s)
            for piece in () if run is None else run.pieces:
                self._leaves(piece)
                piece.turn.begun_s = now_s
            self._running = run
            self._is_working = run is not None or bool(self._ahead)
            is_over = not self._is_working
        _tell(refused)
        return run, is_over

    def _leaves(self, piece: _Piece) -> None:
        """It waits no more; call under the lock."""
        del self._waiting[piece]
        load = self._loads[piece.worker]
        load.add(piece.waiting, -1)
        if not load.n:  # a model that is unloaded is kept by nobody
            del self._loads[piece.worker]

    def _next(self, now_s: float) -> _Run | None:
        waiting = list(self._waiting)
        if not waiting:
            return None
        worker = min(waiting, key=lambda piece: piece.waiting.start_s(now_s)).worker
        most, price = worker.most_together, worker.times.expected
        batch = plan_batch([piece.waiting for piece in waiting], now_s, most, price, worker.most_items)
        return _Run(tuple(waiting[i] for i in batch.numbers), now_s, batch.expected.median_s)

    def _refused(self, now_s: float) -> Iterator[tuple[_Piece, Exception]]:
        """What waits and cannot be in time any more, and what is told."""
        in_time = [piece for piece in self._waiting if piece.waiting.is_in_time(now_s)]
        is_contended = any(piece.waiting.due_s < inf for piece in in_time)
        for piece in self._waiting if len(in_time) < len(self._waiting) else ():
            if not piece.waiting.is_in_time(now_s):
                error = piece.worker.refusal(piece.one, is_contended)
                if error is not None:
                    yield piece, error


def _done(piece: _Piece, result: Any, run: _Run, spent_s: float) -> Done[Any] | BaseException:
    if isinstance(result, BaseException):
        return result
    own_s = spent_s if len(run.pieces) == 1 else min(spent_s, piece.waiting.alone.median_s)
    waited_s = run.begun_s - piece.asked_s + spent_s - own_s
    return Done(result, waited_s, own_s, len(run.pieces))


def _tell(ends: Sequence[tuple[_Piece, Done[Any] | BaseException]]) -> None:
    """Those who wait for these pieces are told of their ends, on their event loop."""
    loops = {piece.done.get_loop() for piece, _ in ends}
    for loop in loops:
        here = [(piece.done, end) for piece, end in ends if piece.done.get_loop() is loop]
        with suppress(RuntimeError):  # the loop was closed: nobody waits
            loop.call_soon_threadsafe(_settle, here)


def _settle(ends: "Sequence[tuple[asyncio.Future[Done[Any]], Done[Any] | BaseException]]") -> None:
    for future, end in ends:
        if future.done():
            continue
        if isinstance(end, BaseException):
            future.set_exception(end)
        else:
            future.set_result(end)
