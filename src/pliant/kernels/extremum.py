"""The place of the largest or smallest element along one axis. Knows typed strides, no graph."""

import ctypes
from dataclasses import dataclass

from pliant.kernels.dtypes import DTYPES, Dtype, widen
from pliant.kernels.emit import Function, Module
from pliant.kernels.isa import Isa
from pliant.kernels.values import Value, vector

UNIT_COLUMNS = 256


class ExtremumArgs(ctypes.Structure):
    """x is [outer, n, inner], row-major; out is int64 [outer, inner]. n >= 1.

    A unit is up to UNIT_COLUMNS neighbouring outputs of one outer index.
    """

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("inner", ctypes.c_int64),
    )


@dataclass(frozen=True, slots=True)
class Extremum:
    """Of equal elements the first counts, or the last; a NaN is more extreme than any number."""

    dtype: str
    is_largest: bool
    is_last: bool

    @property
    def name(self) -> str:
        return f"arg{'max' if self.is_largest else 'min'}{'_last' if self.is_last else ''}_{self.dtype}"


def extremum_ir(isa: Isa, extremum: Extremum) -> str:
    """The kernel `extremum.name` with ExtremumArgs."""
    module = Module(isa)
    with module.kernel(extremum.name) as f:
        args, lo, hi, _ = f.params
        (inner,) = f.fields(args, ExtremumArgs, "inner")
        blocks = (inner + (UNIT_COLUMNS - 1)) // UNIT_COLUMNS
        with f.each(lo, hi) as unit:
            outer, first = unit // blocks, unit % blocks * UNIT_COLUMNS
            stop = f.least(first + UNIT_COLUMNS, inner)
            whole = first + (stop - first) // f.lanes * f.lanes
            with f.each(first, whole, f.lanes) as column:
                _columns(f, extremum, outer, column, f.lanes)
            with f.each(whole, stop) as column:
                _columns(f, extremum, outer, column, 0)
    return module.text()


def _columns(f: Function, extremum: Extremum, outer: Value, column: Value, lanes: int) -> None:
    x, out, n, inner = f.fields(f.params[0], ExtremumArgs, "x", "out", "n", "inner")
    row = DTYPES[extremum.dtype]
    start = f.at(x, outer * n * inner + column, row.memory)

    def element(i: Value | int) -> Value:
        place = f.at(start, inner * i, row.memory)
        return widen(f, f.load(place, vector(lanes, row.memory) if lanes else row.memory), row)

    zero = f.const(0, vector(lanes, "i64") if lanes else "i64")
    with f.loop(1, n, carry=[element(0), zero]) as turn:
        best, at = turn.carried
        x_here = element(turn.index)
        takes = _takes(f, extremum, row, x_here, best)
        here = f.splat(turn.index) if lanes else turn.index
        turn.carry([f.select(takes, x_here, best), f.select(takes, here, at)])
    f.store(turn.carried[1], f.at(out, outer * inner + column, "i64"))


def _takes(f: Function, extremum: Extremum, row: Dtype, x: Value, best: Value) -> Value:
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
