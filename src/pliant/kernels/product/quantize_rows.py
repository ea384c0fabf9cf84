"""ONNX's dynamic quantization of a whole tensor, to rows in the form that a product reads.

Two kernels: `value_range` finds the least and largest value of each chunk, `quantize_rows_*` rounds rows with
them.
"""

import ctypes

from pliant.kernels.coded.int8.fill_int8 import round_to_integer
from pliant.kernels.emit.builder import Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.spans import ColumnSpan, reduce_columns, visit_columns
from pliant.kernels.emit.values import Value, scalar, vector
from pliant.kernels.product.matmul_integer import IntegerForm, byte_shift

CHUNK = 4096
RANGE = "value_range"


class RangeArgs(ctypes.Structure):
    """ranges[u] = (least, largest) of x[u * CHUNK : (u + 1) * CHUNK], of n floats; a unit is a chunk."""

    _fields_ = (("x", ctypes.c_void_p), ("n", ctypes.c_int64), ("ranges", ctypes.c_void_p))


class QuantizeRowsArgs(ctypes.Structure):
    """Rows of float32 [rows, n] to integers [rows, ld], zeros after n; `scale` and `zero` are written once.

    The integers are int16 minus the zero point, or bytes in the signedness of BYTES; `zero` is ONNX's byte.

    `ranges` has n_ranges pairs. scale = (largest - least) / 255 over a range that includes 0; 1 if that is 0.
    """

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("q", ctypes.c_void_p),
        ("ld", ctypes.c_int64),
        ("ranges", ctypes.c_void_p),
        ("n_ranges", ctypes.c_int64),
        ("scale", ctypes.c_void_p),
        ("zero", ctypes.c_void_p),
    )


def value_range_ir(isa: Isa) -> str:
    """The kernel RANGE with RangeArgs. 0 counts as a value of every chunk."""
    module = Module(isa)
    with module.kernel(RANGE) as f:
        args, lo, hi, _ = f.params
        x, n, ranges = f.fields(args, RangeArgs, "x", "n", "ranges")
        with f.each(lo, hi) as unit:
            here = f.at(x, unit * CHUNK)
            count = f.least(n - unit * CHUNK, CHUNK)

            def term(span: ColumnSpan, here: Value = here) -> list[Value]:
                return [span.load(here)]

            (least,) = reduce_columns(f, count, term, _least, [0.0])
            (most,) = reduce_columns(f, count, term, _most, [0.0])
            f.store(least, f.at(ranges, unit * 2))
            f.store(most, f.at(ranges, unit * 2 + 1))
    return module.text()


def quantize_rows_name(form: IntegerForm) -> str:
    """The kernel's name."""
    return f"quantize_rows_{8 * form.a_bytes}"


def quantize_rows_ir(isa: Isa, form: IntegerForm) -> str:
    """The kernel with QuantizeRowsArgs; a unit is a row."""
    module = Module(isa)
    element = f"i{8 * form.a_bytes}"
    with module.kernel(quantize_rows_name(form)) as f:
        args, lo, hi, _ = f.params
        names = ("x", "n", "q", "ld", "ranges", "n_ranges", "scale", "zero")
        x, n, q, ld, ranges, n_ranges, to_scale, to_zero = f.fields(args, QuantizeRowsArgs, *names)
        zero = f.const(0.0, "float")
        with f.loop(0, n_ranges, carry=[zero, zero]) as loop:
            at = loop.index * 2
            loop.carry(
                [
                    _least(loop.carried[0], f.load(f.at(ranges, at))),
                    _most(loop.carried[1], f.load(f.at(ranges, at + 1))),
                ]
            )
        least, most = loop.carried
        scale = (most - least) / 255.0
        scale = f.select(scale > 0.0, scale, f.const(1.0, "float"))
        whole_point = round_to_integer(f, f.splat(-least / scale))
        point = f.cast("sitofp", whole_point, f.vec)
        moved = whole_point + byte_shift(isa, "uint8")
        by, lowest, highest = f.splat(scale), -point, f.const(255.0, f.vec) - point
        with f.when(lo.compare("eq", 0)):
            f.store(scale, to_scale)
            f.store(f.cast("trunc", f.extract(whole_point, 0), "i8"), to_zero)
        with f.each(lo, hi) as row:
            source, target = f.at(x, row * n), f.at(q, row * ld, element)

            def visit(
                span: ColumnSpan, _: list[Value], source: Value = source, target: Value = target
            ) -> list[Value]:
                whole = span.load(source) / by
                whole = f.select(whole < lowest, lowest, f.select(whole > highest, highest, whole))
                steps = round_to_integer(f, whole)
                steps = steps + moved if form is IntegerForm.BYTES else steps
                _store(span, f.cast("trunc", steps, vector(f.lanes, element)), target)
                return []

            visit_columns(f, n, visit)
            with f.each(n, ld) as i:
                f.store(f.const(0, element), f.at(target, i, element))
    return module.text()


def _store(span: ColumnSpan, value: Value, row: Value) -> None:
    f = span.f
    element = scalar(value.type)
    start = f.at(row, span.first, element)
    if span.count is None:
        f.store(value, start)
        return
    with f.each(0, span.count) as i:
        f.store(f.extract(value, i), f.at(start, i, element))


def _least(a: Value, b: Value) -> Value:
    return a.function.select(b < a, b, a)


def _most(a: Value, b: Value) -> Value:
    return a.function.select(b > a, b, a)
