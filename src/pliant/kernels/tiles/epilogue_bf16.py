"""From a panel's sums to C: bias, residual and activation, for products of bfloat16 in tiles."""

from dataclasses import dataclass

from pliant.kernels.coded.activate import activate
from pliant.kernels.coded.tile import COLUMNS
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.values import Value
from pliant.kernels.tiles.tile_ops import TILE_ROWS
from pliant.kernels.tiles.tile_rows import PANELS, TILE


@dataclass(frozen=True, slots=True)
class EpilogueArgs:
    """Rows of C from one on, the addends, and `GemmArgs.activation`; `bias` may be null.

    `added` is the whole residual, or null; `residual` is its row for the first row of C.
    """

    c: Value
    ldc: Value
    bias: Value
    residual: Value
    ldr: Value
    activation: Value
    added: Value


@dataclass(frozen=True, slots=True)
class PanelSums:
    """A panel's sums, and scratch for a partial column group: a bias of 16, and rows of 16 of C."""

    sums: Value
    bias: Value
    c: Value


def write_finishes(module: Module) -> None:
    """Define the functions that `write_epilogue` calls, except `activate` and `copy_columns`."""
    for groups in PANELS:
        _write_finish(module, groups)


def write_epilogue(
    f: Function, ends: EpilogueArgs, at: PanelSums, group: Value, groups: int, width: Value, n_rows: Value
) -> None:
    """`n_rows` of C, `width` columns in `groups` column groups from `group` on."""
    column, one, wide = group * COLUMNS, f.const(1), f.const(groups * COLUMNS)
    zeros = f.table([0.0] * (groups * COLUMNS), "float")
    is_tail = width < wide
    has_bias, has_residual = ends.bias.compare("ne", 0), ends.added.compare("ne", 0)
    bias_here, c_here, residual_here = (f.at(x, column) for x in (ends.bias, ends.c, ends.residual))
    with f.when(is_tail & has_bias):
        f.call("copy_columns", "void", bias_here, one, one, width, at.bias, one)
    with f.when(is_tail & has_residual):
        f.call("copy_columns", "void", residual_here, ends.ldr, n_rows, width, at.c, wide)
    start = f.select(has_bias, f.select(is_tail, at.bias, bias_here), zeros)
    added = f.select(has_residual, f.select(is_tail, at.c, residual_here), zeros)
    ld_added = f.select(has_residual, f.select(is_tail, wide, ends.ldr), f.const(0))
    to, ld_to = f.select(is_tail, at.c, c_here), f.select(is_tail, wide, ends.ldc)
    f.call(f"finish_{groups}", "void", at.sums, to, start, added, ld_to, ld_added, n_rows)
    activate(f, to, ld_to, n_rows, wide, ends.activation)
    with f.when(is_tail):
        f.call("copy_columns", "void", at.c, wide, n_rows, width, c_here, ends.ldc)


def _write_finish(module: Module, groups: int) -> None:
    """`finish_<groups>(sums, c, bias, added, ldc, ld_added, n_rows)`: C = sums + bias + added."""
    params = [(n, "ptr") for n in ("sums", "c", "bias", "added")]
    params += [(n, "i64") for n in ("ldc", "ld_added", "n_rows")]
    with module.function(f"finish_{groups}", params, attributes="noinline", is_exported=False) as f:
        sums, c, bias, added, ldc, ld_added, n_rows = f.params
        with f.each(0, n_rows) as row:
            block = f.at(sums, (row >> 4) * (groups * TILE), "i8")
            here = f.at(block, (row & (TILE_ROWS - 1)) * COLUMNS)
            to, more = f.at(c, row * ldc), f.at(added, row * ld_added)
            for v in range(0, groups * COLUMNS, f.lanes):
                group, column = divmod(v, COLUMNS)
                total = f.load(f.at(here, group * (TILE // 4) + column), f.vec)
                total = total + f.load(f.at(bias, v), f.vec) + f.load(f.at(more, v), f.vec)
                f.store(total, f.at(to, v))
        f.ret()
