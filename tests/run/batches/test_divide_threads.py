"""Threads are divided among compute workers by one rule, unless the user gives a number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.run.batches.divide_threads import ThreadShares, divide_threads


@pytest.mark.parametrize(
    ("n_threads", "n_workers", "shares"),
    [
        (1, None, (1, 1)),
        (2, None, (2, 1)),
        (3, None, (3, 1)),
        (4, None, (4, 1)),
        (5, None, (2, 2)),
        (6, None, (3, 2)),
        (7, None, (3, 2)),
        (8, None, (4, 2)),
        (9, None, (3, 3)),
        (16, None, (4, 4)),
        (64, None, (4, 16)),
        (8, 1, (1, 8)),
        (8, 3, (3, 2)),
        (8, 8, (8, 1)),
        (2, 16, (2, 1)),
    ],
)
def test_shares_by_hand(n_threads: int, n_workers: int | None, shares: tuple[int, int]) -> None:
    """The numbers in docs/nodes.md: a machine of 8 threads had one worker."""
    assert divide_threads(n_threads, n_workers) == ThreadShares(*shares)


@given(st.integers(1, 256), st.none() | st.integers(1, 256))
def test_no_thread_has_two_workers_and_few_have_none(n_threads: int, n_workers: int | None) -> None:
    """A number that is given is kept; by default a worker has at least a quarter of the threads."""
    shares = divide_threads(n_threads, n_workers)
    assert shares.n_workers * shares.n_threads <= n_threads
    if n_workers is None:
        assert n_threads - shares.n_workers * shares.n_threads < shares.n_threads
        assert 4 * shares.n_threads >= n_threads
    else:
        assert shares.n_workers == min(n_workers, n_threads)
