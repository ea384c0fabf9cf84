"""What is not refused is in time by a simulation of the queue, and as few as possible are refused."""

from itertools import combinations
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.ir.times.timing import Timing
from pliant.serve.batching import overload
from pliant.serve.batching.overload import SPARE, excess, planned_starts
from pliant.serve.batching.plan_batch import QueuedRequest
from pliant.serve.batching.queue_times import QueueTimes, queue_times

NOW_S = 1.0


@st.composite
def requests(draw: st.DrawFn) -> QueuedRequest:
    median_s = draw(st.sampled_from([0.5, 1.0, 2.0, 3.0]))
    return QueuedRequest(
        Timing(median_s, median_s * draw(st.sampled_from([1.0, 1.5]))),
        due_s=draw(st.one_of(st.just(inf), st.integers(0, 40).map(lambda x: x / 2))),
        fair_s=draw(st.integers(0, 9)) / 2,
        best_effort=draw(st.sampled_from([False, False, False, True])),
    )


QUEUES = st.lists(requests(), max_size=8)
WORKERS = st.lists(st.integers(0, 6).map(lambda x: x / 2), min_size=1, max_size=3)
PACES = st.sampled_from([0.5, 1.0])


def late(waiting: list[QueuedRequest], free_s: list[float], pace: float) -> list[QueuedRequest]:
    """Run all in their order, each on the worker that is free first; those that start too late.

    One that is late already is refused when its deadline has passed.
    """
    free = [NOW_S + seconds for seconds in free_s]
    begin_s = min(free)
    found = []
    for one in sorted(waiting, key=lambda one: one.start_s(NOW_S)):
        k = free.index(min(free))
        if may_refuse(one) and free[k] + one.alone.p95_s > one.due_s + 1e-9:
            found.append(one)
        takes_s = one.alone.median_s
        if one.due_s < inf and not one.best_effort and begin_s + one.alone.p95_s > one.due_s:
            takes_s = min(takes_s, max(one.due_s - begin_s, 0.0))
        free[k] += SPARE * pace * takes_s
    return found


def may_refuse(one: QueuedRequest) -> bool:
    return one.due_s < inf and not one.best_effort and NOW_S + one.alone.p95_s <= one.due_s


def kept(waiting: list[QueuedRequest], free_s: list[float], pace: float) -> list[QueuedRequest]:
    out = excess(queue_times(waiting), NOW_S, free_s, pace)
    assert len(set(out)) == len(out)
    assert all(may_refuse(waiting[i]) for i in out)
    return [one for i, one in enumerate(waiting) if i not in out]


@given(QUEUES, WORKERS, PACES)
def test_what_is_kept_is_in_time(waiting: list[QueuedRequest], free_s: list[float], pace: float) -> None:
    assert not late(kept(waiting, free_s, pace), free_s, pace)


@given(QUEUES, WORKERS, PACES)
def test_nothing_is_refused_where_all_are_in_time(
    waiting: list[QueuedRequest], free_s: list[float], pace: float
) -> None:
    if not late(waiting, free_s, pace):
        assert kept(waiting, free_s, pace) == waiting


@given(QUEUES, requests(), WORKERS, PACES)
def test_a_new_request_makes_no_accepted_one_late(
    waiting: list[QueuedRequest], new: QueuedRequest, free_s: list[float], pace: float
) -> None:
    """Longer ones may be refused for it, and those are told at once: none is left to be late."""
    before = kept(waiting, free_s, pace)
    after = kept([*before, new], free_s, pace)
    assert not late(after, free_s, pace)
    if may_refuse(new):
        displaced = [one for one in before if not any(one is other for other in after)]
        assert all(one.alone.median_s > new.alone.median_s for one in displaced)
        assert len(after) >= len(before)


@given(st.lists(st.integers(0, 20).map(lambda x: x / 2), max_size=7))
def test_as_many_are_kept_as_a_search_of_all_finds(spare_s: list[float]) -> None:
    """Brute force, of requests that take equally long: in order of slack and of deadlines alike."""
    waiting = [QueuedRequest(Timing(1.0, 1.0), due_s=NOW_S + 1.0 + s) for s in spare_s]
    most = max(
        n
        for n in range(len(waiting) + 1)
        if any(not late(list(some), [0.0], 1.0) for some in combinations(waiting, n))
    )
    assert len(kept(waiting, [0.0], 1.0)) == most


def test_of_two_that_cannot_both_be_in_time_the_longer_is_refused() -> None:
    long, short = QueuedRequest(Timing(4.0, 4.0), due_s=9.0), QueuedRequest(Timing(1.0, 1.0), due_s=7.5)
    assert kept([long, short], [0.0], 1.0) == [short]
    assert kept([short, long], [0.0], 1.0) == [short]


class CountedCalls:
    """It counts how often a function is called."""

    def __init__(self, of: Any) -> None:
        self.of, self.n = of, 0

    def __call__(self, *given: Any) -> Any:
        self.n += 1
        return self.of(*given)


def test_a_long_queue_whose_times_have_grown_is_planned_a_limited_number_of_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each refusal planned the whole queue again on the event loop: 3 s for 10,000 requests."""
    n = 2000
    times = [0.010 + 0.001 * (i * 7 % 11) / 11 for i in range(n)]
    waiting = [
        QueuedRequest(Timing(median_s, median_s), due_s=NOW_S + (i + 9) * 0.010)
        for i, median_s in enumerate(times)
    ]
    monkeypatch.setattr(overload, "planned_starts", counted := CountedCalls(planned_starts))
    out = excess(queue_times(waiting), NOW_S, [0.0], 1.0)
    assert n // 4 < len(out) < n // 2
    assert counted.n < 100
    assert not late([one for i, one in enumerate(list(waiting)) if i not in {*out}], [0.0], 1.0)


def due_in(seconds: float, median_s: float, **more: Any) -> QueuedRequest:
    return QueuedRequest(Timing(median_s, median_s), due_s=NOW_S + seconds, **more)


def test_short_requests_of_one_client_take_no_time_from_a_long_one_of_another() -> None:
    """The longest was refused whoever sent it: many short requests left a client with long ones nothing."""
    queue = QueueTimes()
    long = queue.add(due_in(11.0, 4.0), "a")
    short = [queue.add(due_in(7.9, 1.0), "b") for _ in range(5)]
    assert excess(queue, NOW_S, [0.0], 1.0) == short[-1:]
    for slot in short[:2]:
        queue.remove(slot)
    assert excess(queue, NOW_S, [0.0], 1.0) == []
    more = queue.add(due_in(11.0, 1.0), "a")
    queue.add(due_in(7.9, 1.0), "b")
    assert set(excess(queue, NOW_S, [0.0], 1.0)) <= {long, more}, "the first client has more by now"


def test_the_rows_of_a_request_are_refused_together_and_count_as_their_total() -> None:
    queue = QueueTimes()
    rows = [queue.add(due_in(5.0, 1.0), group="rows") for _ in range(3)]
    queue.add(due_in(6.4, 2.0))
    assert sorted(excess(queue, NOW_S, [0.0], 1.0)) == sorted(rows)
    assert excess(queue, NOW_S, [0.0], 1.0, without=rows[:1]) == []


def test_a_late_request_counts_with_what_is_left_of_its_deadline() -> None:
    """It is refused when that has passed, but others were refused for all of its time."""
    late = due_in(1.0, 4.0, fair_s=NOW_S)
    other = due_in(3.0, 1.0)
    assert excess(queue_times([late, other]), NOW_S, [0.0], 1.0) == []
    patient = due_in(1.0, 4.0, fair_s=NOW_S, best_effort=True)
    assert excess(queue_times([patient, other]), NOW_S, [0.0], 1.0) == [1]


@given(QUEUES, st.lists(st.integers(0, 7), max_size=6))
def test_slots_that_are_used_again_keep_the_order(waiting: list[QueuedRequest], gone: list[int]) -> None:
    queue = queue_times(waiting)
    kept_ones = dict(enumerate(waiting))
    for i in gone:
        if i in kept_ones:
            queue.remove(i)
            del kept_ones[i]
            queue.ordered(NOW_S, NOW_S)
            kept_ones[queue.add(waiting[i])] = waiting[i]
    plan = queue.ordered(NOW_S, NOW_S)
    by_start = sorted(kept_ones, key=lambda slot: kept_ones[slot].start_s(NOW_S))
    assert plan.slots.tolist() == by_start
    assert plan.start_s.tolist() == [kept_ones[slot].start_s(NOW_S) for slot in by_start]


def test_a_request_that_is_late_without_the_others_displaces_none() -> None:
    """Longer ones were refused for it, which did not help it: what has no deadline came before it."""
    first, fixed = due_in(6.0, 2.0), QueuedRequest(Timing(10.0, 10.0), fair_s=NOW_S + 5.0)
    hopeless = due_in(7.0, 1.0)
    assert excess(queue_times([first, fixed, hopeless]), NOW_S, [0.0], 1.0) == [2]


def test_a_worker_that_is_busy_for_long_delays_no_work_of_the_others() -> None:
    """Beyond the 64 that are planned exactly, requests waited for half of the time of a run that hung."""
    waiting = [due_in(5.0, 0.01) for _ in range(100)]
    assert excess(queue_times(waiting), NOW_S, [0.0, 60.0], 1.0) == []
    starts_s = planned_starts(np.full(100, 0.01), [0.0, 60.0])
    assert starts_s == pytest.approx(np.arange(100) * 0.01)
