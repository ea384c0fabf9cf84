"""What is not refused is in time by a simulation of the queue, and as few as possible are refused."""

from itertools import combinations
from math import inf
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pliant.ir.times.timing import Timing
from pliant.serve.batching.overload import SPARE, excess
from pliant.serve.batching.plan_batch import QueuedRequest

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
    """Run all in their order, each on the worker that is free first; those that start too late."""
    free = [NOW_S + seconds for seconds in free_s]
    found = []
    for one in sorted(waiting, key=lambda one: one.start_s(NOW_S)):
        k = free.index(min(free))
        if may_refuse(one) and free[k] + one.alone.p95_s > one.due_s + 1e-9:
            found.append(one)
        free[k] += SPARE * pace * one.alone.median_s
    return found


def may_refuse(one: QueuedRequest) -> bool:
    return one.due_s < inf and not one.best_effort and NOW_S + one.alone.p95_s <= one.due_s


def kept(waiting: list[QueuedRequest], free_s: list[float], pace: float) -> list[QueuedRequest]:
    out = excess(waiting, NOW_S, free_s, pace)
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


class CountedReads(list[QueuedRequest]):
    """It counts how often a request is read."""

    n = 0

    def __getitem__(self, i: Any) -> Any:
        self.n += 1
        return super().__getitem__(i)


def test_a_long_queue_whose_times_have_grown_is_planned_a_limited_number_of_times() -> None:
    """Each refusal planned the whole queue again on the event loop: 3 s for 10,000 requests."""
    n = 2000
    times = [0.010 + 0.001 * (i * 7 % 11) / 11 for i in range(n)]
    waiting = CountedReads(
        QueuedRequest(Timing(median_s, median_s), due_s=NOW_S + (i + 9) * 0.010)
        for i, median_s in enumerate(times)
    )
    out = excess(waiting, NOW_S, [0.0], 1.0)
    assert n // 4 < len(out) < n // 2
    assert waiting.n < 100 * n
    assert not late([one for i, one in enumerate(list(waiting)) if i not in {*out}], [0.0], 1.0)
