"""Timings between and beyond samples, and targets that are met."""

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import ProfileError
from pliant.ir.times.timing import Timing, TimingCurve, is_in_time

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
