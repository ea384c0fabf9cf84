"""Run several images at the same time, each on threads and in an arena of its own.

Threads that share one run wait for each other after every operator; threads with runs of their own never do.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import final

import numpy as np

from pliant.kernels.runtime.fork_safe_lock import ForkSafeLock
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool, aligned_scratch
from pliant.run.arena import Arena
from pliant.run.batches.divide_threads import ThreadShares, divide_threads
from pliant.run.graph.graph_runner import GraphRunner
from pliant.run.session.ports import Feeds

LEAST_FLOPS = 100_000_000
"""Runs with less work are not run in parallel: this is about 1 ms on one thread, and starting threads takes a
fifth of that.
"""

_Arrays = dict[str, np.ndarray]
_Todo = deque[tuple[int, GraphRunner, Feeds]]


@final
class ParallelRuns:
    """Persistent arenas for concurrent runs: one per thread for `run`, one per worker for `begin`, which has
    its share of the threads. Where a share is one thread, both use the same. The owner serialises calls.

    A running call keeps its arena: calls that would change the arena wait for it. With `is_bounded` there is
    one worker.
    """

    def __init__(self, n_threads: int, library: Library, is_bounded: bool = False) -> None:
        self._n_threads, self._library = n_threads, library
        self._most = 1 if is_bounded else n_threads
        self._shares = self._divided(None)
        self._threads: tuple[_Worker, ...] = ()
        self._workers: tuple[_Worker, ...] = ()

    @property
    def n_workers(self) -> int:
        """How many runs of `begin` may be in progress."""
        return self._shares.n_workers

    def divide(
        self, n_workers: int | None, most_bytes: int | None = None, images: Collection[GraphRunner] = ()
    ) -> None:
        """Change the number of workers, as `divide_threads`, after the runs in progress.

        With `most_bytes` there are only as many, now and later, as have memory for these images within it
        however the threads are divided, but at least one.
        """
        self.close()
        if most_bytes is not None:
            arena_bytes, scratch_bytes = _needed_bytes(images)
            fit = (most_bytes - self._n_threads * scratch_bytes) // max(arena_bytes, 1)
            self._most = max(1, min(fit, divide_threads(self._n_threads, n_workers).n_workers))
        self._shares = self._divided(n_workers)

    def worker_bytes(self, images: Collection[GraphRunner]) -> int:
        """The memory of all workers for these images: an arena each, and scratch on each thread.

        A single worker has none: its runs are beside no other, and need no memory of their own.
        """
        return _worker_bytes(self._shares, images)

    @property
    def pace(self) -> int:
        """The most by which a run on a worker's share of the threads takes longer than on all of them."""
        return -(-self._n_threads // self._shares.n_threads)

    @property
    def memory(self) -> list[np.ndarray]:
        """The arrays of arenas and scratch memory, for measurement."""
        return [array for one in self._all for array in (one.arena.memory, one.pool.scratch)]

    def run(self, runs: Sequence[tuple[GraphRunner, Feeds]]) -> list[_Arrays]:
        """The answers to checked feeds, in their order; the runs also start in that order.

        Small runs go one after another on all threads. Raises the error of a failed run; runs that have not
        started are dropped.
        """
        if sum(row.flops for image, _ in runs for row in image.rows) < LEAST_FLOPS:
            return [image.walk(feeds, None) for image, feeds in runs]
        threads = self._make_threads()
        todo: _Todo = deque((i, image, feeds) for i, (image, feeds) in enumerate(runs))
        with ThreadPoolExecutor(len(threads), "pliant-run") as executor:
            try:
                done = [executor.submit(thread.work, todo) for thread in threads[: len(runs)]]
                found = {i: answers for one in done for i, answers in one.result()}
            finally:
                todo.clear()
        return [found[i] for i in range(len(runs))]

    def begin(self, image: GraphRunner, feeds: Feeds) -> Callable[[], _Arrays]:
        """A function that runs checked feeds on a worker, outside the owner's lock.

        It must be called exactly once. If all workers have runs in progress, `begin` waits for one to finish.
        """
        workers = self._make_workers()
        free = (worker for worker in workers if worker.turns.lock.acquire(blocking=False))
        worker = next(free, None)
        if worker is None:
            (worker := workers[0]).turns.lock.acquire()
        lock = worker.turns.lock
        try:
            own = worker.own(image)
        except BaseException:
            lock.release()
            raise

        def run() -> _Arrays:
            try:
                return own.walk(feeds, None)
            finally:
                lock.release()

        return run

    def _make_threads(self) -> "tuple[_Worker, ...]":
        if not self._threads:
            self._threads = tuple(_Worker(1, self._library) for _ in range(self._n_threads))
        return self._threads

    def _make_workers(self) -> "tuple[_Worker, ...]":
        shares = self._shares
        if shares.n_threads == 1:
            return self._make_threads()[: shares.n_workers]
        if not self._workers:
            self._workers = tuple(_Worker(shares.n_threads, self._library) for _ in range(shares.n_workers))
        return self._workers

    def _divided(self, n_workers: int | None) -> ThreadShares:
        shares = divide_threads(self._n_threads, n_workers)
        return shares if shares.n_workers <= self._most else divide_threads(self._n_threads, self._most)

    @property
    def _all(self) -> "tuple[_Worker, ...]":
        return (*self._threads, *self._workers)

    def keep(self, images: Collection[GraphRunner]) -> None:
        """Free the memory that none of `images` needs."""
        for one in self._all:
            one.keep(images)

    def drop(self, image: GraphRunner) -> None:
        """Free what was made for an evicted image; arenas keep their size."""
        for one in self._all:
            one.drop(image)

    def close(self) -> None:
        """Free all memory, after all runs have ended."""
        for one in self._all:
            one.drop_all()
        self._threads, self._workers = (), ()


@final
class _Worker:
    """The pool and arena of some threads; `turns` serialises its runs."""

    def __init__(self, n_threads: int, library: Library) -> None:
        self.pool = ThreadPool(n_threads, library, scratch_bytes=0)
        self.arena, self.turns = Arena(), ForkSafeLock()
        self._own: dict[GraphRunner, GraphRunner] = {}

    def work(self, todo: _Todo) -> list[tuple[int, _Arrays]]:
        """Run entries of `todo`, which all threads take entries from; returns their answers."""
        found = []
        with self.turns.lock:
            try:
                while (one := _next(todo)) is not None:
                    i, image, feeds = one
                    found.append((i, self.own(image).walk(feeds, None)))
            finally:
                todo.clear()  # empty already, unless a run failed
        return found

    def own(self, image: GraphRunner) -> GraphRunner:
        """This worker's copy of the image."""
        if image not in self._own:
            self._own[image] = image.copy_for(self.pool, self.arena)
        return self._own[image]

    def drop(self, image: GraphRunner) -> None:
        with self.turns.lock:
            self._own.pop(image, None)

    def drop_all(self) -> None:
        with self.turns.lock:
            self._own.clear()

    def keep(self, images: Collection[GraphRunner]) -> None:
        with self.turns.lock:
            self._own = {image: own for image, own in self._own.items() if image in images}
            self.arena.resize(max((own.arena_bytes for own in self._own.values()), default=0))


def _worker_bytes(shares: ThreadShares, images: Collection[GraphRunner]) -> int:
    arena_bytes, scratch_bytes = _needed_bytes(images)
    each = arena_bytes + shares.n_threads * scratch_bytes
    return shares.n_workers * each if shares.n_workers > 1 else 0


def _needed_bytes(images: Collection[GraphRunner]) -> tuple[int, int]:
    """The arena of one worker, and the scratch of each of its threads."""
    arena_bytes = max((image.arena_bytes for image in images), default=0)
    return arena_bytes, aligned_scratch(max((image.scratch_bytes for image in images), default=0))


def _next(todo: _Todo) -> tuple[int, GraphRunner, Feeds] | None:
    try:
        return todo.popleft()
    except IndexError:
        return None
