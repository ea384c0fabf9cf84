"""GEMM on integers: activations rounded by row, weights in the int8 steps of a layer's codebook.

C = activation((Aq @ Bq) * row scale * step + outliers' remainders + bias + residual); the integer sums are
exact.
"""

import ctypes

from pliant.kernels.coded.activate import activate, write_activations
from pliant.kernels.coded.fill_int8 import nearest, write_fill_int8
from pliant.kernels.coded.gemm_args import GemmArgs
from pliant.kernels.coded.int8_form import int8_form
from pliant.kernels.coded.tile import COLUMNS
from pliant.kernels.coded.tile_int8 import TileInt8Args, call_rows_int8, write_tiles_int8
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value, vector
from pliant.kernels.emit.vmath import magnitude
from pliant.kernels.product.matmul_pack import write_copy_columns

_TOGETHER = 32  # values of a row
_BLOCK_ROWS = 512
"""Rows at a time whose remainders are summed in scratch, and whose last columns are made there."""


class QuantizeArgs(ctypes.Structure):
    """Rows of float32 [n_rows, n_columns], stride lda, to integers and one scale a row.

    `ldq` counts int16: a row of q begins every 2 * ldq bytes, of whatever width its integers are. Zeros
    follow up to column n_padded.
    """

    _fields_ = (
        ("a", ctypes.c_void_p),
        ("lda", ctypes.c_int64),
        ("n_columns", ctypes.c_int64),
        ("q", ctypes.c_void_p),
        ("ldq", ctypes.c_int64),
        ("scales", ctypes.c_void_p),
        ("n_padded", ctypes.c_int64),
    )


class GemmInt8Args(ctypes.Structure):
    """`gemm` as for float32, but its `a` is what `quantize_rows` wrote and `lda` its `ldq`.

    `weight_step` float32 is the layer's `int8_scale`, at which the slices' tables were made.
    """

    _fields_ = (
        ("gemm", GemmArgs),
        ("a_scales", ctypes.c_void_p),
        ("weight_step", ctypes.c_void_p),
    )


def units_int8(n_columns: int) -> int:
    """Work units of an int8 GEMM: column groups; the last may have fewer columns."""
    return -(-n_columns // COLUMNS)


def scratch_bytes_int8(depth: int) -> int:
    """Scratch a thread needs for matrices of up to `depth` rows, 64-byte aligned."""
    return 2 * depth * COLUMNS + 4 * COLUMNS * (2 + 2 * _BLOCK_ROWS)


def quantize_rows_ir(isa: Isa, name: str = "quantize_rows") -> str:
    """The kernel that rounds activations; a unit is a row. A row with NaN or infinity gets a NaN scale."""
    module = Module(isa)
    form = int8_form(isa)
    element = "i8" if form.is_bytes else "i16"
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        names = ("a", "lda", "n_columns", "q", "ldq", "scales", "n_padded")
        a, lda, n_columns, q, ldq, scales, n_padded = f.fields(args, QuantizeArgs, *names)
        whole_columns = n_columns & -_TOGETHER
        with f.each(lo, hi) as row:
            source, to = f.at(a, row * lda), f.at(q, row * ldq, "i16")
            zero = f.const(0.0, f.vec)
            chains = _TOGETHER // f.lanes
            with f.loop(0, whole_columns, _TOGETHER, carry=[zero] * (2 * chains)) as turn:
                largest, taint = turn.carried[:chains], turn.carried[chains:]
                for i in range(chains):
                    x = f.load(f.at(source, turn.index + i * f.lanes), f.vec)
                    size = magnitude(f, x)
                    largest[i] = f.select(size > largest[i], size, largest[i])
                    taint[i] = f.fma(x, zero, taint[i])
                turn.carry(largest + taint)
            largest, taint = turn.carried[:chains], turn.carried[chains:]
            for i in range(1, chains):
                largest[0] = f.select(largest[i] > largest[0], largest[i], largest[0])
                taint[0] = taint[0] + taint[i]
            top = f.fold(largest[0], lambda x, y: f.select(x > y, x, y))
            tainted = f.fold(taint[0], lambda x, y: x + y)
            with f.loop(whole_columns, n_columns, carry=[top, tainted]) as turn:
                x = f.load(f.at(source, turn.index))
                size = magnitude(f, x)
                top = f.select(size > turn.carried[0], size, turn.carried[0])
                turn.carry([top, f.fma(x, f.const(0.0, "float"), turn.carried[1])])
            top, tainted = turn.carried
            f.store(top * (1.0 / form.activation) + tainted, f.at(scales, row))
            most = f.const(float(form.activation), "float")
            by = f.select(top > 0.0, most / top, f.const(0.0, "float"))
            steps = f.splat(by)
            with f.each(0, whole_columns, f.lanes) as column:
                whole = nearest(f, f.load(f.at(source, column), f.vec) * steps) + form.zero
                f.store(f.cast("trunc", whole, vector(f.lanes, element)), f.at(to, column, element))
            with f.each(whole_columns, n_columns) as column:
                one = nearest(f, f.load(f.at(source, column)) * by) + form.zero
                f.store(f.cast("trunc", one, element), f.at(to, column, element))
            with f.each(n_columns, n_padded) as column:
                f.store(f.const(form.zero, element), f.at(to, column, element))
    return module.text()


def gemm_int8_ir(isa: Isa, name: str = "gemm_int8") -> str:
    """The int8 GEMM kernel of `isa`, for every shape, mix of bits, and epilogue."""
    module = Module(isa)
    write_tiles_int8(module)
    write_fill_int8(module)
    write_copy_columns(module)
    write_activations(module)
    with module.kernel(name) as f:
        _write_groups(f)
    return module.text()


def _write_groups(f: Function) -> None:
    args, lo, hi, scratch = f.params
    names = ("segment_rows", "n_segments", "n_rows", "n_columns", "bias")
    segment_rows, n_segments, n_rows, n_columns, bias = f.fields(args, GemmArgs, *names)
    (weight_step,) = f.fields(args, GemmInt8Args, "weight_step")
    form = int8_form(f.isa)
    step = f.load(weight_step) * (127 / form.centroid)
    steps = f.const(1.0, "float") / step
    depth = segment_rows * n_segments
    sums = f.at(scratch, depth * COLUMNS // 2, "i32")
    zeros = f.table([0.0] * COLUMNS, "float")
    with f.each(lo, hi) as group:
        beyond = f.call("block8", "i64", args, group, scratch, steps)
        assert beyond is not None
        if form.is_bytes:
            f.call("column_sums", "void", scratch, depth, sums)
        column = group * COLUMNS
        width = f.least(n_columns - column, COLUMNS)
        bias_here = f.select(bias.compare("eq", 0), zeros, f.at(bias, column))
        last_bias = f.at(sums, COLUMNS)
        one = f.const(1)
        with f.when(width < COLUMNS):
            f.call("copy_columns", "void", bias_here, one, one, width, last_bias, f.const(COLUMNS))
        bias_here = f.select(width < COLUMNS, last_bias, bias_here)
        with f.each(0, n_rows, _BLOCK_ROWS) as first:
            rows = f.least(n_rows - first, _BLOCK_ROWS)
            _write_rows(f, group, width, (first, rows), (beyond > 0, steps, step), (sums, bias_here, depth))


def _write_rows(
    f: Function,
    group: Value,
    width: Value,
    block: tuple[Value, Value],
    weights: tuple[Value, Value, Value],
    common: tuple[Value, Value, Value],
) -> None:
    """`width` columns of a block (first row, rows) of C.

    `weights` are (whether outliers have remainders, steps in 1.0, a step's worth), `common` (the column
    sums, the bias, K).
    """
    args, _, _, scratch = f.params
    (first, n_rows), (has_remainders, steps, step), (sums, bias, depth) = block, weights, common
    a, lda, c, ldc = f.fields(args, GemmArgs, "a", "lda", "c", "ldc")
    residual, ldr, activation = f.fields(args, GemmArgs, "residual", "ldr", "activation")
    (a_scales,) = f.fields(args, GemmInt8Args, "a_scales")
    is_tail, has_residual = width < COLUMNS, residual.compare("ne", 0)
    column, wide = group * COLUMNS, f.const(COLUMNS)
    a, a_scales = f.at(a, first * lda, "i16"), f.at(a_scales, first)
    c = f.at(c, first * ldc + column)
    added = f.select(has_residual, f.at(residual, first * ldr + column), f.table([0.0] * COLUMNS, "float"))
    added_stride = f.select(has_residual, ldr, f.const(0))
    own_added = f.at(sums, 2 * COLUMNS, "float")
    own_c = f.at(own_added, _BLOCK_ROWS * COLUMNS)
    is_copied = has_remainders | is_tail
    with f.when(is_tail):
        f.call("copy_columns", "void", added, added_stride, n_rows, width, own_added, wide)
    is_whole = has_remainders & is_tail.compare("eq", 0)
    with f.when(is_whole), f.each(0, n_rows) as row, f.each(0, COLUMNS, f.lanes) as v:
        f.store(f.load(f.at(added, row * added_stride + v), f.vec), f.at(own_added, row * COLUMNS + v))
    if int8_form(f.isa).is_bytes:
        with f.when(has_remainders):
            f.call("remainders", "void", args, a, a_scales, n_rows, group, steps, own_added)
    added = f.select(is_copied, own_added, added)
    added_stride = f.select(is_copied, wide, added_stride)
    c_here, ldc_here = f.select(is_tail, own_c, c), f.select(is_tail, wide, ldc)

    def at(row: Value) -> TileInt8Args:
        return TileInt8Args(
            a=f.at(a, row * lda, "i16"),
            lda=lda,
            b=scratch,
            sums=sums,
            c=f.at(c_here, row * ldc_here),
            ldc=ldc_here,
            bias=bias,
            added=f.at(added, row * added_stride),
            added_stride=added_stride,
            scales=f.at(a_scales, row),
            depth=depth,
            step=step,
        )

    def after(tile: TileInt8Args, rows: int) -> None:
        activate(f, tile.c, ldc_here, f.const(rows), wide, activation)

    call_rows_int8(f, n_rows, at, after)
    with f.when(is_tail):
        f.call("copy_columns", "void", own_c, wide, n_rows, width, c, ldc)
