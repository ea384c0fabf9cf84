"""The waiting work of an admission: its order, its clients' shares, and what is refused for lack of time."""

from collections import Counter
from collections.abc import Collection, Sequence
from math import ceil, inf
from typing import final

from pliant.serve.answers.row_group import GroupShare
from pliant.serve.answers.work_item import BatchRun, WorkItem
from pliant.serve.batching.batch_worker import BatchWorker, WorkerLoad
from pliant.serve.batching.overload import excess
from pliant.serve.batching.plan_batch import QueuedRequest, plan_batch
from pliant.serve.batching.queue_times import QueueTimes
from pliant.serve.batching.queue_wait import wait_s


@final
class WorkQueue:
    """Waiting items in the order of arrival, on `n_workers` threads. Not thread-safe."""

    def __init__(self, n_workers: int) -> None:
        self._n_workers = n_workers
        self._items: dict[WorkItem, None] = {}
        self._slots: dict[int, WorkItem] = {}
        self._reserved: dict[int, GroupShare] = {}
        self._shares: dict[GroupShare, None] = {}
        self._times = QueueTimes()
        self._loads: dict[BatchWorker, WorkerLoad] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, item: WorkItem) -> bool:
        return item in self._items

    @property
    def items(self) -> list[WorkItem]:
        """The waiting items."""
        return list(self._items)

    @property
    def n_reserved(self) -> int:
        """Places that are kept for rows of admitted requests."""
        return sum(share.n_reserved for share in self._shares)

    @property
    def seconds(self) -> float:
        """Expected time of all items on all workers."""
        return sum(load.seconds * load.pace for load in self._loads.values())

    @property
    def last_fair_s(self) -> float:
        """The `fair_s` of the item that came last; minus infinity without any."""
        return next(reversed(self._items)).waiting.fair_s if self._items else -inf

    @property
    def n_beside(self) -> int:
        """Maximum number of concurrent batches."""
        return max((load.n_beside for load in self._loads.values()), default=1)

    def add(self, item: WorkItem) -> None:
        """Add an item; one of an admitted request takes a slot that is kept for it."""
        if item.share is not None:
            item.share.n_waiting += 1
            if item.share.slots:
                self._drop_slot(item.share)
        item.slot = self._times.add(item.waiting, item.client, item.share)
        self._items[item] = None
        self._slots[item.slot] = item
        self._counts[item.client] += 1
        self._load(item.worker).add(item.waiting, +1)

    def remove(self, item: WorkItem) -> None:
        """Remove a waiting item."""
        del self._items[item], self._slots[item.slot]
        self._times.remove(item.slot)
        if item.share is not None:
            item.share.n_waiting -= 1
        self._counts[item.client] -= 1
        if not self._counts[item.client]:
            del self._counts[item.client]
        load = self._loads[item.worker]
        load.add(item.waiting, -1)
        if not load.n:  # keep no reference to an unloaded model
            del self._loads[item.worker]

    def reserve(self, share: GroupShare, first: WorkItem, n_rows: int, n_places: int) -> None:
        """Plan `n_rows` rows like `first`, and keep `n_places` for all, until they are added."""
        share.is_admitted, share.n_places = True, n_places
        if n_rows > 0:
            self._shares[share] = None
        for _ in range(n_rows):
            slot = self._times.add(first.waiting, first.client, share)
            share.slots.append(slot)
            self._reserved[slot] = share

    def release(self, share: GroupShare, n_left: int) -> None:
        """Keep at most `n_left` slots for rows that will be added."""
        while len(share.slots) > n_left:
            self._drop_slot(share)
        if not n_left:
            self._shares.pop(share, None)

    def displaced(self, client: str, n: int) -> list[WorkItem] | None:
        """The items that leave the queue so that `client` has `n` more in it; None if it has its share.

        They are the latest of the client with the most items, which keeps as many as `client` has then. Of a
        request with several rows, all leave.
        """
        counts, found = self._counts.copy(), dict[WorkItem, None]()
        n_freed = 0
        while n_freed < n:
            most = max(counts.values(), default=0)
            if most < counts[client] + 2:
                return None
            latest = reversed(self._items)
            item = next(one for one in latest if one not in found and counts[one.client] == most)
            rows = [item] if item.share is None else self.rows_of(item.share)
            found |= dict.fromkeys(rows)
            counts[item.client] -= len(rows)
            counts[client] += len(rows)
            n_freed += len(rows) + (0 if item.share is None else item.share.n_reserved)
        return list(found)

    def rows_of(self, share: GroupShare) -> list[WorkItem]:
        """The waiting rows of a request."""
        return [item for item in self._items if item.share is share]

    def wait_s(self, new: QueuedRequest, now_s: float, busy_s: float, share: GroupShare | None) -> float:
        """Expected wait of a new item (`batching.queue_wait`), which may be a row of an admitted request."""
        pace = max((load.pace for load in self._loads.values()), default=1.0)
        return wait_s(self._times, new, now_s, busy_s, pace, () if share is None else share.slots)

    def excess(
        self, now_s: float, free_s: Sequence[float], without: Collection[WorkItem] = ()
    ) -> tuple[list[WorkItem], list[GroupShare]]:
        """The items, and the requests with several rows, that the others leave no time for."""
        pace = max((load.pace_each for load in self._loads.values()), default=1.0)
        gone = [item.slot for item in without]
        for share in {item.share for item in without}:
            gone += [] if share is None else share.slots
        slots = excess(self._times, now_s, free_s, pace, gone)
        items = [self._slots[slot] for slot in slots if slot in self._slots]
        shares = [item.share for item in items if item.share is not None]
        shares += [self._reserved[slot] for slot in slots if slot in self._reserved]
        return items, list(dict.fromkeys(shares))

    def late(self, now_s: float) -> list[tuple[WorkItem, Exception]]:
        """Waiting items that cannot be in time any more, with their errors."""
        in_time = [item for item in self._items if item.waiting.is_in_time(now_s)]
        if len(in_time) == len(self._items):
            return []
        is_contended = any(item.waiting.due_s < inf for item in in_time)
        others = [item for item in self._items if not item.waiting.is_in_time(now_s)]
        found = [(item, _refusal(item, is_contended)) for item in others]
        return [(item, error) for item, error in found if error is not None]

    def next_run(self, now_s: float, runs: Sequence[BatchRun]) -> BatchRun | None:
        """The next run beside `runs`; None if nothing waits, or if the next item must wait for them."""
        waiting = self.items
        if not waiting:
            return None
        head = min(waiting, key=lambda item: item.waiting.start_s(now_s))
        worker, key = head.worker, head.waiting.key
        n_workers = min(self._n_workers, worker.most_beside) if key is not None else 1
        if len(runs) >= min([n_workers, *(run.most for run in runs)]):
            return None
        plain = [item.waiting for item in waiting]
        if n_workers == 1 or (len(waiting) == 1 and not runs):
            most, cost = worker.most_together, worker.times.expected
            batch = plan_batch(plain, now_s, most, cost, worker.most_items)
            return BatchRun(tuple(waiting[i] for i in batch.numbers), now_s, batch.expected)
        n_alike = sum(one.key == key for one in plain)
        # The rest is left to the other workers, so that requests do not wait for one worker that took all.
        most = min(worker.most_together_beside, ceil(n_alike / n_workers))
        most_items, cost = worker.most_items / n_workers, worker.times_beside.expected
        batch = plan_batch(plain, now_s, most, cost, most_items, n_workers)
        return BatchRun(tuple(waiting[i] for i in batch.numbers), now_s, batch.expected, n_workers)

    def _drop_slot(self, share: GroupShare) -> None:
        slot = share.slots.pop()
        del self._reserved[slot]
        self._times.remove(slot)

    def _load(self, worker: BatchWorker) -> WorkerLoad:
        return self._loads.setdefault(worker, WorkerLoad(worker, self._n_workers))


def _refusal(item: WorkItem, is_contended: bool) -> Exception | None:
    """The error for a late item; one that cannot be planned fails alone."""
    try:
        return item.worker.refusal(item.one, is_contended)
    except Exception as error:  # noqa: BLE001 - the error is passed to the caller
        return error
