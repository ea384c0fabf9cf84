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
from pliant.kernels.tiles.tile_ops import TILE_BYTES, TILE_ROWS
from pliant.kernels.tiles.tile_rows import (
    PANELS,
    TILE,
    LeftRows,
    StoredTiles,
    multiply_rows,
    release_tiles,
    sums_bytes,
    takes_tiles,
    write_tile_rows,
)

MOST_UNITS_AT_ONCE = 3
"""Units of a call that share each block of A, which saves reading A again if it does not stay in L2."""
_BLOCK_DEPTH, _BLOCK_ROWS = 256, 256
"""Rows of B that are decoded at a time, and rows of A whose sums are kept in memory."""
_AT_ONCE = PANELS[-1] * MOST_UNITS_AT_ONCE
"""Column groups that are multiplied with a block of A before the next one."""
_GROUP_BYTES = 2 * COLUMNS * _BLOCK_DEPTH
_SUMS_AT = PANELS[-1] * _GROUP_BYTES
_BIAS_AT = _SUMS_AT + sums_bytes(_BLOCK_ROWS, _AT_ONCE)
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
    """All units of a kernel whose rows of A have two parts."""
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
        end = f.select(panel.compare("eq", groups), whole, first)
        with f.each(first, end, _AT_ONCE) as group:
            _write_panels(f, config, group, f.least(group + _AT_ONCE, end), groups, parts)
    with f.each(whole, last) as group:
        _write_panels(f, config, group, group + 1, 1, parts)
    release_tiles(f, config)


def _write_panels(f: Function, config: Value, first: Value, end: Value, groups: int, parts: int) -> None:
    """All rows of C, column groups `first` to `end` in panels of `groups`, which share each block of A."""
    args, _, _, scratch = f.params
    n_rows, n_columns = f.fields(args, GemmArgs, "n_rows", "n_columns")
    segment_rows, n_segments = f.fields(args, GemmArgs, "segment_rows", "n_segments")
    depth, top = segment_rows * n_segments, f.at(scratch, _SUMS_AT, "i8")
    with f.each(0, n_rows, _BLOCK_ROWS) as row:
        some = f.least(n_rows - row, _BLOCK_ROWS)
        size = ((some + (TILE_ROWS - 1)) >> 4) * TILE
        with f.each(0, depth, _BLOCK_DEPTH) as k, f.each(first, end, groups) as group:
            n = f.least(depth - k, _BLOCK_DEPTH)
            sums = f.at(top, (group - first) * size, "i8")
            blocks = _blocks(f, "block", group, groups, (k, n), scratch)
            rows, is_first = _left_rows(f, row, k, depth, parts), k.compare("eq", 0)
            if parts == 1:
                multiply_rows(f, "bf16", config, rows, blocks, sums, some, n >> 1, is_first)
            else:
                has_lower = _has_lower(f, group, groups)
                with f.when(has_lower):
                    lower = _blocks(f, "lower_block", group, groups, (k, n), f.at(scratch, TILED_BYTES, "i8"))
                    multiply_rows(f, "bf16", config, rows, blocks, sums, some, n >> 1, is_first, 2, lower)
                with f.when(has_lower.compare("eq", 0)):
                    multiply_rows(f, "bf16", config, rows, blocks, sums, some, n >> 1, is_first, 2)
        with f.each(first, end, groups) as group:
            sums = f.at(top, (group - first) * size, "i8")
            width = f.least(n_columns - group * COLUMNS, groups * COLUMNS)
            at = PanelSums(sums, f.at(scratch, _BIAS_AT, "i8"), f.at(scratch, _C_AT, "i8"))
            write_epilogue(f, _epilogue_args(f, row), at, group, groups, width, some)


def _left_rows(f: Function, row: Value, k: Value, depth: Value, parts: int) -> LeftRows:
    """A from a row and a column on, as `round_bf16` or `split_rows` stored it."""
    (a,) = f.fields(f.params[0], GemmArgs, "a")
    row_bytes = depth * (2 * parts)
    here = f.at(a, row * row_bytes, "i8")
    first = f.at(here, (k >> 5) * (parts * TILE), "i8")
    tiles = StoredTiles(first, f.const(parts * TILE), f.const(TILE_BYTES), f.const(TILE))
    return LeftRows(f.at(here, k, "i16"), row_bytes, depth * 2, tiles)


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
