"""While all can be in time a batch makes nobody late, and holds who has the least slack and all that fit.

Else it answers most for its time, and keeps its members in time.
"""

from itertools import combinations
from math import inf

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pliant.ir.times.timing import Timing
from pliant.serve.batching.plan_batch import QueuedRequest, plan_batch, wait_s

_SECONDS = st.sampled_from([0.5, 1.0, 2.0, 3.0])


@st.composite
def requests(draw: st.DrawFn) -> QueuedRequest:
    median_s = draw(_SECONDS)
    return QueuedRequest(
        Timing(median_s, median_s * draw(st.sampled_from([1.0, 1.5]))),
        draw(st.integers(0, 9)),
        draw(st.one_of(st.just(inf), st.integers(0, 24).map(lambda x: x / 2))),
        draw(st.integers(0, 9)) / 10,
        draw(st.sampled_from(["a", "a", "a", "b", None])),
    )


def half(n: int, length: int, alone: Timing) -> Timing:
    """The first of a batch costs what it does alone, each other half."""
    part = (1.0 + 0.5 * (n - 1)) / n
    return Timing(alone.median_s * part, alone.p95_s * part)


def dearer(n: int, length: int, alone: Timing) -> Timing:
    """A batch takes longer than its requests one by one."""
    return Timing(alone.median_s * (1 + 0.1 * (n - 1)), alone.p95_s * (1 + 0.1 * (n - 1)))


def end_s(waiting: list[QueuedRequest], numbers: tuple[int, ...], now_s: float) -> float:
    """When a batch ends by its bound, computed from nothing but its members."""
    alone = Timing(
        sum(waiting[i].alone.median_s for i in numbers), sum(waiting[i].alone.p95_s for i in numbers)
    )
    return now_s + half(len(numbers), 0, alone).p95_s


def late(waiting: list[QueuedRequest], numbers: tuple[int, ...], now_s: float) -> set[int]:
    """Members that end after their deadline, which they would have kept alone, at least by their median."""
    at_s = end_s(waiting, numbers, now_s)
    likely = {i for i in numbers if now_s + waiting[i].alone.median_s <= waiting[i].due_s < inf}
    return {i for i in likely if max(waiting[i].due_s, now_s + waiting[i].alone.p95_s) < at_s}


def are_in_time(waiting: list[QueuedRequest], now_s: float) -> bool:
    """Whether all with a deadline that is left would keep it one by one, the earliest first."""
    at_s = now_s
    for one in sorted(waiting, key=lambda one: one.due_s):
        if one.due_s < inf and now_s + one.alone.p95_s <= one.due_s:
            at_s += one.alone.p95_s
            if at_s > one.due_s:
                return False
    return True


@given(st.lists(requests(), min_size=1, max_size=6), st.integers(1, 6))
def test_a_batch_is_one_of_those_that_a_search_of_all_allows(waiting: list[QueuedRequest], most: int) -> None:
    """Brute force: every subset with the most urgent request, of its key, that makes no member late."""
    now_s = 1.0
    assume(are_in_time(waiting, now_s))
    found = plan_batch(waiting, now_s, most, half).numbers
    head = min(range(len(waiting)), key=lambda i: waiting[i].start_s(now_s))
    others = [i for i in range(len(waiting)) if i != head and waiting[i].key == waiting[head].key is not None]
    allowed = {
        frozenset((head, *more))
        for n in range(most)
        for more in combinations(others, n)
        if not late(waiting, (head, *more), now_s)
    }
    assert found[0] == head
    assert frozenset(found) in allowed
    assert len(set(found)) == len(found)


@given(st.lists(requests(), min_size=1, max_size=6))
def test_what_is_left_out_would_make_somebody_late(waiting: list[QueuedRequest]) -> None:
    """Otherwise it waits for nothing: here a larger batch always takes a lesser part."""
    now_s = 1.0
    assume(are_in_time(waiting, now_s))
    found = plan_batch(waiting, now_s, 6, half).numbers
    head = waiting[found[0]]
    out = [i for i in range(len(waiting)) if i not in found]
    for i in (i for i in out if waiting[i].key == head.key is not None):
        longer = (*found, i)
        begins_late = [
            j
            for j in out
            if j != i
            and end_s(waiting, found, now_s) <= waiting[j].due_s - waiting[j].alone.p95_s
            and end_s(waiting, longer, now_s) > waiting[j].due_s - waiting[j].alone.p95_s
        ]
        assert late(waiting, longer, now_s) or begins_late


@given(st.lists(requests(), min_size=1, max_size=6), st.integers(1, 6))
def test_members_are_in_time_where_others_cannot_be(waiting: list[QueuedRequest], most: int) -> None:
    found = plan_batch(waiting, 1.0, most, half).numbers
    assert 1 <= len(found) == len(set(found)) <= most
    assert not late(waiting, found, 1.0)
    assert len(found) == 1 or len({waiting[i].key for i in found}) == 1


@given(st.lists(st.integers(2, 16).map(lambda x: x / 2), min_size=3, max_size=9), st.integers(1, 9))
def test_too_many_requests_are_answered_by_the_largest_batch_in_time(due: list[float], most: int) -> None:
    """Brute force, with requests that take alike: the largest batch has the least part."""
    waiting = [QueuedRequest(Timing(1.0, 1.0), due_s=due_s, key="a") for due_s in due]
    assume(not all(i + 1 <= due_s for i, due_s in enumerate(sorted(due))))
    largest = max(n for n in range(1, most + 1) if sum(due_s >= 0.5 + 0.5 * n for due_s in due) >= n)
    assert len(plan_batch(waiting, 0.0, most, half).numbers) == largest


def test_a_tight_request_does_not_keep_many_from_a_batch() -> None:
    """Served one by one, the tight ones would make the others late."""
    tight = [QueuedRequest(Timing(1.0, 1.0), due_s=1.0 + i / 10, key="a") for i in range(4)]
    loose = [QueuedRequest(Timing(1.0, 1.0), due_s=6.0, key="a") for _ in range(8)]
    numbers = plan_batch(tight + loose, 0.0, 16, half).numbers
    assert sorted(numbers) == list(range(4, 12))


def test_a_batch_may_have_to_be_large_to_gain() -> None:
    """Two together take longer than one after the other, four take half: a search that stops at the first
    loss would run each alone."""

    def price(n: int, length: int, alone: Timing) -> Timing:
        part = {1: 1.0, 2: 1.2, 3: 1.1}.get(n, 0.5)
        return Timing(alone.median_s * part, alone.p95_s * part)

    one = QueuedRequest(Timing(1.0, 1.0), key="a")
    assert len(plan_batch([one] * 6, 0.0, 4, price).numbers) == 4
    assert len(plan_batch([one] * 3, 0.0, 4, price).numbers) == 1


@given(st.lists(requests(), min_size=2, max_size=6))
def test_a_batch_that_gains_nothing_is_not_made(waiting: list[QueuedRequest]) -> None:
    assert len(plan_batch(waiting, 0.0, 6, dearer).numbers) == 1


def test_those_with_the_least_slack_go_first_and_late_ones_as_they_came() -> None:
    """A late answer, which somebody asked for nevertheless, may not make those late that can be in time."""
    one = Timing(1.0, 1.0)
    never, tight, loose, lost = (
        QueuedRequest(one, due_s=inf, fair_s=3.0),
        QueuedRequest(one, due_s=2.5),
        QueuedRequest(one, due_s=9.0),
        QueuedRequest(one, due_s=0.5, fair_s=4.0),
    )
    assert plan_batch([never, loose, tight, lost], 1.0, 4, half).numbers == (2,)
    assert plan_batch([never, loose, lost], 1.0, 4, half).numbers == (0,)
    assert plan_batch([loose, lost], 1.0, 4, half).numbers == (1,)


@pytest.mark.parametrize(
    ("due_s", "waits_s"),
    [
        (4.0, 2.0),  # before both: one of them has time, the other never is due
        (inf, 5.0),
    ],
)
def test_a_request_waits_for_those_with_less_slack(due_s: float, waits_s: float) -> None:
    waiting = [QueuedRequest(Timing(2.0, 2.0), due_s=20.0), QueuedRequest(Timing(1.0, 1.0), fair_s=9.0)]
    new = QueuedRequest(Timing(1.0, 1.0), due_s=due_s, fair_s=30.0)
    assert wait_s(waiting, new, 0.0, 2.0, 1.0) == waits_s


@pytest.mark.parametrize(
    ("takes_s", "due_s", "waits_s"),
    [
        (1.0, 3.4, 2.0),  # the other one is late by it, and longer: it is given up
        (2.1, 5.4, 4.0),  # the other one is shorter: it would be late, and may go elsewhere or be refused
        (2.1, inf, 5.0),
    ],
)
def test_where_one_of_two_is_late_it_is_the_longer(takes_s: float, due_s: float, waits_s: float) -> None:
    """So that the fewest are."""
    waiting = [QueuedRequest(Timing(2.0, 2.0), due_s=4.5), QueuedRequest(Timing(1.0, 1.0), fair_s=9.0)]
    new = QueuedRequest(Timing(takes_s, takes_s), due_s=due_s, fair_s=30.0)
    assert wait_s(waiting, new, 0.0, 2.0, 1.0) == waits_s


def test_once_some_are_late_those_that_take_least_run_first() -> None:
    """Five of one second each are in time where one of five seconds is not; nobody waits for ever by it."""
    short = [QueuedRequest(Timing(1.0, 1.0), due_s=6.0 + i) for i in range(5)]
    long = QueuedRequest(Timing(5.0, 5.0), due_s=6.0)
    assert plan_batch([long, *short], 0.5, 1, half).numbers == (1,)
    never = QueuedRequest(Timing(5.0, 5.0), due_s=inf, fair_s=0.0)
    assert plan_batch([long, *short, never], 0.5, 1, half).numbers == (6,), "its turn has come"
    likely = QueuedRequest(Timing(1.0, 2.0), due_s=2.0, fair_s=0.0)  # its bound is late, its median is not
    assert 6 in plan_batch([long, *short, likely], 0.5, 6, half).numbers


@given(st.lists(requests(), min_size=1, max_size=6), st.integers(1, 20))
def test_a_batch_has_no_more_items_than_there_is_room_for(
    waiting: list[QueuedRequest], most_items: int
) -> None:
    """Else it would take memory that is others'; one that is longer runs alone, and somebody always runs."""
    found = plan_batch(waiting, 1.0, 6, half, most_items).numbers
    assert len(found) == 1 or sum(waiting[i].length for i in found) <= most_items
