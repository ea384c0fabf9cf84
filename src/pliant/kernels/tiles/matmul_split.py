"""Float32 products of two matrices that are both computed in a run, in tiles: each is split on the fly.

Rows of A and a panel of B are converted in scratch to pairs of bfloat16, a block of K at a time, and the sums
of a unit are kept there. Each unit splits both again, which keeps them in cache.
"""

import ctypes

from pliant.kernels.coded.activate import write_activations
from pliant.kernels.coded.round_bf16 import RowPlace
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value
from pliant.kernels.product.matmul_args import COLUMNS, Blocking, MatmulArgs
from pliant.kernels.product.matmul_pack import provide_block, write_pack
from pliant.kernels.product.matmul_unit import UnitPlace, divide_up, locate_unit
from pliant.kernels.tiles.epilogue_bf16 import EpilogueArgs, PanelSums, write_epilogue, write_finishes
from pliant.kernels.tiles.gemm_split import split_row
from pliant.kernels.tiles.split_panels import write_split_block
from pliant.kernels.tiles.tile_ops import TILE_ROWS
from pliant.kernels.tiles.tile_rows import (
    TILE,
    LeftRows,
    config_space,
    multiply_rows,
    release_tiles,
    sums_bytes,
    write_tile_rows,
)

BLOCK_DEPTH = 384
"""Rows of B at a time: a panel of both parts, 48 KB, is read from L2 for each row of tiles of A."""
PANEL = 2
"""Column groups of a panel."""
_STEP = 32
"""Rows of B in a tile."""
_GROUP = COLUMNS * BLOCK_DEPTH
"""Floats in a column group of a block, or in its two parts."""
_B_FLOATS = (1 + PANEL) * _GROUP


class MatmulSplitArgs(ctypes.Structure):
    """A product with a `GemmArgs.activation`; units are those of MatmulArgs."""

    _fields_ = (("product", MatmulArgs), ("activation", ctypes.c_int64))


def scratch_bytes_matmul_split(blocks: Blocking) -> int:
    """Scratch a thread needs, 64-byte aligned: a block of B, rows of A, both also split, and partial groups
    and sums of C.
    """
    rows = blocks.row_block
    floats = _B_FLOATS + 2 * rows * BLOCK_DEPTH + COLUMNS * (1 + rows)
    return 4 * floats + sums_bytes(rows, blocks.panel)


def matmul_split_ir(isa: Isa, name: str = "matmul_split") -> str:
    """The kernel with MatmulSplitArgs, for every shape whose depth is not 0, stride and epilogue."""
    assert isa.has_tiles, isa.name
    module = Module(isa)
    write_pack(module)
    write_activations(module)
    write_tile_rows(module, "bf16", 2)
    write_finishes(module)
    _write_split_rows(module)
    write_split_block(module)
    with module.kernel(name) as f:
        _, lo, hi, _ = f.params
        config = config_space(f)
        with f.each(lo, hi) as unit:
            _write_unit(f, unit, config)
        release_tiles(f, config)
    return module.text()


def _write_unit(f: Function, unit: Value, config: Value) -> None:
    args, _, _, scratch = f.params
    n_columns, row_block = f.fields(args, MatmulArgs, "n_columns", "row_block")
    place = locate_unit(f, unit)
    plain = f.at(scratch, _B_FLOATS)
    split = f.at(plain, row_block * BLOCK_DEPTH)
    copies_a = place.a_column.compare("ne", 1)
    even = divide_up(divide_up(place.depth, divide_up(place.depth, BLOCK_DEPTH)), _STEP) * _STEP
    with f.each(0, place.depth, even) as k:
        n = f.least(place.depth - k, even)
        words = (n + 1) >> 1
        a = f.at(place.a, k * place.a_column)
        with f.when(copies_a):
            f.call("pack_rows", "void", a, place.a_row, place.a_column, place.rows, n, plain)
        source, lda = f.select(copies_a, plain, a), f.select(copies_a, n, place.a_row)
        f.call("split_rows", "void", source, lda, place.rows, n, split)
        rows = LeftRows(split, words * 8, words * 4)
        full = f.least(place.last, n_columns // COLUMNS)  # the last group may have fewer columns
        whole = full - (full - place.first) % PANEL
        with f.each(place.first, whole, PANEL) as group:
            _write_panel(f, config, place, rows, group, PANEL, (k, n), f.const(PANEL * COLUMNS))
        with f.each(whole, place.last) as group:
            _write_panel(
                f, config, place, rows, group, 1, (k, n), f.least(n_columns - group * COLUMNS, COLUMNS)
            )


def _write_panel(
    f: Function,
    config: Value,
    place: UnitPlace,
    rows: LeftRows,
    group: Value,
    groups: int,
    some: tuple[Value, Value],
    width: Value,
) -> None:
    """Add the products with `some` (first, count) rows of B; write C if these are the last."""
    args, _, _, scratch = f.params
    (k, n), (row_block, bias) = some, f.fields(args, MatmulArgs, "row_block", "bias")
    (residual,) = f.fields(args, MatmulArgs, "residual")
    (activation,) = f.fields(args, MatmulSplitArgs, "activation")
    parts: tuple[list[Value], list[Value]] = ([], [])
    for g in range(groups):
        block = provide_block(f, args, place.b, group + g, k, n, scratch)
        here = f.at(scratch, _GROUP * (1 + g))
        pair = here, f.at(here, _GROUP // 2)
        f.call("split_block", "void", block, n, *pair)
        for part, at in zip(parts, pair, strict=True):
            part.append(at)
    own_bias = f.at(scratch, row_block * (2 * BLOCK_DEPTH) + _B_FLOATS)
    own_c = f.at(own_bias, COLUMNS)
    tiles = (place.rows + (TILE_ROWS - 1)) >> 4
    sums = f.at(own_c, row_block * COLUMNS + tiles * (group - place.first) * (TILE // 4))
    words, is_first = (n + 1) >> 1, k.compare("eq", 0)
    upper, lower = parts
    multiply_rows(f, "bf16", config, rows, upper, sums, place.rows, words, is_first, 2, lower)
    with f.when((k + n).compare("eq", place.depth)):
        ends = EpilogueArgs(
            place.c, place.c_row, bias, place.residual, place.residual_row, activation, residual
        )
        write_epilogue(f, ends, PanelSums(sums, own_bias, own_c), group, groups, width, place.rows)


def _write_split_rows(module: Module) -> None:
    """`split_rows(x, ldx, rows, n, to)`: [rows][2][n, rounded up to even] bfloat16."""
    params = [("x", "ptr"), ("ldx", "i64"), ("rows", "i64"), ("n", "i64"), ("to", "ptr")]
    with module.function("split_rows", params, attributes="noinline", is_exported=False) as f:
        x, ldx, rows, n, to = f.params
        depth = (n + 1) & -2
        with f.each(0, rows) as row:
            upper = RowPlace(f.at(to, row * depth))
            split_row(f, f.at(x, row * ldx), n, depth, upper, upper.part(f, depth))
        f.ret()
