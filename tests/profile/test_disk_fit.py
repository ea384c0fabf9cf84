"""Lines through read times."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.profile.disk_fit import fit_disk, fit_disks, timing


def test_an_exact_line_is_found_again() -> None:
    """The planner multiplies these two numbers; a biased fit would be a biased plan."""
    points = {n: 80e-6 + n / 2e9 for n in (4096, 18432, 221184, 1327104)}
    disk = fit_disk(points)
    assert disk.latency_s == pytest.approx(80e-6, rel=1e-6)
    assert disk.bandwidth_Bps == pytest.approx(2e9, rel=1e-6)


def test_small_reads_count_as_much_as_large_ones() -> None:
    """Ten percent too slow at 1 MB must not push the price of a 4 KB read below zero."""
    points = {4096: 50e-6, 1_000_000: 1.1 * (50e-6 + 1e6 / 1e9)}
    assert fit_disk(points).seconds(4096) == pytest.approx(50e-6, rel=0.01)


@pytest.mark.parametrize(
    "points",
    [
        {4096: 1e-4},
        {4096: 0.0, 8192: 0.0},
        {4096: 1e-4, 8192: 1e-4},
        {4096: 2e-4, 8192: 1e-4},
        {1: 1e-9, 100: 1e-6},
    ],
)
def test_no_samples_give_a_disk_that_cannot_be(points: dict[int, float]) -> None:
    """Noise on a fast disk makes lines that fall, or start below zero: Link refuses those."""
    disk = fit_disk(points)
    assert disk.latency_s >= 0
    assert 0 < disk.bandwidth_Bps < float("inf")


@given(st.lists(st.floats(1e-6, 1e-2), min_size=1, max_size=20))
def test_the_p95_line_is_nowhere_below_the_median(samples: list[float]) -> None:
    """Plans are made at p95: cheaper there than at the median would be nonsense."""
    rng = np.random.default_rng(0)
    reads = {
        n: [s * (1 + n / 1e5) * f for s in samples for f in rng.uniform(1, 2, 3)]
        for n in (4096, 65536, 10**6)
    }
    median, p95 = fit_disks(reads)
    assert all(p95.seconds(n) >= median.seconds(n) for n in (0, 4096, 10**6))


def test_a_timing_of_one_sample_is_that_sample() -> None:
    """Rounding in the quantile must not put p95 below the median."""
    assert timing([0.1]).median_s == timing([0.1]).p95_s == 0.1
