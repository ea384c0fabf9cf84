"""Timings between and beyond samples, and targets that are met."""

from math import e, inf, log, nan
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import ProfileError
from pliant.ir.times.timing import Timing, TimingCurve, chance, is_hopeless, is_in_time, margin

times = st.tuples(st.floats(0.0, 10.0), st.floats(0.0, 10.0)).map(lambda x: Timing(min(x), max(x)))


@given(st.lists(times, min_size=1, max_size=5), st.floats(0.0, 40.0))
def test_both_percentiles_are_interpolated_and_the_bound_is_no_less(samples: list[Timing], x: float) -> None:
    """Beyond the last sample the lines go on: where they cross, a bound below the median promises nothing."""
    sizes = [4.0 * (i + 1) for i in range(len(samples))]
    found = TimingCurve(list(zip(sizes, samples, strict=True))).at(x)
    assert found.median_s <= found.p95_s
    if x <= sizes[-1]:
        for percentile in ("median", "p95"):
            known = [one.at(percentile) for one in samples]
            # at most 10 s, so a few roundings of 1e-15
            assert found.at(percentile) == pytest.approx(np.interp(x, sizes, known), abs=1e-12)


@pytest.mark.parametrize("pair", [(2.0, 1.0), (-1.0, 1.0), (nan, 1.0), (1.0, inf)])
def test_a_bound_below_its_median_is_refused(pair: tuple[float, float]) -> None:
    """A broken measurement must fail where it is read, not as a promise."""
    with pytest.raises(ProfileError, match="0 <= median <= p95"):
        Timing(*pair)


def test_a_target_is_met_to_the_moment_and_only_where_there_is_one() -> None:
    """`met` of replies, plans and picks is this answer."""
    assert is_in_time(1.0, 1.0) is True
    assert is_in_time(1.0 + 1e-9, 1.0) is False
    assert is_in_time(1.0, None) is None


nanoseconds = st.just(0.0) | st.floats(1e-9, 10.0)


@given(nanoseconds, nanoseconds, st.floats(-1.0, 20.0))
def test_an_answer_is_hopeless_only_where_its_median_is_late(
    median_s: float, more_s: float, deadline_s: float
) -> None:
    """Deadlines that are over, times that do not vary, and times of nothing are judged too."""
    bound_s = median_s + more_s
    assert not is_hopeless(median_s, bound_s, max(deadline_s, median_s))
    if deadline_s <= 0.0 < median_s or (more_s == 0.0 and deadline_s < median_s):
        assert is_hopeless(median_s, bound_s, deadline_s)
    if 0.0 < 1.001 * median_s < bound_s and deadline_s > 0.0 and abs(deadline_s - bound_s) > 1e-9:
        assert (margin(median_s, bound_s, deadline_s) >= 1.0) == (deadline_s >= bound_s)


def test_an_answer_that_is_in_time_once_in_four_times_is_not_hopeless() -> None:
    """A median of 1 s and a bound of e s: logarithms are 0 and 1, and 0.4 below the median lies e**-0.4."""
    assert not is_hopeless(1.0, e, e**-0.399)
    assert is_hopeless(1.0, e, e**-0.401)


@given(median_s=st.floats(0.01, 10), ratio=st.floats(1.01, 4), part=st.floats(0.1, 4))
def test_the_chance_is_that_of_a_log_normal_time(median_s: float, ratio: float, part: float) -> None:
    """Half at the median, 95 of 100 at the bound."""
    spread = log(ratio) / 1.645
    expected = NormalDist(log(median_s), spread).cdf(log(part * median_s))
    assert chance(median_s, ratio * median_s, part * median_s) == pytest.approx(expected, abs=1e-6)
    assert chance(median_s, ratio * median_s, ratio * median_s) == pytest.approx(0.95, abs=1e-4)
