"""Compute workers behind a bounded queue: least slack first, in batches where that is faster."""

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from math import ceil, inf
from typing import Any, TypeVar, final

from pliant.errors import InputError, NodeError
from pliant.ir.times.timing import Timing
from pliant.serve.answers.work_item import (
    BatchRun,
    CallableWorker,
    WorkItem,
    WorkResult,
    WorkStart,
    deliver,
    item_outcome,
    record_time,
)
from pliant.serve.batching.batch_worker import BatchWorker, WorkerLoad
from pliant.serve.batching.overload import excess
from pliant.serve.batching.plan_batch import QueuedRequest, plan_batch, wait_s
from pliant.serve.batching.return_delay import ReturnDelay

T = TypeVar("T")
MOST_WORKERS = 16
"""Upper limit of workers by default; an endpoint uses as many as it can run concurrently."""


@final
class Admission:
    """Runs work on at most `n_workers` threads; kernels release the GIL, so the event loop continues.

    A request without others in the queue gets all threads of its endpoint, and so does work that can only run
    alone. If several requests wait that may run concurrently, each worker takes its own batch of them, so
    that no batch waits for another one or for a processor that the event loop uses.

    At most `queue` items wait; further ones are refused at once, which costs a client less than a late
    answer. If the queue is full, a client may displace the latest item of the client with the most items,
    if that has at least two more waiting and the new one can be in time: a single client may fill the queue,
    two clients get half each.
    """

    def __init__(
        self, queue: int, clock: Callable[[], float] = time.monotonic, n_workers: int | None = None
    ) -> None:
        if queue < 0:
            raise InputError(f"the queue is {queue}; give 0 or more.")
        self.n_workers = MOST_WORKERS if n_workers is None else n_workers
        if self.n_workers < 1:
            raise InputError(f"the number of compute workers is {n_workers}; give 1 or more.")
        self._clock, self.queue = clock, queue
        self.return_delay = ReturnDelay(clock)
        self._items: dict[WorkItem, None] = {}
        self._lock = threading.RLock()  # reentrant: a refusal reads the backlog
        self._waiting: dict[WorkItem, None] = {}  # guarded by the lock, as all fields below
        self._ahead: deque[Callable[[], None]] = deque()
        self._n_awake = 0
        self._loads: dict[BatchWorker, WorkerLoad] = {}
        self._runs: list[BatchRun] = []
        self._fair_s, self._single = -inf, CallableWorker()
        self._pool = ThreadPoolExecutor(self.n_workers, "pliant-compute")

    @property
    def n_waiting(self) -> int:
        """The number of waiting items."""
        n_begun = len(self._items) - len(self._waiting)
        return len(self._items) - min(max(1, n_begun), len(self._items))

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not self._items

    def has_room(self, client: str = "") -> bool:
        """Whether the next item of `client` would be admitted."""
        return self._is_free or self._displaceable(client) is not None

    @property
    def backlog_s(self) -> float:
        """Expected time of all admitted work: about the waiting time of a new item."""
        with self._lock:  # worker threads change what waits
            return self._busy_s + sum(load.seconds * load.pace for load in self._loads.values())

    def wait_s(self, new: QueuedRequest) -> float:
        """Expected waiting time of a new item, by its slack (`batching.plan_batch.wait_s`)."""
        with self._lock:
            waiting = [item.waiting for item in self._waiting]
            pace = max((load.pace for load in self._loads.values()), default=1.0)
        return wait_s(waiting, new, self._clock(), self._busy_s, pace)

    async def run(
        self, work: Callable[[], T], expected_s: float, client: str = "", start: WorkStart | None = None
    ) -> WorkResult[T]:
        """Run `work` alone in its turn; see `submit`."""
        return await self.submit(
            self._single, work, QueuedRequest(Timing(expected_s, expected_s)), client, start
        )

    async def submit(
        self,
        worker: BatchWorker,
        one: Any,
        waiting: QueuedRequest,
        client: str = "",
        start: WorkStart | None = None,
    ) -> WorkResult[Any]:
        """Let `worker` process `one` in its turn, and record the start in `start`; call on the event loop.

        If it is cancelled while it waits, it is not run; once it has begun, cancelling has no effect. Raises
        NodeError with status 503 if the queue is full or another client's item displaces it, and the errors
        of the work.
        """
        if not self._make_room(client, waiting):
            raise self._refusal(f"the queue is full: {self.n_waiting} requests wait; try again.")
        asked_s = self._clock()
        with self._lock:  # late work ends at any time: it does not delay this turn for good
            begins_s = asked_s + self.backlog_s - self._late_s
        self._fair_s = max(self._fair_s, begins_s)  # estimates change, the order stays
        waiting = replace(waiting, fair_s=self._fair_s)
        loop = asyncio.get_running_loop()
        item = WorkItem(
            worker, one, waiting, client, start or WorkStart(), asked_s, loop.create_future(), copy_context()
        )
        self._items[item] = None
        with self._lock:
            self._waiting[item] = None
            self._loads.setdefault(worker, WorkerLoad(worker, self.n_workers)).add(waiting, +1)
            try:
                self._refuse_excess(asked_s)
                self._wake_if_waiting()
            except Exception:
                if item in self._waiting:
                    self._dequeue(item)
                self._items.pop(item, None)
                raise
        try:
            while item.end is None:
                try:
                    await item.done
                except asyncio.CancelledError:
                    if item.is_displaced:
                        why = "the queue is full, and this client has more requests in it than its share"
                        raise self._refusal(f"{why}; try again, with fewer requests at once.") from None
                    if self._cancel(item):
                        raise
                    item.done = loop.create_future()  # it has begun, and runs to its end
            if isinstance(item.end, BaseException):
                raise item.end
            self.return_delay.observe(self._clock() - asked_s - item.end.waited_s - item.end.spent_s)
            return item.end
        finally:
            self._items.pop(item, None)

    def run_now(self, work: Callable[[], T]) -> WorkResult[T]:
        """Run `work` on all threads before all waiting items, and wait for it; not on the event loop."""
        done: Future[WorkResult[T]] = Future()

        def timed() -> None:
            start_s = self._clock()
            try:
                result, spent_s = work(), self._clock() - start_s
                done.set_result(WorkResult(result, 0.0, *(spent_s,) * 3))
            except BaseException as error:  # noqa: BLE001 - the error is passed to the caller
                done.set_exception(error)

        with self._lock:
            self._ahead.append(timed)
            try:
                self._wake()
            except RuntimeError:
                self._ahead.remove(timed)
                raise
        return done.result()

    def close(self) -> None:
        """Close after all admitted work."""
        self._pool.shutdown()

    @property
    def _is_free(self) -> bool:
        return not self._items or self.n_waiting < self.queue

    @property
    def _busy_s(self) -> float:
        """Expected remaining time of running work, divided among the workers.

        Late work is expected to take as long again as it is late: it may hang, or its device is slower now.
        """
        now_s = self._clock()
        return sum(abs(run.begun_s + run.expected_s - now_s) / run.most for run in self._runs)

    @property
    def _late_s(self) -> float:
        """The part of `_busy_s` that late work adds."""
        now_s = self._clock()
        return sum(max(now_s - run.begun_s - run.expected_s, 0.0) / run.most for run in self._runs)

    def _queued_items(self) -> list[WorkItem]:
        with self._lock:
            return list(self._waiting)

    def _make_room(self, client: str, new: QueuedRequest) -> bool:
        while not self._is_free:
            item = self._displaceable(client)
            if item is None:
                return False
            others = [one.waiting for one in self._queued_items() if one is not item]
            if len(others) in self._excess([*others, new], self._clock()):
                return False  # it would be refused in the place of the other
            if self._cancel(item):  # else it has just begun: try another one
                item.is_displaced = True
                del self._items[item]
        return True

    def _refuse_excess(self, now_s: float) -> None:
        """Refuse those of the waiting items that the others leave no time for; call with the lock held."""
        waiting = list(self._waiting)
        refused = [waiting[i] for i in self._excess([item.waiting for item in waiting], now_s)]
        for item in refused:
            self._dequeue(item)
            del self._items[item]
        deliver([(item, item.worker.lateness(item.one, item.waiting.alone.median_s)) for item in refused])

    def _excess(self, waiting: Sequence[QueuedRequest], now_s: float) -> list[int]:
        with self._lock:
            pace = max((load.pace_each for load in self._loads.values()), default=1.0)
            return excess(waiting, now_s, self._free_s(now_s), pace)

    def _free_s(self, now_s: float) -> list[float]:
        """Expected seconds until each worker is free; see `_busy_s`."""
        n_workers = max((load.n_beside for load in self._loads.values()), default=1)
        left_s = [abs(run.begun_s + run.expected_s - now_s) for run in self._runs]
        if any(run.most == 1 for run in self._runs):
            return [sum(left_s)] * n_workers
        return [*left_s, *([0.0] * (n_workers - len(left_s)))]

    def _displaceable(self, client: str) -> WorkItem | None:
        waiting = self._queued_items()
        counts = Counter(item.client for item in waiting)
        most = max(counts.values(), default=0)
        if most < counts[client] + 2:
            return None
        return next(item for item in reversed(waiting) if counts[item.client] == most)

    def _refusal(self, why: str) -> NodeError:
        return NodeError(why, status=503, retry_after_s=max(1, ceil(self.backlog_s)))

    def _cancel(self, item: WorkItem) -> bool:
        """Cancel a waiting item; False if it has begun or was refused."""
        with self._lock:
            if item not in self._waiting:
                return False
            self._dequeue(item)
            if self._waiting:  # items behind it may now be able to run
                with suppress(RuntimeError):
                    self._wake()
        item.done.cancel()
        return True

    def _wake_if_waiting(self) -> None:
        """Start a thread for waiting items; raises NodeError if none can be started."""
        if self._waiting:
            try:
                self._wake()
            except RuntimeError as error:
                raise self._refusal(f"no compute thread could be started ({error})") from error

    def _wake(self) -> None:
        """Start another thread if it may find work; call with the lock held."""
        is_one_looking = self._n_awake > len(self._runs)
        if not is_one_looking and all(len(self._runs) < run.most for run in self._runs):
            self._n_awake += 1
            try:
                self._pool.submit(self._work)
            except RuntimeError:  # no thread could be started, or the pool is closed
                self._n_awake -= 1
                raise

    # On the threads

    def _work(self) -> None:
        """Run work until nothing more may begin."""
        while (next_run := self._take_run()) is not None:
            run, ahead = next_run
            if ahead is not None:
                ahead()
                with self._lock:
                    self._runs.remove(run)
            else:
                self._work_on(run)

    def _work_on(self, run: BatchRun) -> None:
        worker = run.items[0].worker
        ones = [item.one for item in run.items]
        try:
            # Runs in the context of the most urgent request, so that log lines name it.
            results = run.items[0].context.run(worker.work, ones, run.is_beside)
            if len(results) != len(ones):
                raise RuntimeError(f"a batch of {len(ones)} requests gave {len(results)} results")
        except BaseException as error:  # noqa: BLE001 - the error is passed to the caller
            results = [error] * len(run.items)
        spent_s = self._clock() - run.begun_s
        with self._lock:
            self._runs.remove(run)
            record_time(run, results, spent_s)
        pairs = zip(run.items, results, strict=True)
        deliver([(item, item_outcome(item, result, run, spent_s)) for item, result in pairs])

    def _take_run(self) -> tuple[BatchRun, Callable[[], None] | None] | None:
        """Take the next run: a call of `run_now`, or items. None ends the thread.

        If choosing fails, all waiting items fail with that error: none waits for ever.
        """
        refused: list[tuple[WorkItem, Exception]] = []
        try:
            with self._lock:
                now_s = self._clock()
                if self._ahead:
                    if self._runs:  # the last of these runs will take it
                        self._n_awake -= 1
                        return None
                    self._runs.append(run := BatchRun((), now_s, 0.0))
                    return run, self._ahead.popleft()
                refused.extend(self._refuse_late(now_s))
                for item, _ in refused:
                    self._dequeue(item)
                found = self._next_run(now_s)
                if found is None:
                    self._n_awake = max(self._n_awake - 1, 0)
                    return None
                self._runs.append(found)
                for item in found.items:
                    self._dequeue(item)
                    item.start.begun_s = now_s
                if self._waiting:
                    with suppress(RuntimeError):  # without another thread, this one continues
                        self._wake()
                return found, None
        except Exception as error:  # noqa: BLE001 - the error is passed to the callers
            with self._lock:
                for item in list(self._waiting):
                    refused.append((item, error))
                    self._dequeue(item)
                self._n_awake = max(self._n_awake - 1, 0)
            return None
        finally:
            deliver(refused)

    def _dequeue(self, item: WorkItem) -> None:
        """Remove an item from the queue; call with the lock held."""
        del self._waiting[item]
        load = self._loads[item.worker]
        load.add(item.waiting, -1)
        if not load.n:  # keep no reference to an unloaded model
            del self._loads[item.worker]

    def _next_run(self, now_s: float) -> BatchRun | None:
        """The next run; None if nothing waits, or if the next item must wait for running work."""
        waiting = list(self._waiting)
        if not waiting:
            return None
        head = min(waiting, key=lambda item: item.waiting.start_s(now_s))
        worker, key = head.worker, head.waiting.key
        n_workers = min(self.n_workers, worker.most_beside) if key is not None else 1
        if len(self._runs) >= min([n_workers, *(run.most for run in self._runs)]):
            return None
        plain = [item.waiting for item in waiting]
        if n_workers == 1 or (len(waiting) == 1 and not self._runs):
            most, cost = worker.most_together, worker.times.expected
            batch = plan_batch(plain, now_s, most, cost, worker.most_items)
            return BatchRun(tuple(waiting[i] for i in batch.numbers), now_s, batch.expected.median_s)
        n_alike = sum(one.key == key for one in plain)
        # The rest is left to the other workers, so that requests do not wait for one worker that took all.
        most = min(worker.most_together_beside, ceil(n_alike / n_workers))
        most_items, cost = worker.most_items / n_workers, worker.times_beside.expected
        batch = plan_batch(plain, now_s, most, cost, most_items, n_workers)
        return BatchRun(tuple(waiting[i] for i in batch.numbers), now_s, batch.expected.median_s, n_workers)

    def _refuse_late(self, now_s: float) -> Iterator[tuple[WorkItem, Exception]]:
        """Waiting items that cannot be in time any more, with their errors."""
        in_time = [item for item in self._waiting if item.waiting.is_in_time(now_s)]
        is_contended = any(item.waiting.due_s < inf for item in in_time)
        for item in self._waiting if len(in_time) < len(self._waiting) else ():
            if not item.waiting.is_in_time(now_s):
                error = item.worker.refusal(item.one, is_contended)
                if error is not None:
                    yield item, error
