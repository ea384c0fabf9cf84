"""Choose the next waiting requests to run, and which of them run in one batch.

A request's slack is the time until its latest start, at which its bound alone still meets its deadline. While
all waiting requests can be in time, the one with the least slack runs first, and no other request is made
late. If not all can be in time, the shortest requests run first, which leaves the fewest late, in batches if
that takes less time, of members that the batch keeps in time.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import ceil, inf

from pliant.ir.times.timing import Timing

BatchCost = Callable[[int, int, Timing], Timing]
"""Expected time of a batch, by its number of requests, total items, and total time one by one."""

_ALIKE = 1e-2
"""Fractions that differ by less are treated as equal."""
_SPARE = 2.0
"""Assumed time of batches that make no request late, relative to the best batches."""
_LARGER = 1.25
"""Ratio of successive batch sizes that are tried."""


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A waiting request. `alone` is its time by itself; `due_s` is infinity without a deadline.

    `loading_s` of `alone` prepare the model for its shape: later requests need not repeat that.

    Requests with an equal `key` may run in one batch; one without a key runs alone. `fair_s` is its start
    time in order of arrival: it determines the order if there is no deadline or the deadline cannot be met.
    With `best_effort`, it is answered even if it is late.
    """

    alone: Timing
    length: int = 1
    due_s: float = inf
    fair_s: float = 0.0
    key: Hashable | None = None
    best_effort: bool = False
    loading_s: float = 0.0

    def start_s(self, now_s: float) -> float:
        """The start time by which requests are ordered."""
        return self.latest_s if self.is_in_time(now_s) and self.due_s < inf else self.fair_s

    @property
    def latest_s(self) -> float:
        """The latest start at which its bound meets the deadline."""
        return self.due_s - self.alone.p95_s

    def is_in_time(self, begun_s: float) -> bool:
        """Whether its bound alone meets the deadline if it starts at `begun_s`."""
        return begun_s <= self.latest_s


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The next requests by their index, least slack first, and their expected time."""

    numbers: tuple[int, ...]
    expected: Timing


def plan_batch(
    waiting: Sequence[QueuedRequest],
    now_s: float,
    most: int,
    cost: BatchCost,
    most_items: float = inf,
    n_workers: int = 1,
) -> BatchPlan:
    """The next batch of `waiting`: at least one request and at most `most`.

    A batch has at most `most_items` items in total; a longer request runs alone. `n_workers` batches run
    concurrently.
    """
    order = sorted(range(len(waiting)), key=lambda i: waiting[i].start_s(now_s))
    if _can_all_be_in_time(waiting, now_s, most, cost, most_items, n_workers):
        return _plan_by_slack(waiting, order, now_s, most, cost, most_items)
    head = waiting[order[0]]
    if _is_bound(head, now_s):  # else it waited long enough or is late: it goes first
        bound = [i for i in order if _is_bound(waiting[i], now_s)]
        bound.sort(key=lambda i: waiting[i].alone.median_s)
        order = [*bound, *(i for i in order if not _is_bound(waiting[i], now_s))]
    return _plan_by_throughput(waiting, order, now_s, most, cost, most_items)


def _is_bound(one: QueuedRequest, now_s: float) -> bool:
    """Whether it has a deadline and can be in time."""
    return one.due_s < inf and one.is_in_time(now_s)


def _can_all_be_in_time(
    waiting: Sequence[QueuedRequest],
    now_s: float,
    most: int,
    cost: BatchCost,
    most_items: float,
    n_workers: int,
) -> bool:
    """Whether all requests that are in time alone can be in time together, with a margin."""
    due = sorted((one for one in waiting if one.due_s < inf and one.is_in_time(now_s)), key=_due_s)
    if not due:
        return True
    n_items = max(1, sum(one.length for one in due))  # an input may be empty
    n = max(1, int(min(most, len(due), most_items * len(due) / n_items)))
    pace = _SPARE * _relative_time(_average_time(due, n, cost), _average_serial_time(due, n))
    end_s = now_s
    for one in due:
        end_s += min(pace, 1.0) * one.alone.median_s / n_workers
        if end_s > one.due_s:
            return False
    return True


def _plan_by_throughput(
    waiting: Sequence[QueuedRequest],
    order: Sequence[int],
    now_s: float,
    most: int,
    cost: BatchCost,
    most_items: float,
) -> BatchPlan:
    """The batch with the least time relative to its requests one by one; of equal ones the largest.

    It consists of the first requests that may run together and that the batch keeps in time. A first request
    that is not certain to be in time is part of it.
    """
    head = waiting[order[0]]
    alike = [i for i in order if waiting[i].key == head.key] if head.key is not None else [order[0]]
    best, best_part = BatchPlan((order[0],), cost(1, head.length, head.alone)), inf
    size = 1
    while size <= min(most, len(alike)):
        usual = _average_time([waiting[i] for i in alike], size, cost)
        kept = [i for i in alike if now_s + usual.p95_s <= _latest_end_s(waiting[i], now_s)]
        kept = _fit_items(waiting, kept[:size], most_items)
        made = _cost_batch(waiting, kept, cost)
        kept = [i for i in kept if now_s + made.expected.p95_s <= _latest_end_s(waiting[i], now_s)]
        if kept and (kept[0] == order[0] or _is_bound(head, now_s)):
            made = _cost_batch(waiting, kept, cost)
            part = _relative_time(made.expected, _serial_time([waiting[i] for i in kept]))
            if part <= best_part * (1.0 + _ALIKE):
                best, best_part = made, min(part, best_part)
        size = max(size + 1, int(size * _LARGER))
    return best


def _fit_items(waiting: Sequence[QueuedRequest], numbers: Sequence[int], most_items: float) -> list[int]:
    """The first request, and those after it that fit into `most_items`."""
    kept, n_items = list(numbers[:1]), sum(waiting[i].length for i in numbers[:1])
    for i in numbers[1:]:
        if n_items + waiting[i].length <= most_items:
            kept.append(i)
            n_items += waiting[i].length
    return kept


def _average_time(some: Sequence[QueuedRequest], n: int, cost: BatchCost) -> Timing:
    """Expected time of a batch of `n` requests like `some` on average."""
    return cost(n, ceil(sum(one.length for one in some) * n / len(some)), _average_serial_time(some, n))


def _average_serial_time(some: Sequence[QueuedRequest], n: int) -> Timing:
    """Expected time of `n` such requests one by one."""
    alone = _serial_time(some)
    return Timing(alone.median_s * n / len(some), alone.p95_s * n / len(some))


def _cost_batch(waiting: Sequence[QueuedRequest], numbers: Sequence[int], cost: BatchCost) -> BatchPlan:
    chosen = [waiting[i] for i in numbers]
    n_items = sum(one.length for one in chosen)
    return BatchPlan(
        tuple(numbers), cost(len(chosen), n_items, _serial_time(chosen)) if chosen else Timing(0.0, 0.0)
    )


def _serial_time(some: Sequence[QueuedRequest]) -> Timing:
    """Expected time of the requests one by one."""
    return Timing(sum(one.alone.median_s for one in some), sum(one.alone.p95_s for one in some))


def _due_s(one: QueuedRequest) -> float:
    return one.due_s


def _plan_by_slack(
    waiting: Sequence[QueuedRequest],
    order: Sequence[int],
    now_s: float,
    most: int,
    cost: BatchCost,
    most_items: float,
) -> BatchPlan:
    """The request with the least slack, and others that make no request late that is in time alone.

    Others are considered in the order of their slack. One is skipped if a member would become late that is in
    time alone, or if a skipped request would then start too late. Of the batches so built, the result has the
    least time relative to its requests one by one; of equal ones, it is the largest.
    """
    head = waiting[order[0]]
    chosen, n_items, alone = [order[0]], head.length, head.alone
    expected = cost(1, n_items, alone)
    best, best_part = BatchPlan((order[0],), expected), _relative_time(expected, alone)
    ends_by_s = _latest_end_s(head, now_s)
    left_out: list[float] = []  # latest starts of skipped requests
    for i in order[1:] if head.key is not None else ():
        if len(chosen) == most:
            break
        one = waiting[i]
        if one.key == head.key and n_items + one.length <= most_items:
            both = Timing(alone.median_s + one.alone.median_s, alone.p95_s + one.alone.p95_s)
            together = cost(len(chosen) + 1, n_items + one.length, both)
            before_s, end_s = now_s + expected.p95_s, now_s + together.p95_s
            is_kept = end_s <= min(ends_by_s, _latest_end_s(one, now_s))
            if is_kept and not any(before_s <= latest_s < end_s for latest_s in left_out):
                chosen.append(i)
                n_items, alone, expected = n_items + one.length, both, together
                ends_by_s = min(ends_by_s, _latest_end_s(one, now_s))
                if (part := _relative_time(expected, alone)) <= best_part * (1.0 + _ALIKE):
                    best, best_part = BatchPlan(tuple(chosen), expected), min(part, best_part)
                continue
        left_out.append(one.latest_s)
    return best


def wait_s(
    waiting: Sequence[QueuedRequest], new: QueuedRequest, now_s: float, busy_s: float, pace: float
) -> float:
    """Expected wait of `new`: behind requests with less slack, while all can be in time.

    Running work takes `busy_s` more, waiting requests `pace` times their time alone. If some would be late,
    `new` waits for shorter requests with a deadline; without a deadline, it waits for all.
    """
    begin_s = now_s + busy_s
    before_s = all_s = shorter_s = 0.0
    is_late = is_passed = False
    for one in sorted((*waiting, new), key=lambda one: one.start_s(now_s)):
        is_late = is_late or (_is_bound(one, begin_s) and not one.is_in_time(begin_s + all_s))
        if one is new:
            before_s, is_passed = all_s, True
        elif one.alone.median_s <= new.alone.median_s if _is_bound(one, begin_s) else not is_passed:
            shorter_s += pace * one.alone.median_s
        all_s += pace * one.alone.median_s
    if not is_late:
        return busy_s + before_s
    return busy_s + (shorter_s if _is_bound(new, begin_s) else all_s - pace * new.alone.median_s)


def _relative_time(together: Timing, alone: Timing) -> float:
    return together.median_s / alone.median_s if alone.median_s else 1.0


def _latest_end_s(one: QueuedRequest, now_s: float) -> float:
    """The latest end of a batch with `one`: its deadline, if it would meet it alone.

    A request whose median meets the deadline alone, but whose bound does not, is not delayed by others.
    """
    if one.is_in_time(now_s):
        return one.due_s
    return now_s + one.alone.p95_s if now_s + one.alone.median_s <= one.due_s else inf
