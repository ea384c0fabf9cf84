"""Bounds that follow what is observed: coverage in the long run, quick to widen, recovered in time."""

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.ir.times.bounds import COVERAGE, AdaptiveBound
from pliant.ir.times.timing import Timing

factors = st.floats(0.3, 3.0)
PREDICTED = Timing(1.0, 1.2)


def coverage(bound: AdaptiveBound, seconds: np.ndarray, predicted: Timing) -> np.ndarray:
    """Which of `seconds` stay under the bound that was valid before each."""
    held = []
    for took_s in seconds:
        held.append(took_s <= bound.correct(predicted).p95_s)
        bound.observe(predicted, float(took_s))
    return np.array(held)


@given(st.floats(0.02, 0.6), factors, st.floats(1.0, 1.5), st.integers(0, 2**32 - 1))
@settings(max_examples=12, deadline=None)
def test_a_bound_holds_for_95_in_100_in_the_long_run(
    spread: float, factor: float, predicted: float, seed: int
) -> None:
    """Whatever was predicted: noise of any spread, any constant factor between prediction and device."""
    noise = np.exp(spread * np.random.default_rng(seed).standard_normal(1000))
    held = coverage(AdaptiveBound(), factor * noise, Timing(1.0, predicted))
    # 600 answers: three standard errors of a coverage of 0.95 are 0.027
    assert held[400:].mean() >= COVERAGE - 0.027


@pytest.mark.parametrize("slower", [2.0, 5.0])
def test_coverage_is_kept_when_the_device_becomes_slower_and_quick_again(slower: float) -> None:
    """Load comes and goes every 100 answers: not even the 100 that begin with it have more than 6 late."""
    rng = np.random.default_rng(1)
    busy = np.where(np.arange(1200) // 100 % 2 == 1, slower, 1.0)
    held = coverage(AdaptiveBound(), busy * np.exp(0.1 * rng.standard_normal(1200)), PREDICTED)
    assert held.mean() >= COVERAGE
    assert min(held[i : i + 100].mean() for i in range(0, 1200, 100)) >= 0.94


def test_one_outlier_moves_nothing_and_two_slow_answers_are_enough() -> None:
    """A hiccup must not cost accuracy for the next answers; a device that is slow now must be believed."""
    bound = AdaptiveBound()
    for seconds in (1.0, 9.0, 1.0):
        bound.observe(PREDICTED, seconds)
    assert bound.correct(PREDICTED).p95_s <= 1.2 * 1.05
    bound.observe(PREDICTED, 3.0)
    assert bound.correct(PREDICTED).p95_s >= 3.0


def test_forty_quick_answers_undo_what_slow_ones_taught() -> None:
    """A session that stayed small after the load had gone would waste the machine."""
    bound = AdaptiveBound()
    for seconds in (*[4.0] * 10, *[1.0] * 40):
        bound.observe(PREDICTED, seconds)
    assert bound.correct(PREDICTED).p95_s <= 1.3


def test_four_quick_answers_in_a_row_undo_what_slow_ones_taught_of_the_bound() -> None:
    """A device that had recovered was kept from whatever its old bound did not allow for 40 answers more."""
    bound = AdaptiveBound()
    for seconds in (*[4.0] * 10, *[1.0] * 3):
        bound.observe(PREDICTED, seconds)
    assert bound.correct(PREDICTED).p95_s > 3.0
    bound.observe(PREDICTED, 1.0)
    assert bound.correct(PREDICTED).p95_s <= 1.2 * bound.slack + 1e-12


@pytest.mark.parametrize("period", [6, 10, 20, 50])
def test_coverage_is_kept_where_load_comes_and_goes_again_and_again(period: int) -> None:
    """Each time all is forgotten: what has come is learned by two answers that are late."""
    rng = np.random.default_rng(2)
    busy = np.where(np.arange(4000) // period % 2 == 1, 3.0, 1.0)
    held = coverage(AdaptiveBound(), busy * np.exp(0.1 * rng.standard_normal(4000)), PREDICTED)
    assert held[1000:].mean() >= COVERAGE - 0.012


@given(st.lists(st.floats(0.1, 50.0), min_size=1, max_size=60), st.floats(1.0, 20.0))
@settings(max_examples=60)
def test_a_factor_is_positive_and_never_above_its_limit(times: list[float], most: float) -> None:
    """A plan is made for it: it must exist whatever was observed, and what no plan allows for is left out."""
    bound = AdaptiveBound()
    for seconds in times:
        bound.observe(Timing(1.0, 1.0), seconds, target_s=10.0, most=most)
        assert 0.0 < bound.factor(most) <= most
        assert bound.factor(most) <= bound.factor() + 1e-12
    # A delay of a whole target alone is lost, and counts as the largest ratio there is, 64. Others count as
    # their ratio at most, and shorter ones as what they leave of the target.
    is_lost = any(seconds - 1.0 >= 10.0 for seconds in times)
    assert bound.factor() <= 4.0 * (64.0 if is_lost else max(1.0, *times))


def test_a_delay_counts_for_what_it_takes_of_the_target_not_for_the_work_it_hit() -> None:
    """3 ms lost by work of 1 ms are no reason to expect work of 10 ms to take 40."""
    bound = AdaptiveBound()
    for _ in range(3):
        bound.observe(Timing(0.001, 0.001), 0.004, target_s=0.020)
    assert 1.0 < bound.factor() < 1.4  # 17 ms of 20 are left
    for _ in range(3):
        bound.observe(Timing(0.010, 0.010), 0.020, target_s=0.020)
    assert bound.factor() / bound.slack == pytest.approx(2.0)


@pytest.mark.parametrize("never", [inf, nan, -1.0])
def test_times_that_cannot_be_leave_a_bound_as_it_is(never: float) -> None:
    """A clock that jumped, or an answer that never came, must not set the bound for all that follow."""
    bound = AdaptiveBound()
    bound.observe(PREDICTED, never)
    bound.observe(Timing(0.0, 0.0), 1.0)
    assert bound.correct(PREDICTED).p95_s == 1.2


def test_the_pace_of_a_device_that_has_changed_is_that_of_its_last_answers() -> None:
    """Where no bound keeps a deadline, medians decide: nine answers teach a busy phone too late."""
    bound = AdaptiveBound()
    for seconds in [1.0] * 9:
        bound.observe(PREDICTED, seconds)
    bound.observe(PREDICTED, 2.5)
    assert bound.pace == 1.0, "an outlier"
    bound.observe(PREDICTED, 2.7)
    assert bound.pace == pytest.approx(2.6)
    for seconds in (2.5, 2.5, 1.0, 1.1, 0.9):
        bound.observe(PREDICTED, seconds)
    assert bound.pace > 2.0
    bound.observe(PREDICTED, 1.0)
    assert bound.pace == pytest.approx(1.0)


def test_a_slow_down_shows_where_earlier_delays_have_widened_the_bound() -> None:
    """A device that had been slow twice became slow again: five answers were late until the median moved."""
    bound, expected = AdaptiveBound(), Timing(1.0, 1.0)
    for seconds in (*[1.0] * 9, 2.4, 1.0, 2.4, *[1.0] * 9):
        bound.observe(expected, seconds)
    assert bound.pace == 1.0
    assert bound.factor() > 2.2
    bound.observe(expected, 2.9)
    assert bound.pace == 1.0, "it may be an outlier"
    bound.observe(expected, 2.2)
    assert bound.pace > 2.0


def test_an_outlier_and_a_slightly_slow_answer_are_no_slow_down() -> None:
    bound, expected = AdaptiveBound(), Timing(1.0, 1.0)
    for seconds in (*[1.0] * 9, 2.4, 1.0, 2.4, *[1.0] * 9, 5.0, 1.3):
        bound.observe(expected, seconds)
    assert bound.factor() > 2.2
    assert bound.pace == 1.3
