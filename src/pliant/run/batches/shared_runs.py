"""Choose which of several runs all threads share before each takes its own."""

import heapq
from collections.abc import Sequence

_SLACK = 1.2
"""The factor by which a thread may exceed its share of the work: two threads that share a run need 0.6 of its
time.
"""


def count_shared_runs(sizes: Sequence[float], n_threads: int) -> int:
    """How many of the runs, largest first, all threads should share before each thread takes runs of its own.

    A run larger than a thread's share of the work would leave the other threads idle.
    """
    if n_threads == 1:
        return len(sizes)
    fair = (
        k for k in range(len(sizes)) if _longest(sizes[k:], n_threads) <= _SLACK * sum(sizes[k:]) / n_threads
    )
    return next(fair, len(sizes))


def _longest(sizes: Sequence[float], n_threads: int) -> float:
    """The work of the busiest thread, if each run goes to the thread that finishes first."""
    work = [0.0] * n_threads
    for size in sizes:
        heapq.heapreplace(work, work[0] + size)
    return max(work)
