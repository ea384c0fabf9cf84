"""GEMM on integers: activations of 12 bits by row, weights in the int8 steps of a layer's codebook.

C = activation((Aq @ Bq) * row scale * layer scale + bias + residual), Aq and Bq int16, sums int32 and exact.
`pmaddwd` multiplies two rows of K at a time at the speed at which bytes would go without VNNI, and leaves
room for exact outliers and for activations whose rounding is lost beside the weights'. Knows addresses and
sizes, nothing of models.
"""

import ctypes
from functools import partial

from pliant.kernels.activate import activate, write_activations
from pliant.kernels.emit import Function, Module
from pliant.kernels.fill_int8 import nearest, write_fill_int8
from pliant.kernels.gemm_args import GemmArgs
from pliant.kernels.isa import Isa
from pliant.kernels.tile import COLUMNS
from pliant.kernels.values import Value, vector
from pliant.kernels.vmath import magnitude

LARGEST_ACTIVATION = 2047
"""Steps of the largest value of a row: K * 2047 * 127 stays below 2**31 up to K = 8192."""

_PAIRS = 4  # of K rows a turn


class QuantizeArgs(ctypes.Structure):
    """Rows of float32 [n_rows, n_columns], stride lda, to int16 of stride ldq and one scale a row."""

    _fields_ = (
        ("a", ctypes.c_void_p),
        ("lda", ctypes.c_int64),
        ("n_columns", ctypes.c_int64),
        ("q", ctypes.c_void_p),
        ("ldq", ctypes.c_int64),
        ("scales", ctypes.c_void_p),
    )


class GemmInt8Args(ctypes.Structure):
    """`gemm` as for float32, but its `a` is int16 and `lda` counts int16; a scale a row, one for the layer.

    The tables of the slices are `decode_table_int8`'s at `weight_scale`.
    """

    _fields_ = (
        ("gemm", GemmArgs),
        ("a_scales", ctypes.c_void_p),
        ("weight_scale", ctypes.c_float),
    )


def units_int8(n_columns: int) -> int:
    """Work units of an int8 GEMM: column groups."""
    return n_columns // COLUMNS


def scratch_bytes_int8(depth: int) -> int:
    """Scratch a thread needs for matrices of up to `depth` rows, 64-byte aligned."""
    return 2 * depth * COLUMNS


def quantize_rows_ir(isa: Isa, name: str = "quantize_rows") -> str:
    """The kernel that rounds activations; a unit is a row. A row with NaN or infinity gets a NaN scale."""
    module = Module(isa)
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        a, lda, n_columns, q, ldq, scales = f.fields(
            args, QuantizeArgs, "a", "lda", "n_columns", "q", "ldq", "scales"
        )
        with f.each(lo, hi) as row:
            source, to = f.at(a, row * lda), f.at(q, row * ldq, "i16")
            zero = f.const(0.0, f.vec)
            with f.loop(0, n_columns, f.lanes, carry=[zero, zero]) as turn:
                x = f.load(f.at(source, turn.index), f.vec)
                size = magnitude(f, x)
                largest, taint = turn.carried
                turn.carry([f.select(size > largest, size, largest), f.fma(x, zero, taint)])
            top = f.fold(turn.carried[0], lambda x, y: f.select(x > y, x, y))
            taint = f.fold(turn.carried[1], lambda x, y: x + y)
            f.store(top * (1.0 / LARGEST_ACTIVATION) + taint, f.at(scales, row))
            steps = f.select(
                top > 0.0, f.const(float(LARGEST_ACTIVATION), "float") / top, f.const(0.0, "float")
            )
            with f.each(0, n_columns, f.lanes) as column:
                scaled = f.load(f.at(source, column), f.vec) * f.splat(steps)
                f.store(f.cast("trunc", nearest(f, scaled), vector(f.lanes, "i16")), f.at(to, column, "i16"))
    return module.text()


def gemm_int8_ir(isa: Isa, name: str = "gemm_int8") -> str:
    """The int8 GEMM kernel of `isa`, for every shape, mix of bits, and epilogue."""
    module = Module(isa)
    for rows in range(1, _tile_rows(isa) + 1):
        _write_tile(module, rows)
    write_fill_int8(module)
    write_activations(module)
    with module.kernel(name) as f:
        _write_groups(f)
    return module.text()


def _tile_rows(isa: Isa) -> int:
    """Rows whose sums over 16 columns fill the registers."""
    return {"avx512": 12, "avx2": 6, "x86-64": 3}[isa.name]


def _write_groups(f: Function) -> None:
    args, lo, hi, scratch = f.params
    a, lda, c, ldc, n_rows = f.fields(args, GemmArgs, "a", "lda", "c", "ldc", "n_rows")
    segment_rows, n_segments = f.fields(args, GemmArgs, "segment_rows", "n_segments")
    bias, residual, ldr, activation = f.fields(args, GemmArgs, "bias", "residual", "ldr", "activation")
    a_scales, weight_scale = f.fields(args, GemmInt8Args, "a_scales", "weight_scale")
    zeros = f.table([0.0] * COLUMNS, "float")
    none, has_residual = f.const(0), residual.compare("ne", 0)
    steps = f.const(1.0, "float") / weight_scale
    depth = segment_rows * n_segments
    full = _tile_rows(f.isa)
    with f.each(lo, hi) as group:
        column = group * COLUMNS
        f.call("block16", "void", args, group, scratch, steps)
        bias_here = f.select(bias.compare("eq", 0), zeros, f.at(bias, column))
        added = f.select(has_residual, f.at(residual, column), zeros)
        added_stride = f.select(has_residual, ldr, none)
        c_here = f.at(c, column)

        def tile(rows: int, row: Value) -> None:
            pointers = (
                f.at(a, row * lda, "i16"),
                scratch,
                f.at(c_here, row * ldc),
                bias_here,
                f.at(added, row * added_stride),
                f.at(a_scales, row),
            )
            f.call(f"tile16_{rows}", "void", *pointers, lda, ldc, added_stride, depth, weight_scale)

            activate(f, pointers[2], ldc, f.const(rows), f.const(COLUMNS), activation)

        n_full = n_rows - n_rows % full
        with f.each(0, n_full, full) as row:
            tile(full, row)
        f.match(n_rows - n_full, {n: partial(tile, n, n_full) for n in range(1, full)})


def _write_tile(module: Module, rows: int) -> None:
    """`rows` rows of C, 16 columns, all of K."""
    params = [(n, "ptr") for n in ("a", "b", "c", "bias", "added", "scales")]
    params += [(n, "i64") for n in ("lda", "ldc", "added_stride", "depth")]
    params += [("weight_scale", "float")]
    with module.function(f"tile16_{rows}", params, attributes="noinline", is_exported=False) as f:
        a, b, c, bias, added, scales, lda, ldc, added_stride, depth, weight_scale = f.params
        vectors = COLUMNS // f.lanes
        a_rows = [f.at(a, lda * i, "i16") for i in range(rows)]
        integers = vector(f.lanes, "i32")
        zero = f.const(0, integers)
        with f.loop(0, depth, 2 * _PAIRS, carry=[zero] * (rows * vectors)) as turn:
            sums = list(turn.carried)
            for pair in range(_PAIRS):
                k = turn.index + 2 * pair
                columns = [
                    f.load(f.at(b, k * COLUMNS + 2 * v * f.lanes, "i16"), integers, 4 * f.lanes)
                    for v in range(vectors)
                ]
                for i, p in enumerate(a_rows):
                    x = f.splat(f.load(f.at(p, k, "i16"), "i32", 2))
                    for v, y in enumerate(columns):
                        n = i * vectors + v
                        # Opaque, or LLVM adds products of several turns first, and spills them.
                        sums[n] = f.opaque(_multiply_add(f, sums[n], x, y))
            turn.carry(sums)
        for i in range(rows):
            scale = f.splat(f.load(f.at(scales, i)) * weight_scale)
            for v in range(vectors):
                at = v * f.lanes
                start = f.load(f.at(bias, at), f.vec) + f.load(f.at(added, added_stride * i + at), f.vec)
                value = f.cast("sitofp", turn.carried[i * vectors + v], f.vec)
                f.store(f.fma(value, scale, start), f.at(c, ldc * i + at))
        f.ret()


def _multiply_add(f: Function, total: Value, x: Value, y: Value) -> Value:
    """total + the products of the int16 halves of x and y, two to a lane."""
    if f.isa.has_vnni and not f.isa.is_portable:
        name = {16: "512", 8: "256", 4: "128"}[f.lanes]
        return f.intrinsic(f"llvm.x86.avx512.vpdpwssd.{name}", total.type, total, x, y, suffix="")
    halves = vector(2 * f.lanes, "i16")
    x, y = (f.cast("bitcast", z, halves) for z in (x, y))
    if not f.isa.is_portable:
        name = {16: "avx512.pmaddw.d.512", 8: "avx2.pmadd.wd", 4: "sse2.pmadd.wd"}[f.lanes]
        return total + f.intrinsic(f"llvm.x86.{name}", total.type, x, y, suffix="")
    products = [f.cast("sext", z, vector(2 * f.lanes, "i32")) for z in (x, y)]
    product = products[0] * products[1]
    even, odd = (f.shuffle(product, None, range(first, 2 * f.lanes, 2)) for first in (0, 1))
    return total + (even + odd)
