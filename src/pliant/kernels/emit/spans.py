"""Iterate over the columns of a row in vectors, with a partial one at the end.

A partial vector is read and written element by element, so that no memory beyond the row is accessed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.values import Value, vector

SpanVisitor = Callable[["ColumnSpan", list[Value]], Sequence[Value]]
Combine = Callable[[Value, Value], Value]

_CHAINS = 4


@dataclass(frozen=True, slots=True)
class ColumnSpan:
    """`lanes` columns from `first` on, of which `count` exist; None if all do."""

    f: Function
    lanes: int
    first: Value
    count: Value | None

    def load(self, row: Value, type_: str = "float") -> Value:
        """These columns of an array of `type_`; zero for missing columns."""
        start = self.f.at(row, self.first, type_)
        if self.count is None:
            return self.f.load(start, vector(self.lanes, type_))
        with self.f.loop(0, self.count, carry=[self.f.const(0, vector(self.lanes, type_))]) as loop:
            element = self.f.load(self.f.at(start, loop.index, type_), type_)
            loop.carry([self.f.insert(loop.carried[0], element, loop.index)])
        return loop.carried[0]

    def store(self, value: Value, row: Value) -> None:
        """Write these columns of a row of floats."""
        start = self.f.at(row, self.first)
        if self.count is None:
            self.f.store(value, start)
            return
        with self.f.each(0, self.count) as i:
            self.f.store(self.f.extract(value, i), self.f.at(start, i))

    def mask(self, value: Value, otherwise: float) -> Value:
        """`value`, with `otherwise` in missing columns."""
        if self.count is None:
            return value
        numbers = self.f.const_lanes(range(self.lanes), "i64")
        exists = numbers < self.f.splat(self.count, self.lanes)
        return self.f.select(exists, value, self.f.const(otherwise, value.type))


def visit_columns(
    f: Function,
    n: Value,
    visit: SpanVisitor,
    carry: Sequence[Value] = (),
    *,
    lanes: int | None = None,
    first: Value | int = 0,
) -> list[Value]:
    """Visit columns first..n-1 in vectors of the ISA's width, or of `lanes`; returns the carried values.

    `first` is a multiple of that width.
    """
    width = lanes or f.lanes
    whole = n - n % width
    with f.loop(first, whole, width, carry) as loop:
        loop.carry(visit(ColumnSpan(f, width, loop.index, None), loop.carried))
    done = loop.carried
    rest = ColumnSpan(f, width, whole, n - whole)
    return f.choose(n > whole, lambda: list(visit(rest, done)), lambda: done)


def reduce_columns(
    f: Function,
    n: Value,
    terms: Callable[[ColumnSpan], Sequence[Value]],
    combine: Combine,
    start: Sequence[float],
) -> list[Value]:
    """The sum, or another combination, of every term over all columns; one float for each of `start`.

    `start` is used for missing columns, and must be neutral. Independent partial results hide the latency of
    combining.
    """
    step = _CHAINS * f.lanes
    whole = n - n % step
    with f.loop(0, whole, step, [f.const(x, f.vec) for x in start] * _CHAINS) as loop:
        spans = [ColumnSpan(f, f.lanes, loop.index + c * f.lanes, None) for c in range(_CHAINS)]
        found = [term for span in spans for term in terms(span)]
        loop.carry([combine(x, term) for x, term in zip(loop.carried, found, strict=True)])
    totals = loop.carried[: len(start)]
    for i, other in enumerate(loop.carried[len(start) :]):
        totals[i % len(start)] = combine(totals[i % len(start)], other)

    def visit(span: ColumnSpan, carried: list[Value]) -> list[Value]:
        found = [span.mask(term, x) for term, x in zip(terms(span), start, strict=True)]
        return [combine(x, term) for x, term in zip(carried, found, strict=True)]

    return [f.fold(total, combine) for total in visit_columns(f, n, visit, totals, first=whole)]


def visit_strips(
    f: Function, n: Value, visit: Callable[[Value, int, int], None], *, lanes: int = 0, chains: int = 1
) -> None:
    """`visit(first, width, count)` until columns 0..n-1 are covered: `count` vectors of `width` from `first`.

    The last vector overlaps the previous one, so a column may be visited twice. Up to `chains` vectors are
    visited together; rows shorter than a vector are visited in fours, or one by one.
    """
    width = lanes or f.lanes
    done = n - n % (width * chains)
    with f.each(0, done, width * chains) as i:
        visit(i, width, chains)
    _visit_rest(f, n, done if chains > 1 else n - n % width, visit, width)


def _visit_rest(
    f: Function, n: Value, done: Value, visit: Callable[[Value, int, int], None], width: int
) -> None:
    if width == 1:
        with f.each(done, n) as i:
            visit(i, 1, 1)
        return

    def vectors() -> list[Value]:
        with f.each(done, n - (width - 1), width) as i:
            visit(i, width, 1)
        with f.when((n % width).compare("ne", 0)):
            visit(n - width, width, 1)
        return []

    def shorter() -> list[Value]:
        _visit_rest(f, n, f.const(0), visit, 4 if width > 4 else 1)
        return []

    f.choose(n >= width, vectors, shorter)


def visit_pairs(f: Function, n: Value, visit: Callable[[list[Value], int], None], *, lanes: int = 0) -> None:
    """`visit(columns, width)`, the first columns of one or two vectors, until columns 0..n-1 are covered.

    As in `visit_strips`, the last vector overlaps the previous one, also within a pair. Rows shorter than a
    vector are visited in halves of it, down to fours, or one by one.
    """
    width = lanes or f.lanes
    if width == 1:
        with f.each(0, n) as i:
            visit([i], 1)
        return

    def vectors() -> list[Value]:
        last = n - width
        with f.each(0, last, 2 * width) as i:
            visit([i, f.least(i + width, last)], width)
        with f.when((n + (width - 1) & 2 * width - 1) >= width):
            visit([last], width)
        return []

    def shorter() -> list[Value]:
        visit_pairs(f, n, visit, lanes=width // 2 if width > 4 else 1)
        return []

    f.choose(n >= width, vectors, shorter)


def gather(f: Function, row: Value, places: Value, lanes: int, type_: str = "float") -> Value:
    """The elements of `row` at the next `lanes` places (int32, from the pointer `places` on)."""
    found = []
    for i in range(lanes):
        place = f.cast("sext", f.load(f.at(places, i, "i32"), "i32"), "i64")
        found.append(f.load(f.at(row, place, type_), type_))
    if lanes == 1:
        return found[0]
    value = f.const(0, vector(lanes, type_))
    for i, element in enumerate(found):
        value = f.insert(value, element, i)
    return value


def write_zeros(f: Function, row: Value, first: Value, stop: Value) -> None:
    """Write zeros to columns first..stop-1 of a row of floats."""
    with f.each(first, stop) as i:
        f.store(f.const(0.0, "float"), f.at(row, i))
