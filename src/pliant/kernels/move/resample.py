"""Weighted sums of positions along one axis: interpolation whose weights were found before the run."""

import ctypes

from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.dtypes import DTYPES, Dtype, convert, narrow, widen
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.spans import Span, over
from pliant.kernels.emit.values import Value


class ResampleArgs(ctypes.Structure):
    """target[o, p, i] = shifts[p] + sum over t of weights[p, t] * source[o, places[p, t], i].

    source is [outer, length, inner], target [outer, n, inner]; places int32, weights and shifts float32.
    """

    _fields_ = (
        ("source", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
        ("places", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("shifts", ctypes.c_void_p),
        ("length", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("taps", ctypes.c_int64),
        ("inner", ctypes.c_int64),
    )


def resample_ir(isa: Isa, name: str, dtype: str, is_wide: bool) -> str:
    """A unit is one (o, p). `is_wide` goes along `inner` in vectors of float32, otherwise element by element.

    Sums are float32 (float64 for float64); integers are rounded toward zero and saturate.
    """
    row = DTYPES[dtype]
    assert not is_wide or dtype == "float32", dtype
    module = Module(isa)
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        source, target, length, n, inner = f.fields(
            args, ResampleArgs, "source", "target", "length", "n", "inner"
        )
        with f.each(lo, hi) as u:
            o, p = u // n, u % n
            x = f.at(source, o * length * inner, row.memory)
            y = f.at(target, u * inner, row.memory)
            if is_wide:
                _wide(f, args, p, inner, x, y)
            else:
                with f.each(0, inner) as i:
                    _element(f, args, p, inner, f.at(x, i, row.memory), f.at(y, i, row.memory), row)
    return module.text()


def _wide(f: Function, args: Value, p: Value, inner: Value, x: Value, y: Value) -> None:
    shift, taps = _shift(f, args, p)

    def visit(span: Span, _: list[Value]) -> list[Value]:
        with f.loop(0, taps, carry=[f.splat(shift)]) as turn:
            place, weight = _tap(f, args, p, taps, turn.index)
            part = span.load(f.at(x, place * inner))
            turn.carry([f.fma(part, f.splat(weight), turn.carried[0])])
        span.store(turn.carried[0], y)
        return []

    over(f, inner, visit)


def _element(f: Function, args: Value, p: Value, inner: Value, x: Value, y: Value, row: Dtype) -> None:
    shift, taps = _shift(f, args, p)
    sum_type = DTYPES["float64" if row.name == "float64" else "float32"]
    start = convert(f, shift, DTYPES["float32"], sum_type)
    with f.loop(0, taps, carry=[start]) as turn:
        place, weight = _tap(f, args, p, taps, turn.index)
        part = widen(f, f.load(f.at(x, place * inner, row.memory), row.memory), row)
        factors = [
            convert(f, part, row if row.bits > 16 or row.kind != "float" else sum_type, sum_type),
            convert(f, weight, DTYPES["float32"], sum_type),
        ]
        turn.carry([turn.carried[0] + factors[0] * factors[1]])
    total = turn.carried[0]
    if row.kind != "float":
        total = convert(f, total, sum_type, row)
    f.store(narrow(f, total, row), y)


def _shift(f: Function, args: Value, p: Value) -> tuple[Value, Value]:
    shifts, taps = f.fields(args, ResampleArgs, "shifts", "taps")
    return f.load(f.at(shifts, p)), taps


def _tap(f: Function, args: Value, p: Value, taps: Value, t: Value) -> tuple[Value, Value]:
    places, weights = f.fields(args, ResampleArgs, "places", "weights")
    at = p * taps + t
    return f.cast("sext", f.load(f.at(places, at, "i32"), "i32"), "i64"), f.load(f.at(weights, at))
