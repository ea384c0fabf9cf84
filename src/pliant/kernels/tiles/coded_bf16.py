"""The bfloat16 GEMM in tiles: sums of a panel are kept in memory while K is processed in blocks that stay in
L1.

A float32 number is split into two bfloat16 numbers, upper and lower, whose sum is close to it; then three of
the four products are computed (all except lower by lower), two if B has no lower parts.
"""

from pliant.kernels.coded.gemm_args import GemmArgs
from pliant.kernels.coded.tile import COLUMNS
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.values import Value
from pliant.kernels.tiles.epilogue_bf16 import EpilogueArgs, PanelSums, write_epilogue, write_finishes
from pliant.kernels.tiles.tile_ops import TILE_ROWS
from pliant.kernels.tiles.tile_rows import (
    PANELS,
    LeftRows,
    multiply_rows,
    release_tiles,
    sums_bytes,
    takes_tiles,
    write_tile_rows,
)

_BLOCK_DEPTH, _BLOCK_ROWS = 384, 256
"""Rows of B that are decoded at a time, and rows of A whose sums are kept in memory."""
_GROUP_BYTES = 2 * COLUMNS * _BLOCK_DEPTH
_SUMS_AT = PANELS[-1] * _GROUP_BYTES
_BIAS_AT = _SUMS_AT + sums_bytes(_BLOCK_ROWS, PANELS[-2])
_C_AT = _BIAS_AT + 4 * COLUMNS
TILED_BYTES = _C_AT + 4 * COLUMNS * _BLOCK_ROWS
"""Scratch that a thread needs."""
SPLIT_BYTES = TILED_BYTES + PANELS[-1] * _GROUP_BYTES
"""The same, with lower parts of B."""


def write_tiled_bf16(module: Module, parts: int = 1) -> None:
    """Define the functions that `write_units_in_tiles` calls, or with two parts those of
    `write_split_units`.
    """
    write_tile_rows(module, "bf16", parts)
    write_finishes(module)


def write_units_in_tiles(f: Function, config: Value) -> Value:
    """All units of the kernel, if its rows use tiles; returns the first unit not computed."""
    args, lo, hi, _ = f.params
    (n_rows,) = f.fields(args, GemmArgs, "n_rows")
    is_tiled = takes_tiles(n_rows, "bf16")
    with f.when(is_tiled):
        _write_units(f, config, 1)
    return f.select(is_tiled, hi, lo)


def write_split_units(f: Function, config: Value) -> None:
    """All units of a kernel whose rows of A have two parts: upper, then lower, `lda` words together."""
    _write_units(f, config, 2)


def _write_units(f: Function, config: Value, parts: int) -> None:
    args, lo, hi, _ = f.params
    n_rows, n_columns = f.fields(args, GemmArgs, "n_rows", "n_columns")
    n_groups = (n_columns + (COLUMNS - 1)) // COLUMNS
    first, last = lo * PANELS[-1], f.least(hi * PANELS[-1], n_groups)
    full = f.least(last, n_columns // COLUMNS)  # the last group may have fewer columns
    panel = f.select(n_rows <= TILE_ROWS, f.const(PANELS[-1]), f.const(PANELS[-2]))
    whole = full - (full - first) % panel
    for groups in PANELS[1:]:
        with f.each(first, f.select(panel.compare("eq", groups), whole, first), groups) as group:
            _write_panel(f, config, group, groups, f.const(groups * COLUMNS), parts)
    with f.each(whole, last) as group:
        _write_panel(f, config, group, 1, f.least(n_columns - group * COLUMNS, COLUMNS), parts)
    release_tiles(f, config)


def _write_panel(f: Function, config: Value, group: Value, groups: int, width: Value, parts: int) -> None:
    """All rows of C, `width` columns in `groups` column groups from `group` on."""
    args, _, _, scratch = f.params
    a, lda, n_rows = f.fields(args, GemmArgs, "a", "lda", "n_rows")
    segment_rows, n_segments = f.fields(args, GemmArgs, "segment_rows", "n_segments")
    depth, sums = segment_rows * n_segments, f.at(scratch, _SUMS_AT, "i8")
    with f.each(0, n_rows, _BLOCK_ROWS) as row:
        some = f.least(n_rows - row, _BLOCK_ROWS)
        with f.each(0, depth, _BLOCK_DEPTH) as k:
            n = f.least(depth - k, _BLOCK_DEPTH)
            blocks = _blocks(f, "block", group, groups, (k, n), scratch)
            rows = LeftRows(f.at(a, row * lda + (k >> 1), "i32"), lda * 4, lda * 2)
            is_first = k.compare("eq", 0)
            multiply_rows(f, "bf16", config, rows, blocks, sums, some, n >> 1, is_first, parts)
            if parts == 2:
                with f.when(_has_lower(f, group, groups)):
                    lower = _blocks(f, "lower_block", group, groups, (k, n), f.at(scratch, TILED_BYTES, "i8"))
                    multiply_rows(f, "bf16", config, rows, lower, sums, some, n >> 1, f.const(0, "i1"))
        at = PanelSums(sums, f.at(scratch, _BIAS_AT, "i8"), f.at(scratch, _C_AT, "i8"))
        write_epilogue(f, _epilogue_args(f, row), at, group, groups, width, some)


def _blocks(
    f: Function, name: str, group: Value, groups: int, rows: tuple[Value, Value], space: Value
) -> list[Value]:
    """Addresses of blocks of B: column groups from `group` on, and `rows` (first, count)."""
    found = []
    for g in range(groups):
        block = f.call(name, "ptr", f.params[0], group + g, *rows, f.at(space, g * _GROUP_BYTES, "i8"))
        assert block is not None
        found.append(block)
    return found


def _has_lower(f: Function, group: Value, groups: int) -> Value:
    total = f.const(0)
    for g in range(groups):
        more = f.call("has_lower", "i64", f.params[0], group + g)
        assert more is not None
        total = total + more
    return total.compare("ne", 0)


def _epilogue_args(f: Function, row: Value) -> EpilogueArgs:
    """The arguments' fields of C from a row on."""
    names = ("c", "ldc", "bias", "residual", "ldr", "activation")
    c, ldc, bias, residual, ldr, activation = f.fields(f.params[0], GemmArgs, *names)
    return EpilogueArgs(f.at(c, row * ldc), ldc, bias, f.at(residual, row * ldr), ldr, activation, residual)
