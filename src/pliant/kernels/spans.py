"""Go over the columns of a row in vectors, with a partial one at its end. Knows no kernel.

A partial vector is read and written element by element, so that nothing beyond the row is touched.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pliant.kernels.emit import Function
from pliant.kernels.values import Value, vector

Visit = Callable[["Span", list[Value]], Sequence[Value]]


@dataclass(frozen=True, slots=True)
class Span:
    """`lanes` columns from `first` on, of which `count` exist; None where all do."""

    f: Function
    lanes: int
    first: Value
    count: Value | None

    def load(self, row: Value, type_: str = "float") -> Value:
        """These columns of an array of `type_`; zero where a column does not exist."""
        start = self.f.at(row, self.first, type_)
        if self.count is None:
            return self.f.load(start, vector(self.lanes, type_))
        with self.f.loop(0, self.count, carry=[self.f.const(0, vector(self.lanes, type_))]) as turn:
            element = self.f.load(self.f.at(start, turn.index, type_), type_)
            turn.carry([self.f.insert(turn.carried[0], element, turn.index)])
        return turn.carried[0]

    def store(self, value: Value, row: Value) -> None:
        """Write these columns of a row of floats."""
        start = self.f.at(row, self.first)
        if self.count is None:
            self.f.store(value, start)
            return
        with self.f.each(0, self.count) as i:
            self.f.store(self.f.extract(value, i), self.f.at(start, i))

    def only(self, value: Value, otherwise: float) -> Value:
        """`value`, with `otherwise` in the columns that do not exist."""
        if self.count is None:
            return value
        numbers = self.f.lanes_of(range(self.lanes), "i64")
        exists = numbers < self.f.splat(self.count, self.lanes)
        return self.f.select(exists, value, self.f.const(otherwise, value.type))


def over(
    f: Function, n: Value, visit: Visit, carry: Sequence[Value] = (), *, lanes: int | None = None
) -> list[Value]:
    """Visit columns 0..n-1 in vectors of the ISA's width, or of `lanes`; what is carried at the end."""
    width = lanes or f.lanes
    whole = n - n % width
    with f.loop(0, whole, width, carry) as turn:
        turn.carry(visit(Span(f, width, turn.index, None), turn.carried))
    done = turn.carried
    rest = Span(f, width, whole, n - whole)
    return f.choose(n > whole, lambda: list(visit(rest, done)), lambda: done)


def reduce(
    f: Function,
    n: Value,
    term: Callable[[Span], Value],
    combine: Callable[[Value, Value], Value],
    start: float,
    chains: int = 4,
) -> Value:
    """All columns' terms combined to one float: `chains` independent sums hide the latency of each.

    `start` stands for columns that do not exist, and must leave the result unchanged.
    """
    step = chains * f.lanes
    whole = n - n % step
    with f.loop(0, whole, step, [f.const(start, f.vec)] * chains) as turn:
        spans = [Span(f, f.lanes, turn.index + c * f.lanes, None) for c in range(chains)]
        turn.carry([combine(x, term(span)) for x, span in zip(turn.carried, spans, strict=True)])
    total = turn.carried[0]
    for other in turn.carried[1:]:
        total = combine(total, other)
    with f.loop(whole, n, f.lanes, [total]) as turn:
        left = n - turn.index

        def full(at: Value = turn.index, x: Value = turn.carried[0]) -> list[Value]:
            return [combine(x, term(Span(f, f.lanes, at, None)))]

        def partial(at: Value = turn.index, x: Value = turn.carried[0], count: Value = left) -> list[Value]:
            span = Span(f, f.lanes, at, count)
            return [combine(x, span.only(term(span), start))]

        turn.carry(f.choose(left >= f.lanes, full, partial))
    return f.fold(turn.carried[0], combine)


def zero(f: Function, row: Value, first: Value, stop: Value) -> None:
    """Write zeros to columns first..stop-1 of a row of floats."""
    with f.each(first, stop) as i:
        f.store(f.const(0.0, "float"), f.at(row, i))
