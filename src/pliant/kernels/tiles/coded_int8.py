"""Rows of the int8 GEMM in tiles: integer sums in memory, then scales and epilogue as for vectors."""

from collections.abc import Callable
from dataclasses import dataclass

from pliant.kernels.coded.int8.tile_int8 import TileInt8Args
from pliant.kernels.coded.int8_form import Int8Form
from pliant.kernels.coded.tile import COLUMNS
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.values import Value, vector
from pliant.kernels.tiles.tile_ops import TILE_ROWS
from pliant.kernels.tiles.tile_rows import (
    PANELS,
    TILE,
    LeftRows,
    multiply_in_blocks,
    rows_of_tiles,
    sums_bytes,
    write_tile_rows,
)


@dataclass(frozen=True, slots=True)
class TiledSums:
    """A configuration of the tiles, and the memory that holds sums until their epilogue."""

    config: Value
    at: Value


def tiled_bytes(rows: int) -> int:
    """Memory for the sums of a panel of any width, for up to `rows` rows."""
    return max(sums_bytes(rows if rows_of_tiles(groups) > 1 else TILE_ROWS, groups) for groups in PANELS)


def write_tiled_int8(module: Module, form: Int8Form) -> None:
    """Define the functions that `call_rows_in_tiles` calls, for panels of every width."""
    write_tile_rows(module, "int8")
    for groups in PANELS:
        write_finish(module, form, groups)


def call_rows_in_tiles(
    f: Function, n_rows: Value, groups: int, tiles: TiledSums, at: Callable[[Value], TileInt8Args]
) -> None:
    """C of `n_rows` rows and some column groups; `at(row)` gives a row's addresses; rows of A are
    contiguous.
    """
    top = at(f.const(0))
    columns = [f.at(top.b, top.words * (g * COLUMNS), "i32") for g in range(groups)]
    a = LeftRows(top.a, top.words * 4, f.const(0))
    multiply_in_blocks(f, "int8", tiles.config, a, columns, tiles.at, n_rows, top.words)
    call_finish(f, tiles.at, top, groups, n_rows)


def call_finish(f: Function, made: Value, top: TileInt8Args, groups: int, n_rows: Value) -> None:
    """C of `n_rows` rows from their integer sums at `made`; `top` has the addresses of the first row."""
    pointers = (made, top.c, top.bias, top.added, top.scales, top.sums)
    f.call(f"finish8_{groups}", "void", *pointers, top.ldc, top.added_stride, n_rows, top.step)


def write_finish(module: Module, form: Int8Form, groups: int) -> None:
    """`finish8_<groups>`: C = (sums minus zero points) * scales * step + bias + added.

    Resident weights have a step for each column.
    """
    params = [(n, "ptr") for n in ("tiles", "c", "bias", "added", "scales", "sums")]
    params += [(n, "i64") for n in ("ldc", "added_stride", "n_rows")]
    params += [("step", "ptr" if form.is_resident else "float")]
    with module.function(f"finish8_{groups}", params, attributes="noinline", is_exported=False) as f:
        tiles, c, bias, added, scales, sums, ldc, added_stride, n_rows, step = f.params
        integers = vector(f.lanes, "i32")
        with f.each(0, n_rows) as row:
            scale = f.load(f.at(scales, row * 2))
            scale = f.splat(scale if form.is_resident else scale * step)
            less = f.splat(f.load(f.at(scales, row * 2 + 1, "i32"), "i32"))
            block = f.at(tiles, (row >> 4) * (groups * TILE), "i8")
            here = f.at(block, (row & (TILE_ROWS - 1)) * COLUMNS, "i32")
            to, more = f.at(c, row * ldc), f.at(added, row * added_stride)
            for v in range(0, groups * COLUMNS, f.lanes):
                group, column = divmod(v, COLUMNS)
                total = f.load(f.at(here, group * (TILE // 4) + column, "i32"), integers)
                total = total - f.load(f.at(sums, v, "i32"), integers) * less
                start = f.load(f.at(bias, v), f.vec) + f.load(f.at(more, v), f.vec)
                by = scale * f.load(f.at(step, v), f.vec) if form.is_resident else scale
                f.store(f.fma(f.cast("sitofp", total, f.vec), by, start), f.at(to, v))
        f.ret()
