"""GEMM over the slices of a layer: C = activation(A @ B + bias + residual), B full fidelity or bit-planes.

B's planes are decoded one block of a column group at a time into scratch, outliers are inserted, and all rows
of A are multiplied with it: the whole float32 matrix is never stored.
"""

from functools import partial

import numpy as np

from pliant.arrays import Float
from pliant.kernels.coded.activate import activate, write_activations
from pliant.kernels.coded.decode import decode_table
from pliant.kernels.coded.fill import locate_slice, write_fill
from pliant.kernels.coded.gemm_args import ACTIVATIONS, F32, SLICE_DTYPE, GemmArgs, SliceDesc
from pliant.kernels.coded.row import most_rows, write_row
from pliant.kernels.coded.tile import COLUMNS, TileArgs, call_rows, tiling, write_tiles
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value
from pliant.kernels.runtime.aligned_memory import aligned_floats

__all__ = [
    "ACTIVATIONS",
    "SLICE_DTYPE",
    "GemmArgs",
    "SliceDesc",
    "decode_table",
    "gemm_ir",
    "grain",
    "pack",
    "scratch_bytes",
    "units",
]


def units(n_columns: int, isa: Isa) -> int:
    """Work units of a GEMM: panels of column groups."""
    return -(-n_columns // (COLUMNS * tiling(isa).panel))


def grain(n_columns: int, n_rows: int, isa: Isa, n_threads: int) -> int:
    """Units a thread takes at a time: one, but more for a few rows: at the border of two shares, both threads
    read the prefetched weights, and a single row may be laid out again for each share.
    """
    return 1 if n_rows > max(1, most_rows(isa)) else max(1, units(n_columns, isa) // (2 * n_threads))


def scratch_bytes(isa: Isa) -> int:
    """Scratch a thread needs, 64-byte aligned."""
    return 4 * COLUMNS * tiling(isa).panel * block_rows(isa)


def block_rows(isa: Isa) -> int:
    """Rows of B decoded at a time: they fit in L1 (one column group) or L2 (three)."""
    return 768 if isa.name == "avx512" else 384


def pack(weights: Float[np.ndarray, "K N"]) -> Float[np.ndarray, "groups K 16"]:
    """A plain matrix in the full-fidelity layout: column groups of [K][16], aligned to a cache line."""
    K, N = weights.shape
    out = aligned_floats(N // COLUMNS, K, COLUMNS)
    out[:] = weights.reshape(K, N // COLUMNS, COLUMNS).transpose(1, 0, 2)
    return out


def gemm_ir(isa: Isa, name: str = "gemm") -> str:
    """The GEMM kernel of `isa`: one function for every shape, mix of bits, and epilogue."""
    module = Module(isa)
    panel = tiling(isa).panel
    for groups in {1, panel}:
        write_tiles(module, groups)
    write_fill(module)
    if most_rows(isa):
        write_row(module)
    write_activations(module)
    with module.kernel(name) as f:
        if most_rows(isa):
            _write_row_units(f, panel)
        _write_panels(f, panel)
    return module.text()


def _write_row_units(f: Function, panel: int) -> None:
    """The whole kernel for a single row of A, or a few; falls through for more.

    A few rows of plain float32 need no decoding, and wide tiles read less.
    """
    args, lo, hi, scratch = f.params
    n_rows, n_columns = f.fields(args, GemmArgs, "n_rows", "n_columns")
    desc, _, _ = locate_slice(f, args, f.const(0))
    (bits,) = f.fields(desc, SliceDesc, "bits")
    is_few = (n_rows <= most_rows(f.isa)) & bits.compare("ne", F32)
    with f.when(is_few | n_rows.compare("eq", 1)):
        first, last = lo * panel, f.least(hi * panel, n_columns >> 4)
        f.call("row", "void", args, first, last, scratch)
        c, ldc, activation = f.fields(args, GemmArgs, "c", "ldc", "activation")
        columns = (last - first) * COLUMNS
        activate(f, f.at(c, first * COLUMNS), ldc, n_rows, columns, activation)
        f.ret()
        f.place(f.label("dead"))


def _write_panels(f: Function, panel: int) -> None:
    args, lo, hi, scratch = f.params
    (n_columns,) = f.fields(args, GemmArgs, "n_columns")
    n_groups = n_columns >> 4
    if panel == 1:
        with f.each(lo, hi) as unit:
            _write_panel(f, args, unit, 1, scratch)
        return
    with f.each(lo, hi) as unit:
        first = unit * panel
        is_full = first + panel <= n_groups
        with f.when(is_full):
            _write_panel(f, args, first, panel, scratch)
        with f.when(is_full.compare("eq", 0)), f.each(first, n_groups) as group:
            _write_panel(f, args, group, 1, scratch)


def _write_panel(f: Function, args: Value, group: Value, groups: int, scratch: Value) -> None:
    """All rows of C, `groups` column groups from `group` on."""
    a, lda, c, ldc, n_rows = f.fields(args, GemmArgs, "a", "lda", "c", "ldc", "n_rows")
    segment_rows, n_segments = f.fields(args, GemmArgs, "segment_rows", "n_segments")
    bias, residual, ldr, activation = f.fields(args, GemmArgs, "bias", "residual", "ldr", "activation")
    zeros = f.table([0.0] * COLUMNS * groups, "float")
    column = group * COLUMNS
    null = f.const(0, "ptr")
    bias_here = f.select(bias.compare("eq", 0), zeros, f.at(bias, column))
    residual_here = f.select(residual.compare("eq", 0), null, f.at(residual, column))
    c_here = f.at(c, column)
    depth = segment_rows * n_segments
    rows = block_rows(f.isa)
    with f.each(0, depth, rows) as k:
        n = f.least(depth - k, rows)
        blocks = []
        for g in range(groups):
            space = f.at(scratch, g * rows * COLUMNS)
            block = f.call("block", "ptr", args, group + g, k, n, space)
            assert block is not None
            blocks.append(block)
        is_first, is_last = k.compare("eq", 0), (k + n).compare("eq", depth)
        start = f.select(is_first, bias_here, zeros)
        added = f.select(is_first, residual_here, c_here)
        added_stride = f.select(is_first, ldr, ldc)
        top = TileArgs(f.at(a, k), lda, tuple(blocks), c_here, ldc, start, added, added_stride, n)
        active = f.select(is_last, activation, f.const(0))

        def after(tile: TileArgs, tile_rows: int) -> None:
            activate(f, tile.c, ldc, f.const(tile_rows), f.const(groups * COLUMNS), active)

        call_rows(f, n_rows, partial(top.down, f), after)
