"""Kernels over rows of activations: layer norm, softmax, mean, maximum.

A unit is one row, except for the last two, where it is MEAN_COLUMNS columns. The output may be the input.
Each `..._ir` defines one kernel, named as its `_NAME`.
"""

import ctypes
from collections.abc import Sequence
from math import inf

from pliant.kernels.emit import vmath
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.spans import ColumnSpan, reduce_columns, visit_columns, write_zeros
from pliant.kernels.emit.values import Value

LAYER_NORM, SOFTMAX, MEAN, MOST = "layer_norm", "softmax", "mean", "greatest"
MEAN_COLUMNS = 64


class LayerNormArgs(ctypes.Structure):
    """out[r] = (x[r] - mean) / sqrt(variance + eps) * weight + bias over n columns, zeros up to n_padded.

    x and out are float32 with row strides in floats; weight and bias float32[n].
    """

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("ld_x", ctypes.c_int64),
        ("out", ctypes.c_void_p),
        ("ld_out", ctypes.c_int64),
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("n_padded", ctypes.c_int64),
        ("eps", ctypes.c_float),
    )


class RowArgs(ctypes.Structure):
    """out[r, :n] = f(x[r, :n]): float32 rows with strides in floats."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("ld_x", ctypes.c_int64),
        ("out", ctypes.c_void_p),
        ("ld_out", ctypes.c_int64),
        ("n", ctypes.c_int64),
    )


class MeanArgs(ctypes.Structure):
    """out[:n] = mean, or maximum, over n_rows >= 1 rows of x[:, :n], float32 with a row stride in floats."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("ld_x", ctypes.c_int64),
        ("n_rows", ctypes.c_int64),
        ("out", ctypes.c_void_p),
        ("n", ctypes.c_int64),
    )


def layer_norm_ir(isa: Isa) -> str:
    """`layer_norm` with LayerNormArgs: the variance is computed from centred values, so that a large mean
    does not reduce accuracy.
    """
    module = Module(isa)
    with module.kernel(LAYER_NORM) as f:
        args, lo, hi, _ = f.params
        weight, bias, n, n_padded, eps = f.fields(
            args, LayerNormArgs, "weight", "bias", "n", "n_padded", "eps"
        )
        length = f.cast("sitofp", n, "float")
        with f.each(lo, hi) as i:
            x, out = _rows(f, args, LayerNormArgs, i)
            centre, correction, variance = _moments(f, n, length, x)
            deviation = f.intrinsic("llvm.sqrt", "float", variance + eps)
            scale = f.const(1.0, "float") / deviation
            moments = [f.splat(m) for m in (centre, scale, -(correction * scale))]
            _normalise(f, n, x, out, moments, (weight, bias))
            write_zeros(f, out, n, n_padded)
    return module.text()


def softmax_ir(isa: Isa) -> str:
    """`softmax` with RowArgs: shifted by the row's maximum; a row with NaN or inf becomes NaN."""
    module = Module(isa)
    with module.kernel(SOFTMAX) as f:
        args, lo, hi, _ = f.params
        (n,) = f.fields(args, RowArgs, "n")
        with f.each(lo, hi) as i:
            x, out = _rows(f, args, RowArgs, i)
            _softmax_row(f, n, x, out)
    return module.text()


def mean_ir(isa: Isa) -> str:
    """`mean` with MeanArgs; a unit is MEAN_COLUMNS columns."""
    module = Module(isa)
    with module.kernel(MEAN) as f:
        args, lo, hi, _ = f.params
        x, ld, n_rows, out, n = f.fields(args, MeanArgs, "x", "ld_x", "n_rows", "out", "n")
        share = f.splat(f.const(1.0, "float") / f.cast("sitofp", n_rows, "float"))
        first = lo * MEAN_COLUMNS

        def visit(span: ColumnSpan, _: list[Value]) -> list[Value]:
            with f.loop(0, n_rows, carry=[f.const(0, f.vec)]) as loop:
                loop.carry([loop.carried[0] + span.load(f.at(x, loop.index * ld + first))])
            span.store(loop.carried[0] * share, f.at(out, first))
            return []

        visit_columns(f, f.least(hi * MEAN_COLUMNS, n) - first, visit)
    return module.text()


def maximum_ir(isa: Isa) -> str:
    """`greatest` with MeanArgs; a unit is MEAN_COLUMNS columns. Infinities and NaN as in `vmath.largest`."""
    module = Module(isa)
    with module.kernel(MOST) as f:
        args, lo, hi, _ = f.params
        x, ld, n_rows, out, n = f.fields(args, MeanArgs, "x", "ld_x", "n_rows", "out", "n")
        first = lo * MEAN_COLUMNS

        def visit(span: ColumnSpan, _: list[Value]) -> list[Value]:
            with f.loop(0, n_rows, carry=[f.const(-inf, f.vec)]) as loop:
                row = span.load(f.at(x, loop.index * ld + first))
                loop.carry([vmath.largest(f, loop.carried[0], row)])
            span.store(loop.carried[0], f.at(out, first))
            return []

        visit_columns(f, f.least(hi * MEAN_COLUMNS, n) - first, visit)
    return module.text()


def mean_units(n: int) -> int:
    """Units of the mean, or maximum, over n columns."""
    return -(-n // MEAN_COLUMNS)


def _rows(f: Function, args: Value, layout: type[ctypes.Structure], i: Value) -> tuple[Value, Value]:
    x, ld_x, out, ld_out = f.fields(args, layout, "x", "ld_x", "out", "ld_out")
    return f.at(x, i * ld_x), f.at(out, i * ld_out)


def _moments(f: Function, n: Value, length: Value, x: Value) -> tuple[Value, Value, Value]:
    """A row's rounded mean, its correction, and the variance.

    The second pass uses centred values, so neither loses precision with a large mean.
    """
    (total,) = reduce_columns(f, n, lambda span: [span.load(x)], _add, [0.0])
    mean = total / length
    guess = f.splat(mean)

    def terms(span: ColumnSpan) -> list[Value]:
        difference = span.load(x) - guess
        return [difference, difference * difference]

    differences, squares = reduce_columns(f, n, terms, _add, [0.0, 0.0])
    correction = differences / length
    return mean, correction, squares / length - correction * correction


def _normalise(
    f: Function, n: Value, x: Value, out: Value, moments: Sequence[Value], affine: tuple[Value, Value]
) -> None:
    centre, scale, shift = moments
    weight, bias = affine

    def visit(span: ColumnSpan, _: list[Value]) -> list[Value]:
        normal = f.fma(span.load(x) - centre, scale, shift)
        span.store(f.fma(normal, span.load(weight), span.load(bias)), out)
        return []

    visit_columns(f, n, visit)


def _softmax_row(f: Function, n: Value, x: Value, out: Value) -> None:
    (top,) = reduce_columns(f, n, lambda span: [span.load(x)], lambda a, b: vmath.largest(f, a, b), [-inf])
    shift = f.splat(top)

    def visit(span: ColumnSpan, sums: list[Value]) -> list[Value]:
        y = vmath.exp_nonpositive(f, span.load(x) - shift)
        span.store(y, out)
        return [sums[0] + span.mask(y, 0.0)]

    (sums,) = visit_columns(f, n, visit, [f.const(0, f.vec)])
    share = f.splat(f.const(1.0, "float") / f.fold(sums, _add))

    def scale(span: ColumnSpan, _: list[Value]) -> list[Value]:
        span.store(span.load(out) * share, out)
        return []

    visit_columns(f, n, scale)


def _add(a: Value, b: Value) -> Value:
    return a + b
