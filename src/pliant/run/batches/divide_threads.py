"""Divide the threads of a session among workers, each of which runs batches of its own."""

from dataclasses import dataclass

_DEFAULT_WORKERS = 4
"""The most workers by default. A batch on one of n threads takes about n times as long as on all of them;
with at most four workers, it takes about four times as long however many threads there are.
"""


@dataclass(frozen=True, slots=True)
class ThreadShares:
    """`n_workers` workers of `n_threads` threads each."""

    n_workers: int
    n_threads: int


def divide_threads(n_threads: int, n_workers: int | None = None) -> ThreadShares:
    """The shares of `n_threads` threads for `n_workers` workers; for fewer if there are fewer threads.

    By default each worker has k = n_threads / 4 threads, rounded up, and there are n_threads // k of them:
    one on each thread if there are up to four threads. Fewer than k threads are left without a worker.
    """
    if n_workers is None:
        each = -(-n_threads // _DEFAULT_WORKERS)
        return ThreadShares(n_threads // each, each)
    n_workers = min(n_workers, n_threads)
    return ThreadShares(n_workers, n_threads // n_workers)
