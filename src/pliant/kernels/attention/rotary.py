"""Rotary embedding of rows: pairs of columns are rotated by given cosines and sines."""

import ctypes

from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.spans import ColumnSpan, visit_columns
from pliant.kernels.emit.values import Value

ROTARY = "rotary"
_AXES = ("batch", "head", "row")


class RotaryArgs(ctypes.Structure):
    """out = x * cos + rotated(x) * sin in the first 2 * half columns, x in the others; float32, n columns.

    rotated(x) is -x[half:2 * half], x[:half]. A unit is a row of out, contiguous [batch, head, row, n];
    strides of x, cos and sin are by batch, head and row, their columns contiguous.
    """

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        *((f"{name}_{d}", ctypes.c_int64) for name in ("x", "cos", "sin") for d in _AXES),
        ("n_heads", ctypes.c_int64),
        ("n_rows", ctypes.c_int64),
        ("half", ctypes.c_int64),
        ("n", ctypes.c_int64),
    )


def rotary_ir(isa: Isa) -> str:
    """The kernel ROTARY with RotaryArgs."""
    module = Module(isa)
    with module.kernel(ROTARY) as f:
        args, lo, hi, _ = f.params
        out, n_heads, n_rows, half, n = f.fields(args, RotaryArgs, "out", "n_heads", "n_rows", "half", "n")
        with f.each(lo, hi) as unit:
            row, left = unit % n_rows, unit // n_rows
            at = (left // n_heads, left % n_heads, row)
            x, cos, sin = (_row(f, args, name, at) for name in ("x", "cos", "sin"))
            to = f.at(out, unit * n)
            _rotate_pairs(f, half, (x, cos, sin), to)
            rest = half * 2
            source, target = f.at(x, rest), f.at(to, rest)

            def copy(
                span: ColumnSpan, _: list[Value], source: Value = source, target: Value = target
            ) -> list[Value]:
                span.store(span.load(source), target)
                return []

            visit_columns(f, n - rest, copy)
    return module.text()


def _rotate_pairs(f: Function, half: Value, rows: tuple[Value, Value, Value], to: Value) -> None:
    (x, x2), (cos, cos2), (sin, sin2) = ((p, f.at(p, half)) for p in rows)
    to2 = f.at(to, half)

    def visit(span: ColumnSpan, _: list[Value]) -> list[Value]:
        a, b = span.load(x), span.load(x2)
        span.store(a * span.load(cos) - b * span.load(sin), to)
        span.store(b * span.load(cos2) + a * span.load(sin2), to2)
        return []

    visit_columns(f, half, visit)


def _row(f: Function, args: Value, name: str, at: tuple[Value, Value, Value]) -> Value:
    pointer, *strides = f.fields(args, RotaryArgs, name, *(f"{name}_{d}" for d in _AXES))
    offset = f.const(0)
    for index, stride in zip(at, strides, strict=True):
        offset = offset + index * stride
    return f.at(pointer, offset)
