"""GEMM on bfloat16: C = activation(A @ B + bias + residual), products of pairs along K summed in float32.

A is bfloat16 (`round_bf16`). B is planes decoded to bfloat16 one block at a time, full fidelity rounded to
bfloat16, or resident pairs that are read in place.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from pliant.arrays import Float, UInt16
from pliant.kernels.coded.activate import activate, write_activations
from pliant.kernels.coded.block_bf16 import write_fill_bf16
from pliant.kernels.coded.gemm_args import GemmArgs
from pliant.kernels.coded.tile import COLUMNS, TileArgs, call_rows, tiling, write_tiles
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value
from pliant.kernels.product.bf16_pairs import add_block_bf16, add_pairs_bf16, require_bf16
from pliant.kernels.product.matmul_pack import write_copy_columns
from pliant.kernels.tiles.coded_bf16 import TILED_BYTES, write_tiled_bf16, write_units_in_tiles
from pliant.kernels.tiles.tile_rows import PANELS, config_space

GROUP_ROWS = 32
"""Rows per group of B: K is a multiple of it."""

_BLOCK_ROWS = 1536
"""Rows of B decoded at a time; three column groups of them fit in L2."""
_PACKED_COLUMNS = 512
_TAIL_ROWS = 240
"""Rows at a time whose last columns are computed in scratch: a multiple of every tile height."""


def units_bf16(n_columns: int, isa: Isa) -> int:
    """Work units of a GEMM: panels of column groups; the last may have fewer columns."""
    return -(-n_columns // (COLUMNS * _unit_groups(isa)))


def scratch_bytes_bf16(depth: int, isa: Isa) -> int:
    """Scratch a thread needs for matrices of up to `depth` rows, 64-byte aligned."""
    in_vectors = _block_bytes(tiling(isa).panel, min(depth, _BLOCK_ROWS)) + 4 * COLUMNS * (1 + _TAIL_ROWS)
    return max(in_vectors, TILED_BYTES if isa.has_tiles else 0)


def _unit_groups(isa: Isa) -> int:
    """Column groups of a unit: a panel of vectors, or the widest of tiles."""
    return PANELS[-1] if isa.has_tiles else tiling(isa).panel


def _block_bytes(groups: int, depth: int) -> int:
    return 2 * COLUMNS * groups * depth


def padded_depth(depth: int) -> int:
    """K padded to whole groups of rows."""
    return -(-depth // GROUP_ROWS) * GROUP_ROWS


def pairs_shape(depth: int, n_columns: int) -> tuple[int, int, int, int]:
    """The shape of `pack_pairs`'s result for a matrix."""
    return -(-n_columns // COLUMNS), padded_depth(depth) // 2, COLUMNS, 2


def pack_pairs(
    matrix: Float[np.ndarray, "K N"],
    out: UInt16[np.ndarray, "groups half_K 16 2"],
    lower: UInt16[np.ndarray, "groups half_K 16 2"] | None = None,
) -> None:
    """Round a matrix to resident pairs of bfloat16, padded with zeros; `out` has the shape `pairs_shape`.

    `lower` gets the remainders of the matrix in the same format.
    """
    n = matrix.shape[1]
    for first in range(0, n, _PACKED_COLUMNS):  # some at a time, to limit temporary memory
        part = np.ascontiguousarray(matrix[:, first : first + _PACKED_COLUMNS], np.float32)
        groups = slice(first // COLUMNS, (first + _PACKED_COLUMNS) // COLUMNS)
        rounded = _rounded(part)
        _place_pairs(rounded, out[groups])
        if lower is not None:
            upper = (rounded.astype(np.uint32) << 16).view(np.float32)
            rest = np.subtract(part, upper, out=np.zeros_like(part), where=np.isfinite(upper))
            _place_pairs(_rounded(rest), lower[groups])


def _rounded(part: Float[np.ndarray, "K N"]) -> UInt16[np.ndarray, "K N"]:
    words = part.view(np.uint32)
    rounded = ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16)
    rounded[np.isnan(part)] = 0x7FC0
    return rounded


def _place_pairs(
    rounded: UInt16[np.ndarray, "K N"], groups: UInt16[np.ndarray, "groups half_K 16 2"]
) -> None:
    rows = np.zeros((2 * groups.shape[1], COLUMNS * len(groups)), np.uint16)
    rows[: len(rounded), : rounded.shape[1]] = rounded
    groups[:] = rows.reshape(-1, 2, len(groups), COLUMNS).transpose(2, 0, 3, 1)


def gemm_bf16_ir(isa: Isa, name: str = "gemm_bf16") -> str:
    """The bfloat16 GEMM kernel of `isa`, with GemmArgs, for every shape, mix of forms, and epilogue.

    `a` is bfloat16 and `lda` is in pairs; for CPUs with tiles it is not read, and A is what `round_bf16`
    stores in tiles. C may end within a column group. Raises InputError for an ISA row without bfloat16
    products.
    """
    require_bf16(isa)
    module = Module(isa)
    panel = tiling(isa).panel
    for groups in {1, panel}:
        write_tiles(module, groups, add_pairs_bf16, add_block_bf16 if isa.has_matmul else None)
    write_fill_bf16(module)
    write_activations(module)
    write_copy_columns(module)
    if isa.has_tiles:
        write_tiled_bf16(module)
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        if isa.has_tiles:
            lo = write_units_in_tiles(f, config_space(f))
        (n_columns,) = f.fields(args, GemmArgs, "n_columns")
        n_groups = (n_columns + (COLUMNS - 1)) // COLUMNS
        with f.each(lo, hi) as unit:
            first = unit * _unit_groups(isa)
            is_full = (first + panel) * COLUMNS <= n_columns
            with f.when(is_full):
                _write_panel(f, first, panel, f.const(panel * COLUMNS))
            rest = f.select(is_full, first + panel, first)
            with f.each(rest, f.least(first + _unit_groups(isa), n_groups)) as group:
                _write_panel(f, group, 1, f.least(n_columns - group * COLUMNS, COLUMNS))
    return module.text()


def _write_panel(f: Function, group: Value, groups: int, width: Value) -> None:
    """All rows of C, `width` columns in `groups` column groups from `group` on."""
    args, _, _, scratch = f.params
    segment_rows, n_segments = f.fields(args, GemmArgs, "segment_rows", "n_segments")
    depth = segment_rows * n_segments
    rows = f.least(depth, _BLOCK_ROWS)
    own_bias = f.at(scratch, rows * (groups * COLUMNS // 2))
    with f.each(0, depth, rows) as k:
        n = f.least(depth - k, rows)
        blocks = []
        for g in range(groups):
            space = f.at(scratch, rows * (g * COLUMNS // 2))
            block = f.call("block", "ptr", args, group + g, k, n, space)
            assert block is not None
            blocks.append(block)
        _write_block(f, group, blocks, width, (k, n, depth), own_bias)


def _write_block(
    f: Function,
    group: Value,
    blocks: list[Value],
    width: Value,
    place: tuple[Value, Value, Value],
    own_bias: Value,
) -> None:
    """Add the products with rows k .. k + n - 1 of B; `place` is (k, n, all rows)."""
    args, (k, n, depth), groups = f.params[0], place, len(blocks)
    a, lda, c, ldc, n_rows = f.fields(args, GemmArgs, "a", "lda", "c", "ldc", "n_rows")
    if f.isa.has_tiles:
        lda = depth >> 1
    bias, residual, ldr, activation = f.fields(args, GemmArgs, "bias", "residual", "ldr", "activation")
    column, wide, one = group * COLUMNS, f.const(groups * COLUMNS), f.const(1)
    zeros = f.table([0.0] * COLUMNS * groups, "float")
    is_first, is_last, has_bias = k.compare("eq", 0), (k + n).compare("eq", depth), bias.compare("ne", 0)
    start = f.select(is_first & has_bias, f.at(bias, column), zeros)
    c_here, null = f.at(c, column), f.const(0, "ptr")
    residual_here = f.select(residual.compare("eq", 0), null, f.at(residual, column))
    added, ld_added = f.select(is_first, residual_here, c_here), f.select(is_first, ldr, ldc)
    top = TileArgs(f.at(a, k >> 1), lda, tuple(blocks), c_here, ldc, start, added, ld_added, n >> 1)
    active = f.select(is_last, activation, f.const(0))

    def after(tile: TileArgs, tile_rows: int) -> None:
        activate(f, tile.c, tile.ldc, f.const(tile_rows), wide, active)

    if groups > 1:
        call_rows(f, n_rows, partial(top.down, f), after)
        return
    is_tail = width < COLUMNS
    with f.when(is_tail.compare("eq", 0)):
        call_rows(f, n_rows, partial(top.down, f), after)
    with f.when(is_tail):
        own_c = f.at(own_bias, COLUMNS)
        with f.when(is_first & has_bias):
            f.call("copy_columns", "void", start, one, one, width, own_bias, one)
        own_start = f.select(is_first & has_bias, own_bias, zeros)
        with f.each(0, n_rows, _TAIL_ROWS) as row:
            here, some = top.down(f, row), f.least(n_rows - row, _TAIL_ROWS)
            is_added = here.added.compare("ne", 0)
            with f.when(is_added):
                f.call("copy_columns", "void", here.added, ld_added, some, width, own_c, wide)
            beside = replace(
                here,
                c=own_c,
                ldc=wide,
                start=own_start,
                added=f.select(is_added, own_c, null),
                added_stride=wide,
            )
            call_rows(f, some, partial(beside.down, f), after)
            f.call("copy_columns", "void", own_c, wide, some, width, here.c, ldc)
