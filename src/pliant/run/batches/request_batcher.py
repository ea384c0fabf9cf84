"""Decide which waiting requests run as one batch, and on how many threads.

Rows of a batch have one size. Lengths are padded to one of a few sizes (SIZES), spaced so widely that texts
of most lengths share an executable. Padding is not computed in a packed program
(compiler/passes/pack_texts.py).
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import pairwise
from math import inf
from typing import final

import numpy as np

from pliant.errors import BudgetError, InputError
from pliant.ir.port import Port
from pliant.run.batches.buckets import Buckets
from pliant.run.batches.feed_batcher import COUNTS, BatchItem, FeedBatcher, RunFunctions
from pliant.run.batches.padding import Padding
from pliant.run.session.ports import Shapes, symbols

SIZES = tuple(64 << i for i in range(8))
"""Sizes to which the open dimension besides the rows is padded in a batch."""
_ROWS_ONLY, _RUNS = 0, 2
_ON_EACH = 4
"""Texts per thread in a batch that all threads share. With twice as many, a text takes 2 % less processor
time, but all clients of the batch get their answers, and send new requests, at the same time, so that the
queue is empty in between. When each thread runs batches of its own, other batches are in progress meanwhile.
"""
_SHARED = 0.8
"""All threads share one batch if that takes at most this fraction of the time with a batch per thread:
threads that share a batch wait for each other at every operator, and for other work on their processors.
"""

Clock = Callable[[], float]

_Arrays = dict[str, np.ndarray]


@final
class RequestBatcher:
    """One `FeedBatcher` for each size that requests are padded to. The owner serialises calls.

    A model may run requests together if one open dimension is first in every input, with one row per request,
    and at most one other dimension is open. Requests of another model only run beside each other, each alone
    on a worker.

    With `is_bounded`, memory is limited: batches run one after another on all threads, since each thread
    would need memory of its own otherwise. If `run` raises BudgetError for a batch, later ones are smaller.
    """

    def __init__(
        self, inputs: Sequence[Port], outputs: Sequence[Port], n_threads: int, is_bounded: bool = False
    ) -> None:
        self._inputs, self._outputs, self._n_threads = inputs, outputs, n_threads
        self._is_bounded, self._n_parallel = is_bounded, 1 if is_bounded else n_threads
        opened = {s for port in inputs for s in symbols(port)[1:] if s is not None}
        first = {(symbols(port) or (None,))[0] for port in inputs}
        self._can_batch = len(first) == 1 and None not in first and len(opened) <= 1 and not opened & first
        self._symbol = next(iter(opened), None)
        self._batchers: dict[int, FeedBatcher] = {}
        self._ready: set[int] = set()
        self._parts: dict[tuple[int, int], int] = {}
        self.pace_beside: float | None = None

    @property
    def n_images(self) -> int:
        """The number of images that must be kept for batches."""
        return len(COUNTS) * len(self._batchers)

    def size(self, shapes: Shapes) -> int | None:
        """The size to which feeds of these shapes are padded in a batch; None if they run alone.

        Feeds of a model without batches have equal sizes: they run on one worker, one after another.
        """
        if not self._can_batch:
            return _ROWS_ONLY
        if any(not shape or shape[0] != 1 for shape in shapes.values()):
            return None
        length = self._length(shapes)
        if length == 0:  # it has no place of its own in a batch, and would get that of another
            return None
        return _ROWS_ONLY if length is None else next((n for n in SIZES if n >= length), None)

    def key(self, shapes: Shapes, is_beside: bool) -> Hashable | None:
        """Feeds with equal keys can run together now, or beside each other if `max_requests` is 1; None for
        feeds that run alone on all threads, or whose batches were not prepared.

        Without batches there is nothing to prepare: a worker runs the executable of all threads. `is_beside`
        says whether `begin` may be called.
        """
        if not self._can_batch:
            return _ROWS_ONLY if is_beside else None
        size = self.size(shapes)
        return size if size in self._ready and self._has_batches(size) else None

    def are_alike(self, every: Iterable[Shapes]) -> bool:
        """Whether feeds of these shapes can be given to `answer` or `begin` together."""
        sizes = {self.size(shapes) for shapes in every}
        return len(sizes) == 1 and None not in sizes

    @property
    def max_requests(self) -> int:
        """The most requests in one batch of all threads: larger batches do not answer more per second."""
        if not self._can_batch:
            return 1
        most = _ON_EACH * self._n_threads
        return min(most, max(self._max_rows().values(), default=1)) if self._is_bounded else most

    @property
    def max_items(self) -> float:
        """The most items in one batch, padding included; those of one size that exceed it run in several."""
        if not self._is_bounded or not self._can_batch:
            return inf
        return max((max(size, 1) * n for size, n in self._max_rows().items()), default=inf)

    @property
    def max_requests_beside(self) -> int:
        """The most requests in a batch of one worker."""
        return COUNTS[0] if self._can_batch else 1

    def answer(self, items: Sequence[BatchItem], run: RunFunctions) -> list[_Arrays]:
        """The answer of `run.single` to each item, in their order. Raises what `run` raises."""
        size = self.size(items[0].shapes) or _ROWS_ONLY
        while self._has_batches(size):
            try:
                return self._answer_together(size, items, run)
            except BudgetError:  # other images have the memory, or it is too little
                batcher = self._batcher(size)
                batcher.limit_rows(batcher.max_rows)
        return [run.single(item.feeds) for item in items]

    def begin(self, items: Sequence[BatchItem], run: RunFunctions) -> Callable[[], list[_Arrays]]:
        """A function that answers the items on one worker, outside the owner's lock; call it once.

        There are at most `max_requests_beside` of them.
        """
        if not self._can_batch:
            (item,) = items
            finish = run.begin(item.feeds)
            return lambda: [finish()]
        return self._batcher(self.size(items[0].shapes) or _ROWS_ONLY).begin(items, run)

    def prepare(
        self,
        size: int,
        samples: Callable[[int], Sequence[BatchItem]],
        run: RunFunctions,
        clock: Clock,
        is_beside: bool,
    ) -> bool:
        """Make the executables of this size, and measure which number of threads is fastest.

        `samples(n)` gives n items; `is_beside` says whether `begin` will be called. Returns whether items of
        this size run together, or beside each other, from now on.
        """
        if self._can_batch:
            self._prepare_batches(size, samples, run, clock)
        if not (self._has_batches(size) if self._can_batch else is_beside):
            return False
        self._ready.add(size)
        if is_beside:
            (one,) = samples(1)
            alone_s = _shortest_s(lambda: run.single(one.feeds), clock)
            self.pace_beside = _shortest_s(lambda: self.begin([one], run)(), clock) / max(alone_s, 1e-9)
        return True

    def _prepare_batches(
        self, size: int, samples: Callable[[int], Sequence[BatchItem]], run: RunFunctions, clock: Clock
    ) -> None:
        batcher = self._batcher(size)
        for n in reversed(COUNTS):
            if n > batcher.max_rows:
                break
            items = samples(n)
            seconds: dict[int, float] = {}
            for n_parts in sorted({1, self._n_parallel}):
                for _ in range(_RUNS):  # the first compiles, and compares
                    self._parts[size, n] = n_parts
                    start_s = clock()
                    self.answer(items, run)
                    seconds[n_parts] = clock() - start_s
            is_shared = seconds[1] <= _SHARED * seconds[self._n_parallel]
            self._parts[size, n] = 1 if is_shared else self._n_parallel

    def _answer_together(self, size: int, items: Sequence[BatchItem], run: RunFunctions) -> list[_Arrays]:
        batcher = self._batcher(size)
        if self._symbol is None:  # added rows would be computed
            return batcher.answer(items, run)
        lengths = [self._length(item.shapes) or 0 for item in items]
        parts = balance_parts(lengths, self._n_parts(size, len(items)), batcher.max_rows)
        return batcher.answer_in_parts(items, parts, run)

    def _has_batches(self, size: int) -> bool:
        """Whether feeds of this size may run in one batch, as far as is known."""
        return self._can_batch and self._batcher(size).can_batch

    def _max_rows(self) -> dict[int, int]:
        """The most rows of a batch, by size. A worker thread may add sizes meanwhile."""
        return {size: self._batchers[size].max_rows for size in tuple(self._ready)}

    def _n_parts(self, size: int, n: int) -> int:
        """The best number of parts for n items: one part for all threads, or one or more per thread."""
        n_parallel, most = self._n_parallel, self._batcher(size).max_rows
        if n > most:
            return min(n, n_parallel * -(-n // (n_parallel * most)))
        return min(n, self._parts.get((size, next(m for m in reversed(COUNTS) if m >= n)), 1))

    def _length(self, shapes: Shapes) -> int | None:
        """The size of the open dimension besides the rows; None if there is none. Raises InputError."""
        found = {
            n
            for port in self._inputs
            for symbol, n in zip(symbols(port), shapes[port.name], strict=True)
            if symbol is not None and symbol == self._symbol
        }
        if len(found) > 1:
            raise InputError(f"dimension {self._symbol!r} has the sizes {sorted(found)}; feed one.")
        return next(iter(found), None)

    def _batcher(self, size: int) -> FeedBatcher:
        if size not in self._batchers:
            sizes = {} if self._symbol is None else {self._symbol: (size,)}
            buckets = Buckets(sizes)
            ports = self._inputs, self._outputs
            self._batchers[size] = FeedBatcher(buckets, Padding(buckets, *ports), *ports, self._n_parallel)
        return self._batchers[size]


def _shortest_s(run: Callable[[], object], clock: Clock) -> float:
    """The shortest time of a few runs."""
    ends_s = [clock(), *((run(), clock())[1] for _ in range(_RUNS + 1))]
    return min(b - a for a, b in pairwise(ends_s))


def balance_parts(lengths: Sequence[int], n_parts: int, most: int = COUNTS[0]) -> list[list[int]]:
    """Divide texts of these lengths, given as indices, into parts of about equal work and at most `most`
    texts.
    """
    parts: list[list[int]] = [[] for _ in range(n_parts)]
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        free = [part for part in parts if len(part) < most]
        min(free, key=lambda part: sum(lengths[k] for k in part)).append(i)
    return parts
