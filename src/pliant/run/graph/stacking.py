"""Run feeds of several callers as one batch: those of equal sizes, or padded to one bucket.

Whether a model answers each row of a batch as it answers the row alone is found out by comparing, not
assumed, as for padding (run/graph/padding.py).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from pliant.errors import InputError
from pliant.ir.port import Port
from pliant.run.graph.buckets import Buckets, Cuts, Fit, cut, cuts_of, differing
from pliant.run.session.ports import Feeds, Shapes, symbols

COUNTS = (8, 4, 2)
"""How many feeds run together. More gain little: weights are read once for all of them already."""

_Arrays = dict[str, np.ndarray]
_Shapes = tuple[tuple[int, ...], ...]
_Key = tuple[tuple[tuple[str, int, bool], ...], _Shapes]
Answer = Callable[[Feeds], _Arrays]


@dataclass(frozen=True, slots=True)
class Item:
    """One caller's feeds: arrays that fit the inputs, and their shapes."""

    feeds: Feeds
    shapes: Shapes


@final
class Stacking:
    """Which feeds run together, and what comparisons have shown. The owner lets callers take turns.

    Feeds are put together along the open dimension that stands first in every input, where each has one row.
    One row of a batch is compared with the answer to its feed alone, for each bucket and whether the feed is
    padded to it; a model that fails is fed one by one from then on.
    """

    def __init__(self, buckets: Buckets, inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
        self._buckets, self._inputs, self._outputs = buckets, inputs, outputs
        self._rows = _rows_symbol(inputs)
        self._counts = _counts(buckets, self._rows)
        self._cuts: dict[_Key, Cuts] = {}

    @property
    def n_images(self) -> int:
        """Images for each combination of the other sizes: for feeds alone, and for each number together."""
        return 1 + len(self._counts)

    def answers(self, items: Sequence[Item], alone: Answer, exact: Answer, once: Answer) -> list[_Arrays]:
        """What `alone(feeds)` answers to each item, in their order.

        `exact(feeds)` runs a batch as it is, `once(feeds)` a comparison, of which nothing is kept. Raises
        what these raise.
        """
        results: dict[int, _Arrays] = {}
        for numbers in self._groups(items):
            for chunk in _chunks(numbers, self._counts if self._rows else ()):
                together = [items[i] for i in chunk]
                found = None
                if len(chunk) > 1 and self._rows:
                    found = self._together(together, alone, exact, once)
                if found is None:
                    found = [alone(item.feeds) for item in together]
                results |= dict(zip(chunk, found, strict=True))
        return [results[i] for i in range(len(items))]

    def _groups(self, items: Sequence[Item]) -> Iterator[list[int]]:
        """The numbers of the items that may run together: those of equal shapes once they are padded."""
        groups: dict[_Shapes, list[int]] = {}
        for i, item in enumerate(items):
            try:
                fit = self._fit(item)
            except InputError as error:
                raise InputError(f"feeds {i} of the list: {error}") from error
            groups.setdefault(self._shapes(item, fit), []).append(i)
        for shapes, numbers in groups.items():
            if self._rows and all(shape[0] == 1 for shape in shapes):
                yield numbers
            else:
                yield from ([i] for i in numbers)

    def _shapes(self, item: Item, fit: Fit) -> _Shapes:
        return tuple(fit.shape(port, item.shapes[port.name]) for port in self._inputs)

    def _fit(self, item: Item) -> Fit:
        """The sizes of all bucketed dimensions but that of rows, which a batch has as many of as it likes."""
        fit = self._buckets.fit(self._inputs, item.shapes)
        return Fit(*({s: n for s, n in side.items() if s != self._rows} for side in (fit.fed, fit.run)))

    def _together(
        self, items: Sequence[Item], alone: Answer, exact: Answer, once: Answer
    ) -> list[_Arrays] | None:
        """The answers of one batch; None from a model that does not answer row by row."""
        fits = [self._fit(item) for item in items]
        padded = [
            self._buckets.padded(self._inputs, item.feeds, fit, {})
            for item, fit in zip(items, fits, strict=True)
        ]
        names = [port.name for port in self._inputs]
        batch = exact({x: np.concatenate([feeds[x] for feeds in padded]) for x in names})
        if any(array.ndim == 0 or len(array) != len(items) for array in batch.values()):
            self._rows = None
            return None
        is_telling = any(not np.array_equal(padded[0][x], feeds[x]) for x in names for feeds in padded[1:])
        found: dict[_Key, Cuts] = {}
        answers = []
        for i, (item, fit) in enumerate(zip(items, fits, strict=True)):
            row = {y: array[i : i + 1] for y, array in batch.items()}
            key = fit.key, self._shapes(item, fit)
            cuts = self._cuts.get(key, found.get(key))
            if cuts is None:
                cuts = self._compared(item, fit, row, alone, once)
                if cuts is None:
                    self._rows = None
                    return None
                found[key] = cuts
                if is_telling and self._buckets.would_tell(self._inputs, item.feeds, fit):
                    self._cuts[key] = cuts
            answers.append({y: array.copy() for y, array in cut(row, cuts, fit).items()})
        return answers

    def _compared(self, item: Item, fit: Fit, row: Feeds, alone: Answer, once: Answer) -> Cuts | None:
        """How a row is cut back to the item's own answer; None where it is not that answer."""
        wanted = once(item.feeds)
        if any(array.shape[:1] != (1,) for array in wanted.values()):
            return None
        cuts = cuts_of(self._outputs, wanted, row, fit)
        if not differing(wanted, cut(row, cuts, fit)):
            return cuts
        alone(item.feeds)  # raises InputError where padding changes the answer
        return None


def _rows_symbol(inputs: Sequence[Port]) -> str | None:
    """The open dimension that stands first in every input; None where there is none."""
    first = {(symbols(port) or (None,))[0] for port in inputs}
    return first.pop() if len(first) == 1 else None


def _counts(buckets: Buckets, rows: str | None) -> tuple[int, ...]:
    """Numbers of feeds that run together, the most first: the buckets' where these tell."""
    sizes: Mapping[str, Sequence[int]] = buckets.sizes
    if rows is None or rows not in sizes:
        return COUNTS if rows is not None else ()
    return tuple(sorted((n for n in sizes[rows] if n > 1), reverse=True))


def _chunks(numbers: Sequence[int], counts: Sequence[int]) -> Iterator[list[int]]:
    """`numbers` in parts of the largest count that they still fill."""
    first = 0
    while first < len(numbers):
        left = len(numbers) - first
        n = next((count for count in counts if count <= left), 1)
        yield list(numbers[first : first + n])
        first += n
