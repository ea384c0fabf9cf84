"""Accuracy against time: curves by floor, and what a request gets."""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.errors import BudgetError, RouteError
from pliant.ir.endpoint import RESOLUTION
from pliant.ir.times import level_selector
from pliant.ir.times.bounded_level import pick_evenly
from pliant.ir.times.level_selector import Level, LevelSelector, pareto_levels
from pliant.ir.times.timing import Timing

ENDS = ((0, 8), (9, 24), (25, 60))
tenth = st.integers(0, 100).map(lambda x: x / 100)
rank_of = st.integers(0, 1000).map(lambda x: x / 1000)


@st.composite
def level(draw: st.DrawFn, first: int, last: int, is_measured: bool = True) -> Level:
    seconds = (draw(tenth) + 0.01, draw(tenth) + 0.01)
    extra = draw(tenth)
    rank = draw(rank_of)
    return Level(
        first,
        last,
        draw(st.integers()),
        rank if is_measured else None,
        rank,
        (Timing(seconds[0], seconds[0] + extra), Timing(seconds[1], seconds[1] + extra)),
    )


@st.composite
def all_levels(draw: st.DrawFn) -> list[Level]:
    found: list[Level] = []
    for first, last in ENDS:
        found += draw(st.lists(level(first, last), min_size=1, max_size=6))
    return found


def at(n: int, levels: list[Level]) -> list[Level]:
    return [x for x in levels if x.first <= n <= x.last]


@given(all_levels(), tenth, tenth)
@settings(max_examples=80)
def test_a_lower_floor_is_never_slower(levels: list[Level], a: float, b: float) -> None:
    """At any length, in the curve that others are told and in what is picked."""
    trade, (low, high) = LevelSelector(levels), sorted((a, b))
    if trade.best is None or high > trade.best:
        return
    for n in range(61):
        assert trade.curve(low).at(n) <= trade.curve(high).at(n) * (1 + 1e-9)
        assert trade.pick(n, low).time.median_s <= trade.pick(n, high).time.median_s * (1 + 1e-9)


def test_levels_are_complete_for_a_second_thread_while_the_first_finds_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was given none, although a selector has one at least."""
    only = Level(0, 8, 0, 0.9, 0.9, (Timing(0.1, 0.2), Timing(0.3, 0.4)))
    trade, seen = LevelSelector([only]), list[int]()

    def meanwhile(ranks: Sequence[float], most: int) -> list[float]:
        monkeypatch.setattr(level_selector, "pick_evenly", pick_evenly)
        seen.append(len(trade.levels()))
        return pick_evenly(ranks, most)

    monkeypatch.setattr(level_selector, "pick_evenly", meanwhile)
    assert len(trade.levels()) == 1
    assert seen == [1]


@given(all_levels(), tenth)
@settings(max_examples=80)
def test_a_curve_is_the_least_of_all_ways_above_the_floor(levels: list[Level], floor: float) -> None:
    """Brute force over every way at every length; a floor that none reaches is refused."""
    trade = LevelSelector(levels)
    allowed = {n: [x.at(n).median_s for x in at(n, levels) if x.rank >= floor] for n in range(61)}
    if not all(allowed.values()):
        with pytest.raises(BudgetError, match="at most"):
            trade.curve(floor)
        return
    for n in range(61):
        assert trade.curve(floor).at(n) == pytest.approx(min(allowed[n]), rel=1e-9)


@given(all_levels(), tenth, st.integers(0, 60))
@settings(max_examples=80)
def test_a_deadline_gets_the_fastest_of_the_most_accurate_that_keep_it(
    levels: list[Level], deadline_s: float, n: int
) -> None:
    """Brute force; if none keeps it, the fastest, flagged. A later deadline never costs accuracy that can be
    measured."""
    trade = LevelSelector(levels)
    pick = trade.pick(n, 0.0, deadline_s + 1e-6)
    # ends dominate: what another beats at both ends of a range is never needed
    in_time = [x for x in pareto_levels(at(n, levels)) if x.at(n).p95_s <= deadline_s + 1e-6]
    assert pick.is_met == bool(in_time)
    if in_time:
        least = max(x.rank for x in in_time) - RESOLUTION - 1e-9
        assert pick.level.rank >= least
        assert pick.time.median_s == min(x.at(n).median_s for x in in_time if x.rank >= least)
        later = trade.pick(n, 0.0, deadline_s + 0.5).level
        assert later.rank >= pick.level.rank - RESOLUTION - 1e-9
    else:
        assert pick.time.median_s == pytest.approx(min(x.at(n).median_s for x in at(n, levels)))


def one(key: object, accuracy: float | None, seconds: float, rank: float | None = None) -> Level:
    level_rank = accuracy if rank is None else rank
    assert level_rank is not None
    return Level(0, 10, key, accuracy, level_rank, (Timing(seconds, seconds),) * 2)


def test_with_a_floor_alone_time_counts_and_else_accuracy() -> None:
    """With a floor that is, even one of nothing; no floor and no hurry give the best."""
    trade = LevelSelector([one("small", 0.8, 0.01), one("middle", 0.88, 0.02), one("whole", 0.92, 0.04)])
    assert trade.pick(5).level.key == "whole"
    assert trade.pick(5, 0.0).level.key == "small"
    assert trade.pick(5, 0.85).level.key == "middle"
    assert trade.pick(5, 0.0, 0.03).level.key == "middle"
    assert trade.pick(5, 0.0, float("inf")).level.key == "whole"
    assert trade.best == 0.92
    alike = LevelSelector([one("middle", 0.918, 0.02), one("whole", 0.92, 0.04)])
    assert [alike.pick(5).level.key, alike.pick(5, 0.0, 1.0).level.key] == ["whole", "middle"]
    assert alike.pick(5, 0.919, 1.0).level.key == "whole", "a floor is never rounded"
    whole = Level(0, 10, "whole", 0.92, 0.92, (Timing(0.04, 0.04), Timing(0.08, 0.08)))
    as_quick = LevelSelector([one("middle", 0.918, 0.04), whole])
    assert as_quick.pick(0, 0.0, 1.0).level.key == "whole", "it takes no longer"
    late = trade.pick(5, 0.9, 0.03)
    assert (late.level.key, late.is_met) == ("whole", False)


def test_answers_say_how_fast_the_device_is_lately() -> None:
    """Twice slower than planned: what fitted before does not now. Outliers do not count."""
    trade = LevelSelector([one("small", 0.8, 0.01), one("whole", 0.92, 0.04)])
    small = trade.pick(5, 0.0).level
    for seconds in (0.02, 0.02, 5.0, 0.02, 0.02):
        trade.observe(small, 5, seconds)
    assert trade.bound.pace == pytest.approx(2.0)
    assert trade.pick(5, 0.0, 0.05).level.key == "small"
    assert trade.curve(0.9).at(5) == pytest.approx(0.08)
    assert trade.most_accurate(5).time.median_s == pytest.approx(0.08)


@pytest.mark.parametrize("spread", [0.05, 0.2, 0.6])
def test_bounds_come_to_hold_for_the_part_they_promise(spread: float) -> None:
    """Whatever the spread was when they were measured: 95 % of the answers stay under them, not all."""
    rng = np.random.default_rng(0)
    trade = LevelSelector([Level(0, 10, "only", 0.9, 0.9, (Timing(0.1, 0.12),) * 2)])
    level = trade.pick(5).level
    is_late = []
    for seconds in 0.1 * np.exp(spread * rng.standard_normal(4000)):
        bound_ms = bisect_left(range(4000), True, key=lambda ms: trade.pick(5, 0.0, 1e-3 * ms).is_met)
        is_late.append(seconds > 1e-3 * bound_ms)
        trade.observe(level, 5, float(seconds))
    assert np.mean(is_late[1000:]) == pytest.approx(0.05, abs=0.012)


def test_what_was_never_measured_has_an_order_but_no_floor() -> None:
    """A model without an accuracy table trades by size, and promises nothing."""
    trade = LevelSelector([one("small", None, 0.01, 0.25), one("whole", None, 0.04, 1.0)], "tiny")
    assert trade.best is None
    assert trade.pick(5, 0.0, 0.05).level.key == "whole"
    with pytest.raises(BudgetError, match="accuracy of tiny was never measured"):
        trade.pick(5, 0.5)


def test_ranges_that_leave_lengths_out_are_refused() -> None:
    """Every length has an answer."""
    with pytest.raises(RouteError, match="follow each other"):
        LevelSelector(Level(*ends, 0, None, 1.0, (Timing(1.0, 1.0),) * 2) for ends in ((0, 5), (7, 9)))
