"""Rows divided by their root mean square, float32, in one pass."""

import ctypes

from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.spans import ColumnSpan, reduce_columns, visit_columns
from pliant.kernels.emit.values import Value

RMS_NORM = "rms_norm"


class RmsNormArgs(ctypes.Structure):
    """out[r] = x[r] / sqrt(mean of x[r]**2 + eps) * weight: float32 rows of n; a unit is a row."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("eps", ctypes.c_float),
    )


def rms_norm_ir(isa: Isa) -> str:
    """`rms_norm` with RmsNormArgs."""
    module = Module(isa)
    with module.kernel(RMS_NORM) as f:
        args, lo, hi, _ = f.params
        x, out, weight, n, eps = f.fields(args, RmsNormArgs, "x", "out", "weight", "n", "eps")
        length = f.cast("sitofp", n, "float")
        with f.each(lo, hi) as row:
            _write_row(f, (f.at(x, row * n), f.at(out, row * n), weight), n, (length, eps))
    return module.text()


def _write_row(f: Function, row: tuple[Value, Value, Value], n: Value, numbers: tuple[Value, Value]) -> None:
    x, out, weight = row
    length, eps = numbers

    def squares(span: ColumnSpan) -> list[Value]:
        value = span.load(x)
        return [value * value]

    (total,) = reduce_columns(f, n, squares, lambda a, b: a + b, [0.0])
    root = f.intrinsic("llvm.sqrt", "float", total / length + eps)
    scale = f.splat(f.const(1.0, "float") / root)

    def visit(span: ColumnSpan, _: list[Value]) -> list[Value]:
        span.store(span.load(x) * scale * span.load(weight), out)
        return []

    visit_columns(f, n, visit)
