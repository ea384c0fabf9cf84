"""What a batch takes is learned from batches."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from pliant.ir.times.timing import Timing
from pliant.serve.batching.batch_times import BatchTimes

ALONE = Timing(8.0, 10.0)


def test_nothing_is_known_at_first() -> None:
    """Then a batch is expected to take what its requests take, so that deadlines are kept."""
    assert BatchTimes().expected(8, 80, ALONE) == ALONE


def test_batches_that_came_tell_what_the_next_takes() -> None:
    times = BatchTimes()
    for _ in range(9):
        times.observe(8, 80, ALONE, 4.0)
    assert times.expected(8, 80, ALONE).median_s == pytest.approx(4.0)
    assert times.expected(6, 60, ALONE).median_s == pytest.approx(4.0)  # of the same kind
    assert times.expected(1, 10, ALONE) == ALONE


def test_a_larger_batch_than_any_is_tried_where_smaller_ones_gain() -> None:
    """Expected to gain nothing, it would never be made."""
    times = BatchTimes()
    for _ in range(9):
        times.observe(4, 40, ALONE, 4.0)
    assert times.expected(16, 160, ALONE).median_s == pytest.approx(4.0)


def test_a_kind_that_lost_is_tried_again_after_others() -> None:
    """The device may have changed; a loss long ago is no reason for ever."""
    times = BatchTimes()
    for _ in range(9):
        times.observe(2, 20, ALONE, 20.0)
    assert times.expected(2, 20, ALONE).median_s > ALONE.median_s
    for _ in range(300):
        times.observe(1, 10, ALONE, 8.0)
    assert times.expected(2, 20, ALONE).median_s == pytest.approx(ALONE.median_s)


def test_a_batch_that_ends_meanwhile_is_no_error() -> None:
    """It clears what was found between the two looks at it: a request failed with a KeyError."""
    times, is_over = BatchTimes(), Event()

    def observe() -> None:
        while not is_over.is_set():
            times.observe(2, 20, ALONE, ALONE.median_s)

    with ThreadPoolExecutor(1) as other:
        ended = other.submit(observe)
        try:
            for n in range(20_000):
                assert times.expected(2 + n % 64, 80, ALONE).median_s > 0
        finally:
            is_over.set()
        ended.result()
