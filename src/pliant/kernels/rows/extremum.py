"""The index of the largest or smallest element along one axis."""

import ctypes
from dataclasses import dataclass

from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.dtypes import DTYPES, Dtype, widen
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.operations import OPERATIONS
from pliant.kernels.emit.values import Value, vector

UNIT_COLUMNS = 256

_CHAINS = 4


class ExtremumArgs(ctypes.Structure):
    """x is [outer, n, inner], row-major; out is int64 [outer, inner]. n >= 1.

    A unit is up to UNIT_COLUMNS adjacent outputs of one outer index.
    """

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("inner", ctypes.c_int64),
    )


@dataclass(frozen=True, slots=True)
class Extremum:
    """On a tie the first element counts, or the last; a NaN is more extreme than any number.

    `is_row` is for an inner of 1, where vectors run along the axis.
    """

    dtype: str
    is_largest: bool
    is_last: bool
    is_row: bool = False

    @property
    def name(self) -> str:
        ends = ["last"] * self.is_last + ["row"] * self.is_row
        return "_".join([f"arg{'max' if self.is_largest else 'min'}", *ends, self.dtype])


def extremum_ir(isa: Isa, extremum: Extremum) -> str:
    """The kernel `extremum.name` with ExtremumArgs."""
    module = Module(isa)
    with module.kernel(extremum.name) as f:
        _, lo, hi, _ = f.params
        with f.each(lo, hi) as unit:
            (_row if extremum.is_row else _block)(f, extremum, unit)
    return module.text()


def _row(f: Function, extremum: Extremum, unit: Value) -> None:
    """Find the extremum of a row, then the position of its first or last occurrence."""
    x, out, n = f.fields(f.params[0], ExtremumArgs, "x", "out", "n")
    row = DTYPES[extremum.dtype]
    start = f.at(x, unit * n, row.memory)
    best = _best(f, extremum, start, n)

    def hits(i: Value, lanes: int) -> Value:
        """A mask of the extreme lanes from the i-th on, counted from the end where the search starts."""
        at = n - i - max(lanes, 1) if extremum.is_last else i
        element = _load(f, row, f.at(start, at, row.memory), lanes)
        found = element.compare("eq", f.splat(best) if lanes else best)
        # A NaN is the extremum.
        return found | element.compare("uno", element) if row.kind == "float" else found

    def search() -> list[Value]:
        with f.repeat([f.const(0)]) as loop:
            (i,) = loop.carried
            after = i + f.lanes
            is_missed = f.cast("bitcast", hits(i, f.lanes), f"i{f.lanes}").compare("eq", 0)
            loop.repeat_if(is_missed & (after + f.lanes <= n), [after])
        return [loop.carried[0] - f.lanes]

    (near,) = f.choose(n >= f.lanes, search, lambda: [f.const(0)])
    with f.repeat([near]) as loop:
        (i,) = loop.carried
        loop.repeat_if(hits(i, 0) ^ 1, [i + 1])
    found = loop.carried[0] - 1
    f.store(n - 1 - found if extremum.is_last else found, f.at(out, unit, "i64"))


def _best(f: Function, extremum: Extremum, start: Value, n: Value) -> Value:
    """The extremum of n contiguous elements; NaN if there is one."""
    row = DTYPES[extremum.dtype]
    combine = OPERATIONS["max" if extremum.is_largest else "min"]
    first = _load(f, row, start, 0)
    done, bests = f.const(0), [f.splat(first)] * _CHAINS
    for chains in (_CHAINS, 1):
        step = chains * f.lanes
        stop = done + (n - done) // step * step
        with f.loop(done, stop, step, carry=bests[:chains]) as loop:
            places = [f.at(start, loop.index + c * f.lanes, row.memory) for c in range(chains)]
            pairs = zip(loop.carried, [_load(f, row, place, f.lanes) for place in places], strict=True)
            loop.carry([combine(f, row, pair) for pair in pairs])
        (best, *others), done = loop.carried, stop
        for other in others:
            best = combine(f, row, [best, other])
        bests = [best]
    folded = f.fold(best, lambda a, b: combine(f, row, [a, b]))
    with f.loop(done, n, carry=[folded]) as loop:
        element = _load(f, row, f.at(start, loop.index, row.memory), 0)
        loop.carry([combine(f, row, [loop.carried[0], element])])
    return loop.carried[0]


def _load(f: Function, row: Dtype, place: Value, lanes: int) -> Value:
    return widen(f, f.load(place, vector(lanes, row.memory) if lanes else row.memory), row)


def _block(f: Function, extremum: Extremum, unit: Value) -> None:
    """Compute adjacent outputs of one outer index, in vectors."""
    (inner,) = f.fields(f.params[0], ExtremumArgs, "inner")
    blocks = (inner + (UNIT_COLUMNS - 1)) // UNIT_COLUMNS
    outer, first = unit // blocks, unit % blocks * UNIT_COLUMNS
    stop = f.least(first + UNIT_COLUMNS, inner)
    whole = first + (stop - first) // f.lanes * f.lanes
    with f.each(first, whole, f.lanes) as column:
        _columns(f, extremum, outer, column, f.lanes)
    with f.each(whole, stop) as column:
        _columns(f, extremum, outer, column, 0)


def _columns(f: Function, extremum: Extremum, outer: Value, column: Value, lanes: int) -> None:
    x, out, n, inner = f.fields(f.params[0], ExtremumArgs, "x", "out", "n", "inner")
    row = DTYPES[extremum.dtype]
    start = f.at(x, outer * n * inner + column, row.memory)

    def element(i: Value | int) -> Value:
        return _load(f, row, f.at(start, inner * i, row.memory), lanes)

    zero = f.const(0, vector(lanes, "i64") if lanes else "i64")
    with f.loop(1, n, carry=[element(0), zero]) as loop:
        best, at = loop.carried
        x_here = element(loop.index)
        takes = _replaces_best(f, extremum, row, x_here, best)
        here = f.splat(loop.index) if lanes else loop.index
        loop.carry([f.select(takes, x_here, best), f.select(takes, here, at)])
    f.store(loop.carried[1], f.at(out, outer * inner + column, "i64"))


def _replaces_best(f: Function, extremum: Extremum, row: Dtype, x: Value, best: Value) -> Value:
    """Whether x replaces the best so far."""
    letter = "g" if extremum.is_largest else "l"
    how = f"{letter}{'e' if extremum.is_last else 't'}"
    if row.kind != "float":
        sign = "u" if row.kind in ("uint", "bool") else "s"
        result = vector(int(x.type[1:].split(" ")[0]), "i1") if x.type.startswith("<") else "i1"
        return f.op(f"icmp {sign}{how} {x}, {best.text}", result)
    is_nan = x.compare("uno", x)
    if extremum.is_last:
        return x.compare(how, best) | is_nan
    return (x.compare(how, best) | is_nan) & best.compare("eq", best)
