"""Kernels over rows of activations: layer norm, softmax, mean, maximum.

A unit is one row, except for the last two, where it is MEAN_COLUMNS columns of a text. The output may be the
input.
Each `..._ir` defines one kernel, named as its `_NAME`.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
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
    """out[:n] = mean, or maximum, over n_rows >= 1 rows of x[:, :n], float32 with a row stride in floats.

    With `starts` and `lengths`, int32, `out` has a row for each text: that of its rows, from starts[i] on.
    """

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("ld_x", ctypes.c_int64),
        ("n_rows", ctypes.c_int64),
        ("out", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("starts", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
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
    """`mean` with MeanArgs; a unit is MEAN_COLUMNS columns of a text."""

    def finish(f: Function, total: Value, n_rows: Value) -> Value:
        return total * f.splat(f.const(1.0, "float") / f.cast("sitofp", n_rows, "float"))

    return _pool_ir(isa, MEAN, lambda f, a, b: a + b, 0.0, finish)


def maximum_ir(isa: Isa) -> str:
    """`greatest` with MeanArgs; a unit is MEAN_COLUMNS columns of a text. Infinities and NaN as in
    `vmath.largest`.
    """
    return _pool_ir(isa, MOST, vmath.largest, -inf, lambda f, found, n_rows: found)


def mean_units(n: int, n_texts: int = 1) -> int:
    """Units of the mean, or maximum, over n columns of each text."""
    return n_texts * -(-n // MEAN_COLUMNS)


def _pool_ir(
    isa: Isa,
    name: str,
    combine: Callable[[Function, Value, Value], Value],
    initial: float,
    finish: Callable[[Function, Value, Value], Value],
) -> str:
    """The kernel `name`: `finish` of all rows of a text, combined from `initial`, and of their number."""
    module = Module(isa)
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        x, ld, n_rows, out, n = f.fields(args, MeanArgs, "x", "ld_x", "n_rows", "out", "n")
        starts, lengths = f.fields(args, MeanArgs, "starts", "lengths")
        units = (n + (MEAN_COLUMNS - 1)) // MEAN_COLUMNS
        with f.each(lo, hi) as unit:
            text, first = unit // units, unit % units * MEAN_COLUMNS
            begin, count = f.choose(
                starts.compare("ne", 0),
                partial(_read_integers, f, (starts, lengths), text),
                lambda: [f.const(0), n_rows],
            )
            source, to = f.at(x, begin * ld + first), f.at(out, text * n + first)

            def visit(span: ColumnSpan, _: list[Value]) -> list[Value]:
                with f.loop(0, count, carry=[f.const(initial, f.vec)]) as loop:
                    loop.carry([combine(f, loop.carried[0], span.load(f.at(source, loop.index * ld)))])
                span.store(finish(f, loop.carried[0], count), to)
                return []

            visit_columns(f, f.least(n - first, MEAN_COLUMNS), visit)
    return module.text()


def _read_integers(f: Function, arrays: Sequence[Value], i: Value) -> list[Value]:
    return [f.cast("sext", f.load(f.at(array, i, "i32"), "i32"), "i64") for array in arrays]


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
