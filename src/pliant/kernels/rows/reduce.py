"""Kernels that reduce a tensor along any of its axes.

    out = post(combine over reduced elements of term(x0, x1)), of x0 the tensor's elements

x1 is an operand with one value for every output, such as a maximum to be subtracted. The order of combining
elements depends only on sizes, so results are bit-identical for any number of threads; partial results of
BLOCK iterations are combined hierarchically, which keeps float sums accurate.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import prod

from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.dtypes import DTYPES, Dtype, narrow, widen
from pliant.kernels.emit.expression import Expr, inputs
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.nest_offsets import find_offsets
from pliant.kernels.emit.operations import OPERATIONS, evaluate
from pliant.kernels.emit.values import ConstantNumber, Value, vector

MAX_DIMS = 7
UNIT_COLUMNS = 256
BLOCK = 128

_CHAINS = 4


class ReduceArgs(ctypes.Structure):
    """x has kept dimensions, other reduced dimensions, and one reduced dimension of `n` steps of `step`.

    A unit is one output; in a reduction by columns, whose last dimension is `inner` kept elements, it is up
    to UNIT_COLUMNS outputs. `count` is the number of elements per output. Strides are in elements, the
    fastest dimension first.
    """

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("operand", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("step", ctypes.c_int64),
        ("inner", ctypes.c_int64),
        ("kept_rank", ctypes.c_int64),
        ("other_rank", ctypes.c_int64),
        ("others", ctypes.c_int64),
        ("kept_sizes", ctypes.c_int64 * MAX_DIMS),
        ("kept_strides", ctypes.c_int64 * MAX_DIMS),
        ("other_sizes", ctypes.c_int64 * MAX_DIMS),
        ("other_strides", ctypes.c_int64 * MAX_DIMS),
    )


@dataclass(frozen=True, slots=True)
class Reduction:
    """`term` over x0 and x1; `post` over the combined term x0, x1 and the count x2 (int64).

    `combine` is an operation of kernels/emit/operations.py: add mul max min and or. `by_columns`: the
    tensor's last dimension is kept.
    """

    term: Expr
    combine: str
    post: Expr
    by_columns: bool

    @property
    def name(self) -> str:
        """Unique for the kernel."""
        text = f"{self.term} {self.combine} {self.post}"
        way = "columns" if self.by_columns else "rows"
        return f"reduce_{way}_{sha256(text.encode()).hexdigest()[:16]}"

    @property
    def start(self) -> ConstantNumber:
        """The neutral element of `combine`."""
        row = self.term.row
        starts = {"add": 0, "mul": 1, "or": 0, "and": 1, "max": row.lowest, "min": row.highest}
        return starts[self.combine]


@dataclass(frozen=True, slots=True)
class ReductionLoops:
    """Kept and reduced dimensions of a tensor, adjacent ones merged; pairs are (size, stride)."""

    inner: int
    kept: tuple[tuple[int, int], ...]
    fastest: tuple[int, int]
    others: tuple[tuple[int, int], ...]
    by_columns: bool

    @property
    def n_units(self) -> int:
        return prod(size for size, _ in self.kept) * -(-self.inner // UNIT_COLUMNS)


def plan_reduction(shape: Sequence[int], axes: Sequence[int]) -> ReductionLoops:
    """How to walk a row-major tensor of `shape`, reduced along `axes`; its result is not empty."""
    groups: list[tuple[bool, int, int]] = []
    for d in range(len(shape) - 1, -1, -1):
        is_reduced, size, stride = d in axes, shape[d], prod(shape[d + 1 :])
        if size == 1:
            continue
        if groups and groups[-1][0] == is_reduced:
            groups[-1] = (is_reduced, groups[-1][1] * size, groups[-1][2])
        else:
            groups.append((is_reduced, size, stride))
    kept = [(size, stride) for is_reduced, size, stride in groups if not is_reduced]
    reduced = [(size, stride) for is_reduced, size, stride in groups if is_reduced] or [(1, 1)]
    by_columns = bool(groups) and not groups[0][0]
    inner = kept.pop(0)[0] if by_columns else 1
    return ReductionLoops(
        inner, tuple(kept or [(1, 0)]), reduced[0], tuple(reduced[1:] or [(1, 0)]), by_columns
    )


def reduce_ir(isa: Isa, reduction: Reduction) -> str:
    """The kernel `reduction.name` with ReduceArgs."""
    module = Module(isa)
    with module.kernel(reduction.name) as f:
        _Writer(f, reduction).write()
    return module.text()


class _Writer:
    """Writes one kernel; holds the values shared by its loops."""

    def __init__(self, f: Function, reduction: Reduction) -> None:
        self.f, self.reduction = f, reduction
        self.args, self.lo, self.hi, _ = f.params
        names = ("x", "operand", "out", "count", "n", "step", "inner", "others")
        fields = f.fields(self.args, ReduceArgs, *names)
        self.x, self.operand, self.out, self.count, self.n, self.step, self.inner, self.others = fields
        dtypes = inputs(reduction.term) | {k: v for k, v in inputs(reduction.post).items() if k == 1}
        self.row = DTYPES[dtypes[0]]
        self.operand_row = DTYPES[dtypes[1]] if 1 in dtypes else None

    def write(self) -> None:
        if not self.reduction.by_columns:
            with self.f.each(self.lo, self.hi) as unit:
                self._row(unit)
            return
        f = self.f
        blocks = (self.inner + (UNIT_COLUMNS - 1)) // UNIT_COLUMNS
        with f.each(self.lo, self.hi) as unit:
            outer, first = unit // blocks, unit % blocks * UNIT_COLUMNS
            stop = f.least(first + UNIT_COLUMNS, self.inner)
            self._columns(outer, first, stop)

    def _offset(self, what: str, index: Value) -> Value:
        f, args = self.f, self.args
        (rank,) = f.fields(args, ReduceArgs, f"{what}_rank")
        arrays = [
            f.at(args, getattr(ReduceArgs, f"{what}_{part}").offset, "i8") for part in ("sizes", "strides")
        ]
        return find_offsets(f, index, rank, arrays[0], arrays[1:])[0]

    def _row(self, unit: Value) -> None:
        """Compute one output from contiguous elements: vectors in chains, then single elements."""
        f = self.f
        base = f.at(self.x, self._offset("kept", unit), self.row.memory)
        single = self._operand(unit, 0)
        spread = [f.splat(v) for v in single]
        step = _CHAINS * f.lanes
        vectors, scalars = [self._start(f.lanes)] * _CHAINS, [self._start(0)]
        with f.loop(0, self.others, carry=[*vectors, *scalars]) as other:
            here = f.at(base, self._offset("other", other.index), self.row.memory)
            whole = self.n - self.n % step
            with f.loop(0, whole, step * BLOCK, carry=other.carried[:_CHAINS]) as block:
                stop = f.least(block.index + step * BLOCK, whole)
                with f.loop(block.index, stop, step, carry=vectors) as loop:
                    places = [f.at(here, loop.index + c * f.lanes, self.row.memory) for c in range(_CHAINS)]
                    terms = [self._term(place, spread, f.lanes) for place in places]
                    loop.carry(self._combined(loop.carried, terms))
                block.carry(self._combined(block.carried, loop.carried))
            rest = self.n - self.n % f.lanes
            with f.loop(whole, rest, f.lanes, carry=block.carried[:1]) as loop:
                place = f.at(here, loop.index, self.row.memory)
                loop.carry(self._combined(loop.carried, [self._term(place, spread, f.lanes)]))
            with f.loop(rest, self.n, carry=other.carried[_CHAINS:]) as last:
                place = f.at(here, last.index, self.row.memory)
                last.carry(self._combined(last.carried, [self._term(place, single, 0)]))
            other.carry([*loop.carried, *block.carried[1:], *last.carried])
        *vectors, scalar = other.carried
        total = vectors[0]
        for v in vectors[1:]:
            (total,) = self._combined([total], [v])
        folded = f.fold(total, lambda a, b: self._combined([a], [b])[0])
        self._store(self._combined([folded], [scalar])[0], unit, single, 0)

    def _columns(self, outer: Value, first: Value, stop: Value) -> None:
        """Compute adjacent outputs together: vectors of columns in chains, single vectors, single columns."""
        f = self.f
        base = f.at(self.x, self._offset("kept", outer), self.row.memory)
        at = outer * self.inner
        wide = _CHAINS * f.lanes
        after = first + (stop - first) // wide * wide
        with f.each(first, after, wide) as column:
            self._column(base, at, column, _CHAINS, f.lanes)
        rest = after + (stop - after) // f.lanes * f.lanes
        with f.each(after, rest, f.lanes) as column:
            self._column(base, at, column, 1, f.lanes)
        with f.each(rest, stop) as column:
            self._column(base, at, column, 1, 0)

    def _column(self, base: Value, at: Value, column: Value, chains: int, lanes: int) -> None:
        f = self.f
        width = max(lanes, 1)
        outputs = [at + column + c * width for c in range(chains)]
        operands = [self._operand(output, lanes) for output in outputs]
        starts = [self._start(lanes)] * chains
        with f.loop(0, self.others, carry=starts) as other:
            here = f.at(base, self._offset("other", other.index) + column, self.row.memory)
            with f.loop(0, self.n, BLOCK, carry=other.carried) as block:
                with f.loop(block.index, f.least(block.index + BLOCK, self.n), carry=starts) as loop:
                    line = f.at(here, loop.index * self.step, self.row.memory)
                    places = [f.at(line, c * width, self.row.memory) for c in range(chains)]
                    pairs = zip(places, operands, strict=True)
                    terms = [self._term(place, operand, lanes) for place, operand in pairs]
                    loop.carry(self._combined(loop.carried, terms))
                block.carry(self._combined(block.carried, loop.carried))
            other.carry(block.carried)
        for total, output, operand in zip(other.carried, outputs, operands, strict=True):
            self._store(total, output, operand, lanes)

    def _operand(self, output: Value, lanes: int) -> list[Value]:
        """The operand's values for the outputs from `output` on; none if there is no operand."""
        row = self.operand_row
        if row is None:
            return []
        place = self.f.at(self.operand, output, row.memory)
        return [widen(self.f, self.f.load(place, _type(row.memory, lanes)), row)]

    def _term(self, place: Value, operand: list[Value], lanes: int) -> Value:
        x = widen(self.f, self.f.load(place, _type(self.row.memory, lanes)), self.row)
        return evaluate(self.f, self.reduction.term, dict(enumerate([x, *operand])), lanes)

    def _start(self, lanes: int) -> Value:
        return self.f.const(self.reduction.start, _type(self.reduction.term.row.register, lanes))

    def _combined(self, totals: Sequence[Value], terms: Sequence[Value]) -> list[Value]:
        combine, row = OPERATIONS[self.reduction.combine], self.reduction.term.row
        return [combine(self.f, row, [a, b]) for a, b in zip(totals, terms, strict=True)]

    def _store(self, total: Value, output: Value, operand: list[Value], lanes: int) -> None:
        f, post = self.f, self.reduction.post
        leaves = dict(enumerate([total, *operand]))
        leaves[2] = f.splat(self.count) if lanes else self.count
        row: Dtype = post.row
        y = narrow(f, evaluate(f, post, leaves, lanes), row)
        f.store(y, f.at(self.out, output, row.memory))


def _type(element: str, lanes: int) -> str:
    return vector(lanes, element) if lanes else element
