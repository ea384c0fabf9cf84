"""Integer products: C = activation(scale * (A @ B) * column scales + bias + residual), or A @ B in int32.

A and B are int16 (bytes less their zero points fit), multiplied in pairs and summed exactly in int32, which
every x86-64 does at twice the rate of float32. Knows addresses, no operators.
"""

import ctypes
from functools import partial

import numpy as np

from pliant.arrays import Int16
from pliant.kernels import vmath
from pliant.kernels.emit import Function, Module
from pliant.kernels.isa import Isa
from pliant.kernels.matmul import write_activate
from pliant.kernels.matmul_args import COLUMNS
from pliant.kernels.matmul_pack import write_copy_columns
from pliant.kernels.values import Value, vector

ROW_BLOCK = 144
_PAIRS = 4
_MADD = {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}


class MatmulInt16Args(ctypes.Structure):
    """A is int16 [n_rows, 2 * pairs], B int16 [column groups][pairs][16][2], C float32 or int32.

    `a_scale` is one float; `b_scales` and `bias` have one for every column of every group. A unit is
    `panel` column groups of ROW_BLOCK rows.
    """

    _fields_ = (
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("c", ctypes.c_void_p),
        ("a_scale", ctypes.c_void_p),
        ("b_scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("n_rows", ctypes.c_int64),
        ("n_columns", ctypes.c_int64),
        ("pairs", ctypes.c_int64),
        ("panel", ctypes.c_int64),
    )


def pack_pairs(matrix: Int16[np.ndarray, "K N"], out: Int16[np.ndarray, "groups pairs 16 2"]) -> None:
    """B's panels; rows and columns that do not exist are 0."""
    depth, n = matrix.shape
    groups, pairs = out.shape[:2]
    whole = np.zeros((2 * pairs, groups * COLUMNS), np.int16)
    whole[:depth, :n] = matrix
    out[:] = whole.reshape(pairs, 2, groups, COLUMNS).transpose(2, 0, 3, 1)


def units(n_rows: int, n_columns: int, panel: int) -> int:
    """Work units of a product."""
    groups = -(-n_columns // COLUMNS)
    return -(-n_rows // ROW_BLOCK) * -(-groups // panel)


def scratch_bytes() -> int:
    """Scratch a thread needs: the last columns of C."""
    return 4 * COLUMNS * ROW_BLOCK


def matmul_int16_name(is_float: bool, activation: str | None = None) -> str:
    """The kernel's name."""
    return "_".join(["matmul_int16", *(["float"] if is_float else []), *([activation] if activation else [])])


def matmul_int16_ir(isa: Isa, is_float: bool, activation: str | None = None) -> str:
    """The kernel with MatmulInt16Args whose C is float32 if `is_float`, else int32."""
    module = Module(isa)
    full = _tile_rows(isa)
    for rows in range(1, full + 1):
        _write_tile(module, rows, is_float)
    write_copy_columns(module)
    if activation:
        write_activate(module, vmath.ACTIVATIONS[activation])
    with module.kernel(matmul_int16_name(is_float, activation)) as f:
        args, lo, hi, _ = f.params
        n_rows, n_columns, panel = f.fields(args, MatmulInt16Args, "n_rows", "n_columns", "panel")
        n_groups = (n_columns + (COLUMNS - 1)) >> 4
        n_panels = (n_groups + panel - 1) // panel
        with f.each(lo, hi) as unit:
            row = unit // n_panels * ROW_BLOCK
            first = unit % n_panels * panel
            last = f.least(first + panel, n_groups)
            with f.each(first, last) as group:
                _write_group(f, group, row, f.least(n_rows - row, ROW_BLOCK), bool(activation))
    return module.text()


def _write_group(f: Function, group: Value, row: Value, rows: Value, has_activation: bool) -> None:
    """One column group of a block of rows; the last columns are made in scratch."""
    args, _, _, scratch = f.params
    names = ("a", "b", "c", "a_scale", "b_scales", "bias", "residual", "n_columns", "pairs")
    a, b, c, a_scale, b_scales, bias, residual, n_columns, pairs = f.fields(args, MatmulInt16Args, *names)
    column = group * COLUMNS
    width = f.least(n_columns - column, COLUMNS)
    is_tail = width < COLUMNS
    null, wide = f.const(0, "ptr"), f.const(COLUMNS)
    c_here = f.at(c, row * n_columns + column)
    residual_here = f.select(residual.compare("eq", 0), null, f.at(residual, row * n_columns + column))
    to = f.select(is_tail, scratch, c_here)
    ldc = f.select(is_tail, wide, n_columns)
    has_residual = residual_here.compare("ne", 0)
    with f.when(is_tail & has_residual):
        f.call("copy_columns", "void", residual_here, n_columns, rows, width, to, wide)
    added = f.select(is_tail & has_residual, to, residual_here)
    block = f.at(b, group * pairs * COLUMNS, "i32")
    scales, biases = f.at(b_scales, column), f.at(bias, column)
    full = _tile_rows(f.isa)

    def tile(n: int, at: Value) -> None:
        here = f.at(to, at * ldc)
        more = f.select(added.compare("eq", 0), null, f.at(added, at * ldc))
        a_here = f.at(a, (row + at) * pairs, "i32")
        f.call(f"tile16_{n}", "void", a_here, block, here, a_scale, scales, biases, more, ldc, pairs)
        if has_activation:
            f.call("activate", "void", here, ldc, f.const(n), wide)

    n_full = rows // full * full
    with f.each(0, n_full, full) as at:
        tile(full, at)
    f.match(rows - n_full, {n: partial(tile, n, n_full) for n in range(1, full)})
    with f.when(is_tail):
        f.call("copy_columns", "void", to, wide, rows, width, c_here, n_columns)


def _tile_rows(isa: Isa) -> int:
    """Rows whose sums fill the registers; few where vectors are emulated."""
    return 3 if isa.is_portable or isa.lanes == 4 else {8: 6, 16: 12}[isa.lanes]


def _write_tile(module: Module, rows: int, is_float: bool) -> None:
    """`rows` rows of C, 16 columns, all of K."""
    params = [(n, "ptr") for n in ("a", "b", "c", "a_scale", "b_scales", "bias", "added")]
    params += [("ldc", "i64"), ("pairs", "i64")]
    with module.function(f"tile16_{rows}", params, attributes="noinline", is_exported=False) as f:
        a, b, c, a_scale, b_scales, bias, added, ldc, pairs = f.params
        vectors = COLUMNS // f.lanes
        a_rows = [f.at(a, pairs * i, "i32") for i in range(rows)]
        integers = vector(f.lanes, "i32")

        def step(pair: Value, sums: list[Value]) -> list[Value]:
            columns = [
                f.load(f.at(b, pair * COLUMNS + v * f.lanes, "i32"), integers, 4 * f.lanes)
                for v in range(vectors)
            ]
            for i, p in enumerate(a_rows):
                x = f.splat(f.load(f.at(p, pair, "i32"), "i32", 2))
                for v, y in enumerate(columns):
                    n = i * vectors + v
                    # Opaque, or LLVM adds products of several turns first, and spills them.
                    sums[n] = f.opaque(sums[n] + _multiply(f, x, y))
            return sums

        whole = pairs & -_PAIRS
        with f.loop(0, whole, _PAIRS, carry=[f.const(0, integers)] * (rows * vectors)) as turn:
            sums = list(turn.carried)
            for i in range(_PAIRS):
                sums = step(turn.index + i, sums)
            turn.carry(sums)
        with f.loop(whole, pairs, carry=turn.carried) as rest:
            rest.carry(step(rest.index, list(rest.carried)))
        if is_float:
            _store_floats(f, rest.carried, (c, ldc), a_scale, b_scales, bias, added)
        else:
            for n, total in enumerate(rest.carried):
                row, v = divmod(n, vectors)
                f.store(total, f.at(c, ldc * row + v * f.lanes, "i32"))
        f.ret()


def _store_floats(
    f: Function,
    sums: list[Value],
    c: tuple[Value, Value],
    a_scale: Value,
    b_scales: Value,
    bias: Value,
    added: Value,
) -> None:
    vectors = COLUMNS // f.lanes
    scale = f.splat(f.load(a_scale))
    by = [f.load(f.at(b_scales, v * f.lanes), f.vec) * scale for v in range(vectors)]
    plus = [f.load(f.at(bias, v * f.lanes), f.vec) for v in range(vectors)]
    results = [
        f.fma(f.cast("sitofp", total, f.vec), by[n % vectors], plus[n % vectors])
        for n, total in enumerate(sums)
    ]
    places = [c[1] * (n // vectors) + n % vectors * f.lanes for n in range(len(sums))]

    def with_added() -> list[Value]:
        return [x + f.load(f.at(added, at), f.vec) for x, at in zip(results, places, strict=True)]

    results = f.choose(added.compare("ne", 0), with_added, lambda: results)
    for x, at in zip(results, places, strict=True):
        f.store(x, f.at(c[0], at))


def _multiply(f: Function, x: Value, y: Value) -> Value:
    """Products of int16 pairs, added by pairs."""
    halves = vector(2 * f.lanes, "i16")
    x, y = f.cast("bitcast", x, halves), f.cast("bitcast", y, halves)
    result = vector(f.lanes, "i32")
    if not f.isa.is_portable:
        return f.intrinsic(_MADD[f.lanes], result, x, y, suffix="")
    wide = vector(2 * f.lanes, "i32")
    product = f.cast("sext", x, wide) * f.cast("sext", y, wide)
    return f.shuffle(product, None, range(0, 2 * f.lanes, 2)) + f.shuffle(
        product, None, range(1, 2 * f.lanes, 2)
    )
