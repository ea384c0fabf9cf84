"""Which of the requests that wait run next, and together.

A request should begin at the latest where its bound, alone, still ends at its deadline: that is its slack.
While all that wait can be in time, the least slack runs first and nobody is made late. Once they cannot, some
are late whatever runs: then those that take least run first, which leaves the fewest late, and together where
that takes less of the time, of members that it keeps in time.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import ceil, inf

from pliant.ir.times.timing import Timing

Price = Callable[[int, int, Timing], Timing]
"""What some requests take together, by their number, their items in all, and what they take one by one."""

_ALIKE = 1e-2
"""Parts that differ by less are equal."""
_SPARE = 2.0
"""Batches that make nobody late take so many times as long as the best ones."""
_LARGER = 1.25
"""Sizes of batches that are tried, each to the one before."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that waits. `alone` is what it takes by itself; `due_s` is infinity where it is never due.

    Those of an equal `key` may run together; one without runs alone. `fair_s` is when it would have begun had
    all been served as they came: where a deadline does not tell, or cannot be kept, requests go by that.
    """

    alone: Timing
    length: int = 1
    due_s: float = inf
    fair_s: float = 0.0
    key: Hashable | None = None

    def start_s(self, now_s: float) -> float:
        """When it should begin at the latest."""
        return self.latest_s if self.is_in_time(now_s) and self.due_s < inf else self.fair_s

    @property
    def latest_s(self) -> float:
        """When it has to begin for its bound to keep its deadline."""
        return self.due_s - self.alone.p95_s

    def is_in_time(self, begun_s: float) -> bool:
        """Whether its bound, alone, keeps its deadline when it begins at `begun_s`."""
        return begun_s <= self.latest_s


@dataclass(frozen=True, slots=True)
class Batch:
    """The numbers of the requests that run next, the least slack first, and what they should take."""

    numbers: tuple[int, ...]
    expected: Timing


def plan_batch(
    waiting: Sequence[Waiting],
    now_s: float,
    most: int,
    price: Price,
    most_items: float = inf,
    n_workers: int = 1,
) -> Batch:
    """The next of `waiting`, at least one, with at most `most` - 1 others that run together with it.

    They have at most `most_items` items all together; one that has more runs alone. So many batches run at
    the same time.
    """
    order = sorted(range(len(waiting)), key=lambda i: waiting[i].start_s(now_s))
    if _can_all_be_in_time(waiting, now_s, most, price, most_items, n_workers):
        return _harmless(waiting, order, now_s, most, price, most_items)
    head = waiting[order[0]]
    if _is_bound(head, now_s):  # else it has waited its time, or is late already: it is not passed over
        bound = [i for i in order if _is_bound(waiting[i], now_s)]
        bound.sort(key=lambda i: waiting[i].alone.median_s)
        order = [*bound, *(i for i in order if not _is_bound(waiting[i], now_s))]
    return _quickest(waiting, order, now_s, most, price, most_items)


def _is_bound(one: Waiting, now_s: float) -> bool:
    """Whether it has a deadline, and can be in time."""
    return one.due_s < inf and one.is_in_time(now_s)


def _can_all_be_in_time(
    waiting: Sequence[Waiting], now_s: float, most: int, price: Price, most_items: float, n_workers: int
) -> bool:
    """Whether all that would be in time alone can be, by their deadlines, with time to spare."""
    due = sorted((one for one in waiting if one.due_s < inf and one.is_in_time(now_s)), key=_due_s)
    if not due:
        return True
    n = max(1, int(min(most, len(due), most_items * len(due) / sum(one.length for one in due))))
    pace = _SPARE * _part(_usual(due, n, price), _share(due, n))
    end_s = now_s
    for one in due:
        end_s += min(pace, 1.0) * one.alone.median_s / n_workers
        if end_s > one.due_s:
            return False
    return True


def _quickest(
    waiting: Sequence[Waiting],
    order: Sequence[int],
    now_s: float,
    most: int,
    price: Price,
    most_items: float,
) -> Batch:
    """Of batches of those that run together and come first, each of members that it keeps in time, the one
    that takes the least part of what they take one by one; of equal ones the largest."""
    head = waiting[order[0]]
    alike = [i for i in order if waiting[i].key == head.key] if head.key is not None else [order[0]]
    best, best_part = Batch((order[0],), price(1, head.length, head.alone)), inf
    size = 1
    while size <= min(most, len(alike)):
        usual = _usual([waiting[i] for i in alike], size, price)
        kept = [i for i in alike if now_s + usual.p95_s <= _ends_by(waiting[i], now_s)]
        kept = _fitting(waiting, kept[:size], most_items)
        made = _priced(waiting, kept, price)
        kept = [i for i in kept if now_s + made.expected.p95_s <= _ends_by(waiting[i], now_s)]
        if kept:
            made = _priced(waiting, kept, price)
            part = _part(made.expected, _alone([waiting[i] for i in kept]))
            if part <= best_part * (1.0 + _ALIKE):
                best, best_part = made, min(part, best_part)
        size = max(size + 1, int(size * _LARGER))
    return best


def _fitting(waiting: Sequence[Waiting], numbers: Sequence[int], most_items: float) -> list[int]:
    """The first of them, and those behind it with which there are at most so many items."""
    kept, n_items = list(numbers[:1]), sum(waiting[i].length for i in numbers[:1])
    for i in numbers[1:]:
        if n_items + waiting[i].length <= most_items:
            kept.append(i)
            n_items += waiting[i].length
    return kept


def _usual(some: Sequence[Waiting], n: int, price: Price) -> Timing:
    """What `n` requests as `some` are on average take together."""
    return price(n, ceil(sum(one.length for one in some) * n / len(some)), _share(some, n))


def _share(some: Sequence[Waiting], n: int) -> Timing:
    """The same one by one."""
    alone = _alone(some)
    return Timing(alone.median_s * n / len(some), alone.p95_s * n / len(some))


def _priced(waiting: Sequence[Waiting], numbers: Sequence[int], price: Price) -> Batch:
    chosen = [waiting[i] for i in numbers]
    n_items = sum(one.length for one in chosen)
    return Batch(tuple(numbers), price(len(chosen), n_items, _alone(chosen)) if chosen else Timing(0.0, 0.0))


def _alone(some: Sequence[Waiting]) -> Timing:
    """What they take one by one."""
    return Timing(sum(one.alone.median_s for one in some), sum(one.alone.p95_s for one in some))


def _due_s(one: Waiting) -> float:
    return one.due_s


def _harmless(
    waiting: Sequence[Waiting],
    order: Sequence[int],
    now_s: float,
    most: int,
    price: Price,
    most_items: float,
) -> Batch:
    """The one with the least slack, and others with which nobody is late who would be in time alone.

    Others are considered in the order of their slack. One is left out where a member that alone would be in
    time would end late, and where one that was left out before would begin too late by it. Of the batches
    that this makes, one after the other, it is the one that takes the least part of what its requests take
    one by one; of equal ones the largest.
    """
    head = waiting[order[0]]
    chosen, n_items, alone = [order[0]], head.length, head.alone
    expected = price(1, n_items, alone)
    best, best_part = Batch((order[0],), expected), _part(expected, alone)
    ends_by_s = _ends_by(head, now_s)
    left_out: list[float] = []  # when those that were left out have to begin, where they can be in time
    for i in order[1:] if head.key is not None else ():
        if len(chosen) == most:
            break
        one = waiting[i]
        if one.key == head.key and n_items + one.length <= most_items:
            both = Timing(alone.median_s + one.alone.median_s, alone.p95_s + one.alone.p95_s)
            together = price(len(chosen) + 1, n_items + one.length, both)
            before_s, end_s = now_s + expected.p95_s, now_s + together.p95_s
            is_kept = end_s <= min(ends_by_s, _ends_by(one, now_s))
            if is_kept and not any(before_s <= latest_s < end_s for latest_s in left_out):
                chosen.append(i)
                n_items, alone, expected = n_items + one.length, both, together
                ends_by_s = min(ends_by_s, _ends_by(one, now_s))
                if (part := _part(expected, alone)) <= best_part * (1.0 + _ALIKE):
                    best, best_part = Batch(tuple(chosen), expected), min(part, best_part)
                continue
        left_out.append(one.latest_s)
    return best


def wait_s(waiting: Sequence[Waiting], new: Waiting, now_s: float, busy_s: float, pace: float) -> float:
    """How long `new` would wait if it came now: behind those with less slack, while all can be in time.

    What runs now takes `busy_s` more, those that wait `pace` times what they take alone. Once some would be
    late, `new` waits for those with a deadline that take less; one without waits for all.
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


def _part(together: Timing, alone: Timing) -> float:
    return together.median_s / alone.median_s if alone.median_s else 1.0


def _ends_by(one: Waiting, now_s: float) -> float:
    """When a batch with `one` has to end: at its deadline, where it would keep it alone.

    One whose median alone would be in time, and not its bound, is not made later by others.
    """
    if one.is_in_time(now_s):
        return one.due_s
    return now_s + one.alone.p95_s if now_s + one.alone.median_s <= one.due_s else inf
