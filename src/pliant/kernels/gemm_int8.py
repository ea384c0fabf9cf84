"""GEMM on integers: activations rounded by row, weights in the int8 steps of a layer's codebook.

C = activation((Aq @ Bq) * row scale * step + outliers' remainders + bias + residual); the integer sums are
exact. Knows addresses and sizes, nothing of models.
"""

import ctypes

from pliant.kernels.activate import activate, write_activations
from pliant.kernels.emit import Function, Module
from pliant.kernels.fill_int8 import nearest, write_fill_int8
from pliant.kernels.gemm_args import GemmArgs
from pliant.kernels.int8_form import int8_form
from pliant.kernels.isa import Isa
from pliant.kernels.tile import COLUMNS
from pliant.kernels.tile_int8 import call_rows_int8, write_tiles_int8
from pliant.kernels.values import Value, vector
from pliant.kernels.vmath import magnitude

_TOGETHER = 32  # values of a row, whose length is a multiple of it
_REMAINDER_ROWS = 512
"""Rows whose remainders are summed in scratch; more rows have them summed in C, whose rows lie far apart."""


class QuantizeArgs(ctypes.Structure):
    """Rows of float32 [n_rows, n_columns], stride lda, to integers and one scale a row.

    `ldq` counts int16: a row of q begins every 2 * ldq bytes, of whatever width its integers are.
    """

    _fields_ = (
        ("a", ctypes.c_void_p),
        ("lda", ctypes.c_int64),
        ("n_columns", ctypes.c_int64),
        ("q", ctypes.c_void_p),
        ("ldq", ctypes.c_int64),
        ("scales", ctypes.c_void_p),
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
    """Work units of an int8 GEMM: column groups."""
    return n_columns // COLUMNS


def scratch_bytes_int8(depth: int) -> int:
    """Scratch a thread needs for matrices of up to `depth` rows, 64-byte aligned."""
    return 2 * depth * COLUMNS + 4 * COLUMNS * (1 + _REMAINDER_ROWS)


def quantize_rows_ir(isa: Isa, name: str = "quantize_rows") -> str:
    """The kernel that rounds activations; a unit is a row. A row with NaN or infinity gets a NaN scale."""
    module = Module(isa)
    form = int8_form(isa)
    element = "i8" if form.is_bytes else "i16"
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        a, lda, n_columns, q, ldq, scales = f.fields(
            args, QuantizeArgs, "a", "lda", "n_columns", "q", "ldq", "scales"
        )
        with f.each(lo, hi) as row:
            source, to = f.at(a, row * lda), f.at(q, row * ldq, "i16")
            zero = f.const(0.0, f.vec)
            chains = _TOGETHER // f.lanes
            with f.loop(0, n_columns, _TOGETHER, carry=[zero] * (2 * chains)) as turn:
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
            f.store(top * (1.0 / form.activation) + f.fold(taint[0], lambda x, y: x + y), f.at(scales, row))
            most = f.const(float(form.activation), "float")
            steps = f.splat(f.select(top > 0.0, most / top, f.const(0.0, "float")))
            with f.each(0, n_columns, f.lanes) as column:
                whole = nearest(f, f.load(f.at(source, column), f.vec) * steps) + form.zero
                f.store(f.cast("trunc", whole, vector(f.lanes, element)), f.at(to, column, element))
    return module.text()


def gemm_int8_ir(isa: Isa, name: str = "gemm_int8") -> str:
    """The int8 GEMM kernel of `isa`, for every shape, mix of bits, and epilogue."""
    module = Module(isa)
    write_tiles_int8(module)
    write_fill_int8(module)
    write_activations(module)
    with module.kernel(name) as f:
        _write_groups(f)
    return module.text()


def _write_groups(f: Function) -> None:
    args, lo, hi, scratch = f.params
    c, ldc, n_rows = f.fields(args, GemmArgs, "c", "ldc", "n_rows")
    residual, ldr = f.fields(args, GemmArgs, "residual", "ldr")
    has_residual = residual.compare("ne", 0)
    zeros = f.table([0.0] * COLUMNS, "float")
    segment_rows, n_segments, activation = f.fields(
        args, GemmArgs, "segment_rows", "n_segments", "activation"
    )
    a_scales, weight_step = f.fields(args, GemmInt8Args, "a_scales", "weight_step")
    form = int8_form(f.isa)
    step = f.load(weight_step) * (127 / form.centroid)
    steps = f.const(1.0, "float") / step
    depth = segment_rows * n_segments
    sums = f.at(scratch, depth * COLUMNS // 2, "i32")
    with f.each(lo, hi) as group:
        beyond = f.call("block8", "i64", args, group, scratch, steps)
        assert beyond is not None
        if form.is_bytes:
            f.call("column_sums", "void", scratch, depth, sums)
        column = group * COLUMNS
        c_here = f.at(c, column)
        added = f.select(has_residual, f.at(residual, column), zeros)
        added_stride = f.select(has_residual, ldr, f.const(0))
        if form.is_bytes:
            has_remainders = beyond > 0
            is_few = n_rows <= _REMAINDER_ROWS
            to = f.select(is_few, f.at(sums, COLUMNS, "i32"), c_here)
            stride = f.select(is_few, f.const(COLUMNS), ldc)
            with f.when(has_remainders):
                with f.each(0, n_rows) as row, f.each(0, COLUMNS, f.lanes) as at:
                    f.store(f.load(f.at(added, row * added_stride + at), f.vec), f.at(to, row * stride + at))
                f.call("remainders", "void", args, a_scales, group, steps, to, stride)
            added = f.select(has_remainders, to, added)
            added_stride = f.select(has_remainders, stride, added_stride)

        def after(row: Value, rows: int) -> None:
            place = f.at(c_here, row * ldc)
            activate(f, place, ldc, f.const(rows), f.const(COLUMNS), activation)

        common = (scratch, sums, depth, step)
        call_rows_int8(f, args, a_scales, group, n_rows, common, (added, added_stride), after)
