"""Which requests that wait together run as one batch, whatever their lengths, and on how many threads.

Rows of a batch have one size. Lengths are padded to one of a few sizes (SIZES), so far apart that texts of
most lengths share an executable. Padding is not computed where it was packed (compiler/passes/pack_texts.py).
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise
from typing import final

import numpy as np

from pliant.errors import InputError
from pliant.ir.port import Port
from pliant.run.batches.buckets import Buckets
from pliant.run.batches.padding import Padding
from pliant.run.batches.stacking import COUNTS, Answers, Item, Stacking
from pliant.run.session.ports import Shapes, symbols

SIZES = tuple(64 << i for i in range(8))
"""What the open dimension beside that of rows is padded to in a batch."""
_ROWS_ONLY, _RUNS = 0, 2
_ON_EACH = 4
"""Texts that each thread takes of a batch of all threads. With twice as many, 2 % less of the processor is
spent on one, but clients whose answers come at once ask again at once, and until then no other would wait.
Where threads have batches of their own, others are under way meanwhile."""
_SHARED = 0.8
"""All threads share one batch where that takes at most this part of the time of a batch on each: threads that
share one wait for each other at every operator, and for whatever else runs on one of their processors."""

Clock = Callable[[], float]

_Arrays = dict[str, np.ndarray]


@final
class Together:
    """One `Stacking` for each size that requests are padded to. The owner lets callers take turns.

    A model may run requests together if one open dimension stands first in every input, with one row each,
    and at most one other is open.
    """

    def __init__(self, inputs: Sequence[Port], outputs: Sequence[Port], n_threads: int) -> None:
        self._inputs, self._outputs, self._n_threads = inputs, outputs, n_threads
        opened = {s for port in inputs for s in symbols(port)[1:] if s is not None}
        first = {(symbols(port) or (None,))[0] for port in inputs}
        self._is_able = len(first) == 1 and None not in first and len(opened) <= 1 and not opened & first
        self._symbol = next(iter(opened), None)
        self._stackings: dict[int, Stacking] = {}
        self._ready: set[int] = set()
        self._parts: dict[tuple[int, int], int] = {}
        self.pace_beside = 1.0

    @property
    def n_images(self) -> int:
        """Images that batches need to be kept at once."""
        return len(COUNTS) * len(self._stackings)

    def size(self, shapes: Shapes) -> int | None:
        """What feeds of these shapes are padded to in a batch; None where they run alone."""
        if not self._is_able or any(not shape or shape[0] != 1 for shape in shapes.values()):
            return None
        length = self._length(shapes)
        return _ROWS_ONLY if length is None else next((n for n in SIZES if n >= length), None)

    def key(self, shapes: Shapes) -> Hashable | None:
        """Feeds of equal keys run together at once; None for those that run alone, or not together yet."""
        size = self.size(shapes)
        return size if size in self._ready and self._stackings[size].is_able else None

    def most(self, n_beside: int) -> int:
        """How many run together at most, in all of `n_beside` batches at once: with more, answers a second
        rise no further."""
        return _ON_EACH * self._n_threads if n_beside == 1 else COUNTS[0] * n_beside

    def answers(self, items: Sequence[Item], by: Answers) -> list[_Arrays]:
        """What `by.alone` answers to each item, in their order. Raises what `by` raises."""
        sizes = {self.size(item.shapes) for item in items}
        assert len(sizes) == 1, "requests of several keys were run together"
        size = sizes.pop() or _ROWS_ONLY
        stacking = self._stacking(size)
        if self._symbol is None:  # rows that are left over would be computed
            return stacking.answers(items, by)
        lengths = [self._length(item.shapes) or 0 for item in items]
        return stacking.in_parts(items, balanced(lengths, self._n_parts(size, len(items))), by)

    def beside(self, items: Sequence[Item], by: Answers) -> Callable[[], list[_Arrays]]:
        """What answers the items on one thread, outside of the owner's turns: call it, once."""
        (size,) = {self.size(item.shapes) for item in items}
        return self._stacking(size or _ROWS_ONLY).beside(items, by)

    def prepare(self, size: int, samples: Callable[[int], Sequence[Item]], by: Answers, clock: Clock) -> bool:
        """Make the executables of this size, and measure on how many threads they run best.

        `samples` gives so many items. Returns whether items of this size run together from now on.
        """
        for n in reversed(COUNTS):
            items = samples(n)
            seconds: dict[int, float] = {}
            for n_parts in sorted({1, self._n_threads}):
                for _ in range(_RUNS):  # the first compiles, and compares
                    self._parts[size, n] = n_parts
                    start_s = clock()
                    self.answers(items, by)
                    seconds[n_parts] = clock() - start_s
            is_shared = seconds[1] <= _SHARED * seconds[self._n_threads]
            self._parts[size, n] = 1 if is_shared else self._n_threads
        if self._stackings[size].is_able:
            self._ready.add(size)
            (one,) = samples(1)
            alone_s = _shortest_s(lambda: by.alone(one.feeds), clock)
            self.pace_beside = _shortest_s(lambda: self.beside([one], by)(), clock) / max(alone_s, 1e-9)
        return size in self._ready

    def _n_parts(self, size: int, n: int) -> int:
        """Into how many parts n items are best divided: one for all threads, or as many for each of them."""
        if n > COUNTS[0]:
            return self._n_threads * -(-n // (self._n_threads * COUNTS[0]))
        return min(n, self._parts.get((size, next(m for m in reversed(COUNTS) if m >= n)), 1))

    def _length(self, shapes: Shapes) -> int | None:
        """The open dimension beside that of rows; None for a model without one. Raises InputError."""
        found = {
            n
            for port in self._inputs
            for symbol, n in zip(symbols(port), shapes[port.name], strict=True)
            if symbol is not None and symbol == self._symbol
        }
        if len(found) > 1:
            raise InputError(f"dimension {self._symbol!r} has the sizes {sorted(found)}; feed one.")
        return next(iter(found), None)

    def _stacking(self, size: int) -> Stacking:
        if size not in self._stackings:
            sizes = {} if self._symbol is None else {self._symbol: (size,)}
            buckets = Buckets(sizes)
            padding = Padding(buckets, self._inputs, self._outputs)
            self._stackings[size] = Stacking(buckets, padding, self._inputs, self._outputs, self._n_threads)
        return self._stackings[size]


def _shortest_s(run: Callable[[], object], clock: Clock) -> float:
    """What the quickest of a few runs takes."""
    ends_s = [clock(), *((run(), clock())[1] for _ in range(_RUNS + 1))]
    return min(b - a for a, b in pairwise(ends_s))


def balanced(lengths: Sequence[int], n_parts: int) -> list[list[int]]:
    """The numbers of texts of these lengths, in parts of about equal work, none longer than COUNTS allow."""
    parts: list[list[int]] = [[] for _ in range(n_parts)]
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        free = [part for part in parts if len(part) < COUNTS[0]]
        min(free, key=lambda part: sum(lengths[k] for k in part)).append(i)
    return parts
