"""Compute workers behind a bounded queue: least slack first, in batches where that is faster."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from math import ceil
from typing import Any, TypeVar, final

from pliant.errors import InputError, NodeError
from pliant.ir.times.timing import Timing
from pliant.serve.answers.callable_worker import CallableWorker
from pliant.serve.answers.row_group import GroupShare, RowGroup
from pliant.serve.answers.work_item import BatchRun, WorkItem, WorkResult, WorkStart, deliver, item_outcome
from pliant.serve.answers.work_queue import WorkQueue
from pliant.serve.batching.batch_worker import BatchWorker
from pliant.serve.batching.plan_batch import QueuedRequest
from pliant.serve.batching.return_delay import ReturnDelay

T = TypeVar("T")
MOST_WORKERS = 16
"""Upper limit of workers; by default an endpoint uses as many as it can run concurrently."""


@final
class Admission:
    """Runs work on at most `n_workers` threads; kernels release the GIL, so the event loop continues.

    A request without others in the queue gets all threads of its endpoint, and so does work that can only run
    alone. If several requests wait that may run concurrently, each worker takes its own batch of them, so
    that no batch waits for another one or for a processor that the event loop uses.

    At most `queue` items wait; further ones are refused at once, which costs a client less than a late
    answer. If the queue is full, a client may displace the latest item of the client with the most items,
    if that has at least two more waiting and the new one can be in time: a single client may fill the queue,
    two clients get half each. The rows of one request are admitted or refused together, and none of them
    displaces another item unless all are admitted.
    """

    def __init__(
        self, queue: int, clock: Callable[[], float] = time.monotonic, n_workers: int = MOST_WORKERS
    ) -> None:
        if queue < 0:
            raise InputError(f"the queue is {queue}; give 0 or more.")
        if n_workers < 1:
            raise InputError(f"the number of workers is {n_workers}; give 1 or more.")
        self._clock, self.queue = clock, queue
        self.return_delay = ReturnDelay(clock)
        self._items: dict[WorkItem, None] = {}
        self._lock = threading.RLock()  # reentrant: a refusal reads the backlog
        self.n_workers = n_workers
        self._queue = WorkQueue(n_workers)  # guarded by the lock, as all fields below
        self._ahead: deque[Callable[[], None]] = deque()
        self._n_awake = 0
        self._runs: list[BatchRun] = []
        self._single = CallableWorker()
        self._pool = ThreadPoolExecutor(n_workers, "pliant-compute")

    @property
    def n_waiting(self) -> int:
        """The number of waiting items."""
        n_begun = len(self._items) - len(self._queue)
        return len(self._items) - min(max(1, n_begun), len(self._items))

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not self._items

    def has_room(self, client: str = "", group: RowGroup | None = None) -> bool:
        """Whether the next item of `client` would find room; rows of an admitted request do."""
        with self._lock:
            if group is not None and group.share(self).slots:
                return True
            return self._displaced(client, 1 if group is None else group.n_places(self)) is not None

    @property
    def backlog_s(self) -> float:
        """Expected time of all admitted work: about the waiting time of a new item."""
        with self._lock:  # worker threads change what waits
            return self._busy_s(self._clock()) + self._queue.seconds

    def wait_s(self, new: QueuedRequest, group: RowGroup | None = None) -> float:
        """Expected waiting time of a new item, by its slack (`batching.queue_wait`)."""
        with self._lock:
            now_s = self._clock()
            share = None if group is None else group.share(self)
            return self._queue.wait_s(new, now_s, self._busy_s(now_s), share)

    def release(self, share: GroupShare, n_left: int) -> None:
        """Keep times for at most `n_left` rows of a request."""
        with self._lock:
            self._queue.release(share, n_left)

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
        group: RowGroup | None = None,
    ) -> WorkResult[Any]:
        """Let `worker` process `one` in its turn, and record the start in `start`; call on the event loop.

        `group` is the request of which `one` is a row. If it is cancelled while it waits, it is not run; once
        it has begun, cancelling has no effect. Raises NodeError with status 503 if the queue is full or has
        no time for it, or if another client's item displaces it, and the errors of the work.
        """
        item = self._submit(worker, one, waiting, client, start or WorkStart(), group)
        try:
            while item.end is None:
                try:
                    await item.done
                except asyncio.CancelledError:
                    if self._cancel(item):
                        raise
                    item.done = item.done.get_loop().create_future()  # it has begun, and runs to its end
            if isinstance(item.end, BaseException):
                raise item.end
            self.return_delay.observe(self._clock() - item.asked_s - item.end.waited_s - item.end.spent_s)
            return item.end
        finally:
            self._items.pop(item, None)

    def run_now(self, work: Callable[[], T]) -> WorkResult[T]:
        """Run `work` on all threads before all waiting items, and wait for it; not on the event loop."""
        done: Future[WorkResult[T]] = Future()

        def timed() -> None:
            start_s = self._clock()
            try:
                done.set_result(WorkResult(work(), 0.0, self._clock() - start_s))
            except BaseException as error:  # noqa: BLE001 - the error is passed to the caller
                done.set_exception(error)

        with self._lock:
            self._ahead.append(timed)
            self._wake()
        return done.result()

    def close(self) -> None:
        """Close after all admitted work."""
        self._pool.shutdown()

    def _submit(
        self,
        worker: BatchWorker,
        one: Any,
        waiting: QueuedRequest,
        client: str,
        start: WorkStart,
        group: RowGroup | None,
    ) -> WorkItem:
        """Admit an item. Raises the error that refuses it."""
        done, share = asyncio.get_running_loop().create_future(), None
        with self._lock:
            now_s = self._clock()
            late_s = sum(run.late_s(now_s) / run.most for run in self._runs)
            # Late work ends at any time: it does not delay this turn for good.
            begins_s = now_s + self.backlog_s - late_s
            # Estimates change; the order of those that wait stays.
            waiting = replace(waiting, fair_s=max(self._queue.last_fair_s, begins_s))
            if group is not None:
                share = group.share(self)
                if share.refusal is not None:
                    raise share.refusal
            item = WorkItem(worker, one, waiting, client, start, now_s, done, copy_context(), share)
            if share is not None and share.slots:
                self._queue.add(item)
            else:
                self._admit(item, group)
            self._items[item] = None
            try:
                self._wake()
            except RuntimeError as error:
                self._queue.remove(item)
                self._items.pop(item, None)
                raise self._refusal(f"no compute thread could be started ({error})") from error
        return item

    def _admit(self, item: WorkItem, group: RowGroup | None) -> None:
        """Add an item, and keep place and time for the other rows of its request; call with the lock held.

        Others leave the queue for it, unless it has no time itself: then it is refused, and they stay.
        """
        share = item.share
        n_places = 1 if group is None else group.n_places(self)
        displaced = self._displaced(item.client, n_places)
        full = f"the queue is full: {self.n_waiting} requests wait; try again."
        if displaced is None:
            raise self._refuse_new(share, self._refusal(full))
        self._queue.add(item)
        if share is not None and group is not None and not share.is_admitted:
            self._queue.reserve(share, item, group.n_left - 1, n_places)
        now_s = item.asked_s
        items, shares = self._queue.excess(now_s, self._free_s(now_s), displaced)
        is_refused = item in items or (share is not None and share in shares)
        if is_refused:
            self._queue.remove(item)
            if share is not None:
                self._queue.release(share, 0)
            items, shares = self._queue.excess(now_s, self._free_s(now_s))
        elif displaced:
            why = (
                "the queue is full, and this client has more requests in it than its share; try again, with "
                "fewer requests at once."
            )
            rest = [one.share for one in displaced if one.share is not None]
            self._refuse(displaced, rest, lambda item: self._refusal(why))
        self._refuse(items, shares, WorkItem.lateness)
        if is_refused:
            raise self._refuse_new(share, self._refusal(full) if displaced else item.lateness())

    def _refuse_new(self, share: GroupShare | None, error: Exception) -> Exception:
        if share is not None:
            share.refusal = error
        return error

    def _refuse(
        self,
        items: Sequence[WorkItem],
        shares: Sequence[GroupShare],
        error_of: Callable[[WorkItem], Exception],
    ) -> None:
        """Refuse waiting items, and all further rows of requests; call with the lock held."""
        for item in items:
            self._queue.remove(item)
            del self._items[item]
        errors = [(item, error_of(item)) for item in items]
        for share in shares:
            other = self._refusal("other requests leave no time for this one; try again.")
            share.refusal = next((error for item, error in errors if item.share is share), other)
            self._queue.release(share, 0)
        deliver(errors)

    def _displaced(self, client: str, n: int) -> list[WorkItem] | None:
        """The items that leave the queue for `n` items of `client`; None if it is full."""
        n_free = self.queue - self.n_waiting - self._queue.n_reserved + (0 if self._items else 1)
        return [] if n <= n_free else self._queue.displaced(client, min(n - n_free, n))

    def _busy_s(self, now_s: float) -> float:
        """Expected remaining time of running work, divided among the workers."""
        return sum(run.left_s(now_s) / run.most for run in self._runs)

    def _free_s(self, now_s: float) -> list[float]:
        """Expected seconds until each worker is free."""
        n_workers = self._queue.n_beside
        left_s = [run.left_s(now_s) for run in self._runs]
        if any(run.most == 1 for run in self._runs) or len(left_s) > n_workers:
            return [max(left_s)] * n_workers
        return [*left_s, *([0.0] * (n_workers - len(left_s)))]

    def _refusal(self, why: str) -> NodeError:
        return NodeError(why, status=503, retry_after_s=max(1, ceil(self.backlog_s)))

    def _cancel(self, item: WorkItem) -> bool:
        """Remove a waiting item; False if it has begun or was refused."""
        with self._lock:
            if item not in self._queue:
                return False
            self._queue.remove(item)
            with suppress(RuntimeError):
                self._wake()  # items behind it may now be able to run
        return True

    def _wake(self) -> None:
        """Start another thread if it may find work; call with the lock held."""
        is_one_looking = self._n_awake > len(self._runs)
        has_work = bool(self._ahead) or len(self._queue) > 0
        if has_work and not is_one_looking and all(len(self._runs) < run.most for run in self._runs):
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
                self._end_run(run)
            else:
                self._work_on(run)

    def _work_on(self, run: BatchRun) -> None:
        """Run a batch. If it fails, each of its items runs alone, so that one does not fail the others."""
        results, is_whole = list[Any](), False
        try:
            if len(run.items) > 1:
                try:
                    results = self._results(run.items, run.is_beside)
                    is_whole = True
                except BaseException:  # noqa: BLE001 - the worker logged it, and each item reports its error
                    results = []
            if not is_whole:
                for item in run.items:
                    try:
                        results += self._results([item], run.is_beside)
                    except BaseException as error:  # noqa: BLE001 - the error is passed to the caller
                        results.append(error)
                is_whole = len(run.items) == 1
        finally:
            spent_s = self._clock() - run.begun_s
            is_whole = is_whole and not any(isinstance(result, BaseException) for result in results)
            self._end_run(run, spent_s if is_whole else None)
            deliver(
                [
                    (item, item_outcome(item, result, run, spent_s))
                    for item, result in zip(run.items, results, strict=True)
                ]
            )

    def _results(self, items: Sequence[WorkItem], is_beside: bool) -> list[Any]:
        """The results of items together, in the context of the first, so that log lines name it."""
        ones, worker = [item.one for item in items], items[0].worker
        results = items[0].context.run(worker.work, ones, is_beside)
        if len(results) != len(ones):
            raise NodeError(f"the model gave {len(results)} answers to {len(ones)} requests.", status=500)
        return list(results)

    def _end_run(self, run: BatchRun, spent_s: float | None = None) -> None:
        """End a run; a successful one updates the batch times with `spent_s`."""
        with self._lock:
            self._runs.remove(run)
            if spent_s is None:
                return
            worker = run.items[0].worker
            alone_s = sum(item.waiting.alone.median_s for item in run.items)
            n_items = sum(item.waiting.length for item in run.items)
            times = worker.times_beside if run.is_beside else worker.times
            times.observe(len(run.items), n_items, Timing(alone_s, alone_s), spent_s)

    def _take_run(self) -> tuple[BatchRun, Callable[[], None] | None] | None:
        """Take the next run: a call of `run_now`, or items. None ends the thread."""
        ends: list[tuple[WorkItem, Exception]] = []
        try:
            with self._lock:
                now_s = self._clock()
                if self._ahead:
                    if self._runs:  # the last of these runs will take it
                        self._n_awake -= 1
                        return None
                    self._runs.append(run := BatchRun((), now_s, Timing(0.0, 0.0)))
                    return run, self._ahead.popleft()
                found = self._next_run(now_s, ends)
                if found is None:
                    self._n_awake = max(self._n_awake - 1, 0)
                    return None
                self._runs.append(found)
                for item in found.items:
                    self._queue.remove(item)
                    item.start.begun_s = now_s
                with suppress(RuntimeError):  # without another thread, this one continues
                    self._wake()
                return found, None
        finally:
            deliver(ends)

    def _next_run(self, now_s: float, ends: list[tuple[WorkItem, Exception]]) -> BatchRun | None:
        """The next run, without late items, which leave the queue and are added to `ends`.

        If planning fails, all items leave: otherwise they would wait for ever, as no thread looks for them.
        """
        try:
            for late in self._queue.late(now_s):
                self._queue.remove(late[0])
                ends.append(late)
            return self._queue.next_run(now_s, self._runs)
        except Exception as error:  # noqa: BLE001 - the error is passed to the callers
            for item in self._queue.items:
                self._queue.remove(item)
                ends.append((item, error))
            return None
