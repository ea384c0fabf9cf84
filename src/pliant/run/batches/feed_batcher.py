"""Run feeds of several callers as batches, of equal sizes or padded to one bucket, several batches at a time.

Whether a model gives each row of a batch the answer that it gives the row alone is checked by comparison, not
assumed, as for padding (run/batches/padding.py).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeVar, final

import numpy as np

from pliant.errors import InputError
from pliant.ir.port import Port
from pliant.run.batches.buckets import BucketFit, Buckets, Cuts, cut, find_cuts, find_differences
from pliant.run.batches.padding import Padding
from pliant.run.batches.shared_runs import count_shared_runs
from pliant.run.batches.token_feed import IS_TOKEN, is_token
from pliant.run.session.ports import Feeds, Shapes, symbols

COUNTS = (8, 4, 2)
"""Batch sizes. Larger batches gain little, because weights are already read once for all rows."""

_T = TypeVar("_T")
_Arrays = dict[str, np.ndarray]
_Shapes = tuple[tuple[int, ...], ...]
_Key = tuple[tuple[tuple[str, int, bool], ...], _Shapes]


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One caller's feeds: arrays that fit the inputs, and their shapes."""

    feeds: Feeds
    shapes: Shapes


@dataclass(frozen=True, slots=True)
class RunFunctions:
    """Functions that run a model: `single` answers one item's feeds as `run` does, `batch` a batch as it is,
    `parallel` several batches, each on one thread; `uncached` runs a comparison and keeps no image. `begin`
    returns a function that answers a batch on the calling thread, outside the owner's lock.
    """

    single: Callable[[Feeds], _Arrays]
    batch: Callable[[Feeds], _Arrays]
    parallel: Callable[[Sequence[Feeds]], list[_Arrays]]
    begin: Callable[[Feeds], Callable[[], _Arrays]]
    uncached: Callable[[Feeds], _Arrays]


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    """Items that run together: their indices in the list, how they are padded, and to which shapes."""

    numbers: tuple[int, ...]
    items: tuple[BatchItem, ...]
    fits: tuple[BucketFit, ...]
    shapes: _Shapes
    n_rows: int
    """Rows of the batch, at least the number of items."""

    @property
    def size(self) -> int:
        """The number of elements in all feeds."""
        return self.n_rows * _size(self.shapes)

    @property
    def keys(self) -> list[_Key]:
        """For each item, the key for which one comparison is valid."""
        return [(fit.key, self.shapes) for fit in self.fits]


@final
class FeedBatcher:
    """Decides which feeds run together, and keeps the results of comparisons. The owner serialises calls.

    Feeds of one row each are concatenated along the open dimension that is first in every input. One row of a
    batch is compared with the answer to its feed alone, once for each bucket, padded and unpadded; if the
    comparison fails, the model runs its feeds one by one from then on. Batches that need no comparison run in
    parallel, one per thread, and are no larger than a thread's share of the work. If one dimension has
    buckets, a batch marks its padding.
    """

    def __init__(
        self,
        buckets: Buckets,
        padding: Padding,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        n_threads: int,
    ) -> None:
        self._buckets, self._padding = buckets, padding
        self._inputs, self._outputs = inputs, outputs
        self._n_threads = n_threads
        self._rows = _rows_symbol(inputs)
        self._tokens = _tokens_symbol(buckets, inputs)
        self._counts = _counts(buckets, self._rows)
        self._cuts: dict[_Key, Cuts] = {}

    @property
    def can_batch(self) -> bool:
        """Whether feeds may run together: inputs and memory allow it, and no comparison has failed."""
        return self.max_rows > 1

    @property
    def max_rows(self) -> int:
        """The most rows of a batch; 1 if feeds run alone."""
        return 1 if self._rows is None else max(self._counts, default=1)

    @property
    def n_images(self) -> int:
        """Images needed for each combination of the other sizes: one for a single feed, and one for each
        batch size.
        """
        return 1 + len(self._counts)

    def limit_rows(self, below: int) -> None:
        """From now on, run only batches of fewer than `below` rows: larger ones do not fit into memory."""
        self._counts = tuple(n for n in self._counts if n < below)

    def answer(self, items: Sequence[BatchItem], run: RunFunctions) -> list[_Arrays]:
        """The answer of `run.single` to each item, in their order. Raises what `run` raises."""
        chunks = sorted(self._chunks(items), key=lambda chunk: chunk.size, reverse=True)
        cuts = {chunk: found for chunk in chunks if (found := self._cuts_of(chunk)) is not None}
        parallel = list(cuts)[count_shared_runs([chunk.size for chunk in cuts], self._n_threads) :]
        shared = set(chunks).difference(parallel)
        results: dict[int, _Arrays] = {}
        for chunk in chunks:
            if chunk in shared:
                results |= zip(chunk.numbers, self._shared(chunk, run), strict=True)
        batches = run.parallel([self._batch(chunk) for chunk in parallel]) if parallel else ()
        for chunk, batch in zip(parallel, batches, strict=True):
            results |= zip(chunk.numbers, _rows(chunk, batch, cuts[chunk]), strict=True)
        return [results[i] for i in range(len(items))]

    def answer_in_parts(
        self, items: Sequence[BatchItem], parts: Sequence[Sequence[int]], run: RunFunctions
    ) -> list[_Arrays]:
        """As `answer`, with the items of each part in one batch; parts run in parallel, one per thread.

        The number of rows of a batch is rounded up to a number in COUNTS; the added rows are copies of one
        item.
        """
        chunks = [self._part(items, part) for part in parts]
        cuts = [self._cuts_of(chunk) for chunk in chunks]
        results: dict[int, _Arrays] = {}
        if min(len(chunks), self._n_threads) > 1 and None not in cuts:
            batches = run.parallel([self._batch(chunk) for chunk in chunks])
            for chunk, batch, how in zip(chunks, batches, cuts, strict=True):
                results |= zip(chunk.numbers, _rows(chunk, batch, how or ()), strict=True)
        else:
            for chunk in chunks:
                results |= zip(chunk.numbers, self._shared(chunk, run), strict=True)
        return [results[i] for i in range(len(items))]

    def begin(self, items: Sequence[BatchItem], run: RunFunctions) -> Callable[[], list[_Arrays]]:
        """A function that answers the items in one batch on one worker, outside the owner's lock; call it
        once.
        """
        chunk = self._part(items, range(len(items)))
        cuts = self._cuts_of(chunk)
        if cuts is None:
            compared = self._shared(chunk, run)
            return lambda: compared
        finish = run.begin(self._batch(chunk))
        return lambda: _rows(chunk, finish(), cuts)

    def _part(self, items: Sequence[BatchItem], numbers: Sequence[int]) -> _Chunk:
        here = tuple(items[i] for i in numbers)
        fits = tuple(self._buckets.fit(self._inputs, item.shapes).without(self._rows) for item in here)
        shapes = tuple(fits[0].shape(port, here[0].shapes[port.name]) for port in self._inputs)
        n_rows = next((n for n in reversed(COUNTS) if n >= len(here)), len(here))
        return _Chunk(tuple(numbers), here, fits, shapes, n_rows)

    def _chunks(self, items: Sequence[BatchItem]) -> Iterator[_Chunk]:
        """Groups of items that may run together: items whose padded shapes are equal."""
        groups: dict[_Shapes, list[tuple[int, BucketFit]]] = {}
        for i, item in enumerate(items):
            try:
                fit = self._buckets.fit(self._inputs, item.shapes)
            except InputError as error:
                raise InputError(f"feeds {i} of the list: {error}") from error
            row = fit.without(self._rows)
            shapes = tuple(row.shape(port, item.shapes[port.name]) for port in self._inputs)
            groups.setdefault(shapes, []).append((i, fit))
        most = sum(_size(shapes) * len(group) for shapes, group in groups.items()) / self._n_threads
        for shapes, group in groups.items():
            are_rows = self._rows is not None and all(shape[0] == 1 for shape in shapes)
            counts = [n for n in self._counts if n * _size(shapes) <= most] if are_rows else ()
            for part in _parts(group, counts):
                numbers = tuple(i for i, _ in part)
                fits = tuple(fit if len(part) == 1 else fit.without(self._rows) for _, fit in part)
                yield _Chunk(numbers, tuple(items[i] for i in numbers), fits, shapes, len(numbers))

    def _cuts_of(self, chunk: _Chunk) -> list[Cuts] | None:
        """How each item's answer is cut back; None before a comparison."""
        if chunk.n_rows > 1:
            found = [self._cuts.get(key) for key in chunk.keys]
        else:
            (fit,) = chunk.fits
            found = [
                self._padding.cuts(fit) if fit.padded_dims else {port.name: () for port in self._outputs}
            ]
        known = [cuts for cuts in found if cuts is not None]
        return known if len(known) == len(found) else None

    def _batch(self, chunk: _Chunk) -> Feeds:
        padded = [
            self._buckets.pad(self._inputs, item.feeds, fit, {})
            for item, fit in zip(chunk.items, chunk.fits, strict=True)
        ]
        if chunk.n_rows == 1:
            return padded[0]
        left = chunk.n_rows - len(padded)
        padded += [padded[0]] * left
        batch = {port.name: np.concatenate([feeds[port.name] for feeds in padded]) for port in self._inputs}
        if self._tokens is not None:
            lengths = [fit.fed[self._tokens] for fit in chunk.fits] + [1] * left
            batch[IS_TOKEN] = is_token(lengths, chunk.fits[0].run[self._tokens])
        return batch

    def _shared(self, chunk: _Chunk, run: RunFunctions) -> list[_Arrays]:
        """The answers to one chunk, run on all threads; a comparison is made if none is known yet."""
        if chunk.n_rows > 1 and self._rows is not None:
            feeds = self._batch(chunk)
            batch = run.batch(feeds)
            cuts = self._compared(chunk, feeds, batch, run)
            if cuts is not None:
                return _rows(chunk, batch, cuts)
            self._rows = None
        return [run.single(item.feeds) for item in chunk.items]

    def _compared(self, chunk: _Chunk, feeds: Feeds, batch: Feeds, run: RunFunctions) -> list[Cuts] | None:
        """How each item's answer is cut back; None if the rows of the batch differ from the answers alone."""
        if any(array.ndim == 0 or len(array) != chunk.n_rows for array in batch.values()):
            return None
        has_distinct_rows = any((feeds[x.name][1:] != feeds[x.name][:1]).any() for x in self._inputs)
        found: dict[_Key, Cuts] = {}
        for i, (key, item, fit) in enumerate(zip(chunk.keys, chunk.items, chunk.fits, strict=True)):
            if key in found:
                continue
            row = {y: array[i : i + 1] for y, array in batch.items()}
            cuts = self._cuts.get(key) or self._row_cuts(item, fit, row, run)
            if cuts is None:
                return None
            found[key] = cuts
            if has_distinct_rows and self._buckets.differs_from_padding(self._inputs, item.feeds, fit):
                self._cuts[key] = cuts
        return [found[key] for key in chunk.keys]

    def _row_cuts(self, item: BatchItem, fit: BucketFit, row: Feeds, run: RunFunctions) -> Cuts | None:
        """How a row is cut back to the item's own answer; None if the two differ."""
        wanted = run.uncached(item.feeds)
        if any(array.shape[:1] != (1,) for array in wanted.values()):
            return None
        cuts = find_cuts(self._outputs, wanted, row, fit)
        if not find_differences(wanted, cut(row, cuts, fit)):
            return cuts
        run.single(item.feeds)  # raises InputError where padding changes the answer
        return None


def _rows(chunk: _Chunk, batch: Feeds, cuts: Sequence[Cuts]) -> list[_Arrays]:
    """Each item's answer, in arrays of its own."""
    if chunk.n_rows == 1:
        rows: list[Feeds] = [batch]
    else:
        rows = [{y: array[i : i + 1] for y, array in batch.items()} for i in range(len(chunk.items))]
    return [
        {y: array.copy() for y, array in cut(row, how, fit).items()}
        for row, how, fit in zip(rows, cuts, chunk.fits, strict=True)
    ]


def _rows_symbol(inputs: Sequence[Port]) -> str | None:
    """The open dimension that is first in every input; None if there is none."""
    first = {(symbols(port) or (None,))[0] for port in inputs}
    return first.pop() if len(first) == 1 else None


def _tokens_symbol(buckets: Buckets, inputs: Sequence[Port]) -> str | None:
    """The only bucketed dimension besides the rows, if it is the second axis in all its inputs."""
    places = {(s, i) for port in inputs for i, s in enumerate(symbols(port)) if s in buckets.sizes and i > 0}
    (symbol, at), *others = places or {(None, 0)}
    return symbol if at == 1 and not others else None


def _counts(buckets: Buckets, rows: str | None) -> tuple[int, ...]:
    """Batch sizes, largest first: from the buckets of the rows dimension if it has any."""
    sizes: Mapping[str, Sequence[int]] = buckets.sizes
    if rows is None or rows not in sizes:
        return COUNTS if rows is not None else ()
    return tuple(sorted((n for n in sizes[rows] if n > 1), reverse=True))


def _size(shapes: _Shapes) -> int:
    return sum(map(prod, shapes))


def _parts(group: Sequence[_T], counts: Sequence[int]) -> Iterator[Sequence[_T]]:
    """Split `group` into parts, each of the largest count that it fills."""
    first = 0
    while first < len(group):
        left = len(group) - first
        n = next((count for count in counts if count <= left), 1)
        yield group[first : first + n]
        first += n
