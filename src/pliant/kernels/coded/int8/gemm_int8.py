"""GEMM on integers: activations rounded by row, weights in the int8 steps of a codebook, or bytes already.

C = activation(((Aq - zero of the row) @ Bq) * row scale * step + outliers' remainders + bias + residual); the
integer sums are exact. Codes are decoded on the fly; byte weights are resident in the tiles' layout, and have
a step per column and no outliers.
"""

import ctypes
from dataclasses import dataclass

from pliant.kernels.coded.activate import activate, write_activations
from pliant.kernels.coded.fill import GROUP_ROWS
from pliant.kernels.coded.gemm_args import GemmArgs, SliceDesc
from pliant.kernels.coded.int8.fill_int8 import write_fill_int8
from pliant.kernels.coded.int8.panel_prefetch import (
    PanelPrefetch,
    allocate_prefetch_state,
    prefetch_bytes,
    prefetch_planes,
    write_ask_planes,
)
from pliant.kernels.coded.int8.remainders import (
    MAX_REMAINDERS,
    allocate_list,
    list_remainders,
    write_remainders,
)
from pliant.kernels.coded.int8.row_int8 import most_rows_int8, write_row_int8
from pliant.kernels.coded.int8.tile_int8 import TileInt8Args, call_rows_int8, tile_shape, write_tiles_int8
from pliant.kernels.coded.int8_form import Int8Form, int8_form, resident_form
from pliant.kernels.coded.tile import COLUMNS
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value
from pliant.kernels.product.matmul_pack import write_copy_columns
from pliant.kernels.tiles.coded_int8 import (
    TiledSums,
    call_finish,
    call_rows_in_tiles,
    tiled_bytes,
    write_finish,
    write_tiled_int8,
)
from pliant.kernels.tiles.tile_ops import TILE_ROWS
from pliant.kernels.tiles.tile_rows import PANELS, config_space, release_tiles, takes_tiles


def _block_rows(isa: Isa) -> int:
    """Rows at a time whose last columns are computed in scratch: a multiple of every tile height."""
    return 256 if isa.has_tiles else 240


class GemmInt8Args(ctypes.Structure):
    """`gemm` as for float32, but its `a` is the output of `round_rows`, and `lda` is not read.

    `a_scales` are the rows' scales and zero points. `weight_step` float32 is the value of one step in the
    slices' tables. `sums` int32 are the sums over K of the columns of every group in steps; only rows of
    bytes use them. If `has_sums` points to an int32 of 0, the kernel computes `sums` and writes them;
    otherwise it reads them, also if `has_sums` is null.

    For resident weights, `gemm.own.full` are the words of `resident_shape`, with K padded to whole iterations
    of the loops; `weight_step` has a float32 for every column of every group, and `sums` must be given.
    """

    _fields_ = (
        ("gemm", GemmArgs),
        ("a_scales", ctypes.c_void_p),
        ("weight_step", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
        ("has_sums", ctypes.c_void_p),
    )


def units_int8(n_columns: int) -> int:
    """Work units of an int8 GEMM: column groups; the last may have fewer columns."""
    return -(-n_columns // COLUMNS)


def grain_int8(n_columns: int, n_rows: int, isa: Isa, n_threads: int) -> int:
    """Units that a thread takes at a time: the columns of a tile, if that leaves work for every thread.

    For a few rows it takes more: at the border of two shares, both threads read the prefetched weights.
    """
    groups = _widest(isa)
    if n_rows <= max(1, most_rows_int8(isa)):
        return max(1, units_int8(n_columns) // (2 * n_threads))
    return groups if units_int8(n_columns) >= 2 * groups * n_threads else 1


def resident_shape(depth: int, n_columns: int, isa: Isa) -> tuple[int, int, int, int]:
    """int8 [column groups][words][16][packing] of a matrix whose weights are bytes."""
    packing = resident_form(isa).packing
    return units_int8(n_columns), padded_int8(depth) // packing, COLUMNS, packing


def padded_int8(depth: int) -> int:
    """K padded to whole iterations of the tiles' loops."""
    return -(-depth // GROUP_ROWS) * GROUP_ROWS


def scratch_bytes_int8(depth: int, isa: Isa) -> int:
    """Scratch a thread needs for coded matrices of up to `depth` rows, 64-byte aligned.

    Resident weights need as much as a depth of 0.
    """
    words, rows = depth // int8_form(isa).packing, _block_rows(isa)
    return 4 * _widest(isa) * COLUMNS * (words + 1 + rows) + (tiled_bytes(rows) if isa.has_tiles else 0)


def _widest(isa: Isa) -> int:
    """Column groups of the widest panel."""
    return max(tile_shape(isa).groups, PANELS[-1] if isa.has_tiles else 1)


@dataclass(frozen=True, slots=True)
class _StackSpace:
    """Stack memory for the prefetch state, and for a list of remainders if there can be any."""

    prefetch_state: Value
    remainder_list: Value | None


@dataclass(frozen=True, slots=True)
class _Panel:
    """`width` columns in `groups` column groups from `group` on, and the data shared by all their rows.

    `b` has the groups in steps; `n_remainders` is the number of outliers with a remainder, None if there can
    be none; `own_c` is scratch for columns of incomplete groups. `products` are those of a few rows, if they
    have been made. `tiles` is None if the sums are in vectors; then `remainder_list` lists the remainders, if
    there are few, and `prefetch` prefetches the next panel's weights.
    """

    group: Value
    groups: int
    width: Value
    b: Value
    words: Value
    sums: Value
    bias: Value
    step: Value
    n_remainders: Value | None
    own_c: Value
    tiles: TiledSums | None = None
    remainder_list: Value | None = None
    prefetch: PanelPrefetch | None = None
    products: Value | None = None

    @property
    def columns(self) -> int:
        return self.groups * COLUMNS


def gemm_int8_ir(isa: Isa) -> str:
    """The int8 GEMM kernel of `isa` for codes, for every shape, mix of bits, and epilogue."""
    return _kernel(isa, "gemm_int8", int8_form(isa))


def gemm_bytes_ir(isa: Isa) -> str:
    """The kernel for resident byte weights."""
    return _kernel(isa, "gemm_bytes", resident_form(isa))


def _kernel(isa: Isa, name: str, form: Int8Form) -> str:
    module = Module(isa)
    write_tiles_int8(module, form)
    if not form.is_resident:
        write_fill_int8(module)
        write_ask_planes(module)
        write_remainders(module)
    write_copy_columns(module)
    write_activations(module)
    most_rows = 0 if form.is_resident else most_rows_int8(isa)
    if most_rows:
        write_row_int8(module)
        if not isa.has_tiles:
            write_finish(module, form, 1)
    if isa.has_tiles:
        write_tiled_int8(module, form)
    panel = tile_shape(isa).groups
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        if isa.has_tiles:
            lo = _write_tiled(f, form, config_space(f), lo)
        space = _StackSpace(allocate_prefetch_state(f), None if form.is_resident else allocate_list(f))
        whole = hi - (hi - lo) % panel
        is_row = f.const(0, "i1")
        if most_rows:
            (n_rows,) = f.fields(args, GemmArgs, "n_rows")
            is_row = (n_rows <= most_rows) & _has_sums(f)
            whole = f.select(is_row, lo, whole)
        with f.each(lo, whole, panel) as group:
            _write_panel(f, form, group, panel, space=space)
        with f.each(whole, hi) as group:
            if most_rows:
                is_coded = f.call("is_coded", "i64", args, group)
                assert is_coded is not None
                is_row = is_row & is_coded.compare("ne", 0)
                with f.when(is_row):
                    _write_few_rows(f, group)
            if panel > 1:
                with f.when(is_row.compare("eq", 0)):
                    _write_panel(f, form, group, 1, space=space)
    return module.text()


def _write_tiled(f: Function, form: Int8Form, config: Value, lo: Value) -> Value:
    """Emit the whole kernel for rows that use tiles; returns the first remaining unit for others."""
    args, _, hi, _ = f.params
    (n_rows,) = f.fields(args, GemmArgs, "n_rows")
    is_tiled = takes_tiles(n_rows, "int8")
    with f.when(is_tiled):
        panel = f.select(n_rows <= TILE_ROWS, f.const(PANELS[-1]), f.const(PANELS[-2]))
        whole = hi - (hi - lo) % panel
        for groups in PANELS[1:]:
            last = f.select(panel.compare("eq", groups), whole, lo)
            with f.each(lo, last, groups) as group:
                _write_panel(f, form, group, groups, config)
        with f.each(whole, hi) as group:
            _write_panel(f, form, group, 1, config)
        release_tiles(f, config)
    return f.select(is_tiled, hi, lo)


def _write_few_rows(f: Function, group: Value) -> None:
    """One column group of a few rows, decoded in registers."""
    args, _, _, scratch = f.params
    names = ("segment_rows", "n_segments", "n_rows", "n_columns")
    segment_rows, n_segments, n_rows, n_columns = f.fields(args, GemmArgs, *names)
    weight_step, sums = f.fields(args, GemmInt8Args, "weight_step", "sums")
    step = f.load(weight_step)
    n_remainders = f.call("row8", "i64", args, group, f.const(1.0, "float") / step, scratch)
    own_bias = f.at(scratch, most_rows_int8(f.isa) * COLUMNS)
    width = f.least(n_columns - group * COLUMNS, COLUMNS)
    bias = _bias(f, group, 1, width, own_bias)
    words, own_c = segment_rows * n_segments // int8_form(f.isa).packing, f.at(own_bias, COLUMNS)
    sums, none = f.at(sums, group * COLUMNS, "i32"), f.const(0, "ptr")
    panel = _Panel(group, 1, width, none, words, sums, bias, step, n_remainders, own_c, products=scratch)
    _write_rows(f, panel, f.const(0), n_rows)


def _write_panel(
    f: Function,
    form: Int8Form,
    group: Value,
    groups: int,
    config: Value | None = None,
    space: _StackSpace | None = None,
) -> None:
    """All rows of `groups` column groups from `group` on; in tiles if `config` is given."""
    args, _, _, scratch = f.params
    names = ("segment_rows", "n_segments", "n_rows", "n_columns")
    segment_rows, n_segments, n_rows, n_columns = f.fields(args, GemmArgs, *names)
    (weight_step,) = f.fields(args, GemmInt8Args, "weight_step")
    step = f.at(weight_step, group * COLUMNS) if form.is_resident else f.load(weight_step)
    words = segment_rows * n_segments // form.packing
    columns = _widest(f.isa) * COLUMNS
    own_bias = scratch if form.is_resident else f.at(scratch, words * columns, "i32")
    own_c = f.at(own_bias, columns)
    tiles = TiledSums(config, f.at(own_c, _block_rows(f.isa) * columns)) if config else None
    blocks: list[Value] = []
    n_remainders: Value | None = None
    if form.is_resident:
        (full,) = f.fields(f.at(args, GemmArgs.own.offset, "i8"), SliceDesc, "full")
        b = f.at(full, group * words * COLUMNS, form.word)
    else:
        b, n_remainders = scratch, f.const(0)
        blocks = [f.at(scratch, words * (g * COLUMNS), "i32") for g in range(groups)]
        for g, block in enumerate(blocks):
            more = f.call("block8", "i64", args, group + g, block, f.const(1.0, "float") / step)
            assert more is not None
            n_remainders = n_remainders + more
    width = f.least(n_columns - group * COLUMNS, groups * COLUMNS)
    sums = _sums(f, form, group, blocks, words)
    bias = _bias(f, group, groups, width, own_bias)
    prefetch: PanelPrefetch | None = None
    remainder_list: Value | None = None
    if space is not None and form.is_resident:
        lines = words * (groups * COLUMNS * int(form.word[1:]) // 8) // 64
        prefetch = prefetch_bytes(f, space.prefetch_state, f.at(b, lines * 64, "i8"), lines, n_rows)
    elif space is not None:
        prefetch = prefetch_planes(f, space.prefetch_state, group + groups, groups, f.params[2])
    if space is not None and space.remainder_list is not None and n_remainders is not None:
        remainder_list = space.remainder_list
        with f.when((n_remainders > 0) & (n_remainders <= MAX_REMAINDERS)):
            list_remainders(f, group, groups, f.const(1.0, "float") / step, remainder_list)
    panel = _Panel(
        group, groups, width, b, words, sums, bias, step, n_remainders, own_c, tiles, remainder_list, prefetch
    )
    most = _block_rows(f.isa)
    with f.each(0, n_rows, most) as first:
        _write_rows(f, panel, first, f.least(n_rows - first, most))


def _sums(f: Function, form: Int8Form, group: Value, blocks: list[Value], words: Value) -> Value:
    """The address of the columns' sums, which are computed first if they are not given."""
    (sums,) = f.fields(f.params[0], GemmInt8Args, "sums")
    here = f.at(sums, group * COLUMNS, "i32")
    if form.is_bytes and not form.is_resident:
        with f.when(_has_sums(f).compare("eq", 0)):
            for g, block in enumerate(blocks):
                f.call("column_sums", "void", block, words, f.at(here, g * COLUMNS, "i32"))
    return here


def _has_sums(f: Function) -> Value:
    """Whether the columns' sums are given."""
    (at,) = f.fields(f.params[0], GemmInt8Args, "has_sums")
    given = f.choose(at.compare("eq", 0), lambda: [f.const(1, "i32")], lambda: [f.load(at, "i32")])
    return given[0].compare("ne", 0)


def _bias(f: Function, group: Value, groups: int, width: Value, own: Value) -> Value:
    """The address of a full tile's number of biases."""
    (bias,) = f.fields(f.params[0], GemmArgs, "bias")
    zeros = f.table([0.0] * (groups * COLUMNS), "float")
    has_bias = bias.compare("ne", 0)
    is_copied = has_bias & (width < groups * COLUMNS)
    here, one = f.select(has_bias, f.at(bias, group * COLUMNS), zeros), f.const(1)
    with f.when(is_copied):
        f.call("copy_columns", "void", here, one, one, width, own, one)
    return f.select(is_copied, own, here)


def _write_rows(f: Function, panel: _Panel, first: Value, n_rows: Value) -> None:
    """`n_rows` rows of C from row `first` on."""
    args = f.params[0]
    a, c, ldc = f.fields(args, GemmArgs, "a", "c", "ldc")
    residual, ldr, activation = f.fields(args, GemmArgs, "residual", "ldr", "activation")
    (a_scales,) = f.fields(args, GemmInt8Args, "a_scales")
    column, wide = panel.group * COLUMNS, f.const(panel.columns)
    a, a_scales, c = (
        f.at(a, first * panel.words, "i32"),
        f.at(a_scales, first * 2),
        f.at(c, first * ldc + column),
    )
    is_tail, has_residual = panel.width < panel.columns, residual.compare("ne", 0)
    is_copied = is_tail & has_residual
    zeros = f.table([0.0] * panel.columns, "float")
    added = f.select(has_residual, f.at(residual, first * ldr + column), zeros)
    with f.when(is_copied):
        f.call("copy_columns", "void", added, ldr, n_rows, panel.width, panel.own_c, wide)
    added = f.select(is_copied, panel.own_c, added)
    added_stride = f.select(has_residual, f.select(is_copied, wide, ldr), f.const(0))
    c_here, ldc_here = f.select(is_tail, panel.own_c, c), f.select(is_tail, wide, ldc)
    # If remainders are added at the end, activations are applied after them.
    n_remainders = panel.n_remainders
    is_late = (
        None
        if n_remainders is None
        else n_remainders > (0 if panel.remainder_list is None else MAX_REMAINDERS)
    )
    early = activation if is_late is None else f.select(is_late, f.const(0), activation)

    def at(row: Value) -> TileInt8Args:
        return TileInt8Args(
            a=f.at(a, row * panel.words, "i32"),
            b=panel.b,
            sums=panel.sums,
            c=f.at(c_here, row * ldc_here),
            ldc=ldc_here,
            bias=panel.bias,
            added=f.at(added, row * added_stride),
            added_stride=added_stride,
            scales=f.at(a_scales, row * 2),
            words=panel.words,
            step=panel.step,
        )

    def after(tile: TileInt8Args, rows: int) -> None:
        if n_remainders is not None and panel.remainder_list is not None:
            n = f.select(n_remainders > MAX_REMAINDERS, f.const(0), n_remainders)
            where = (tile.a, tile.scales, f.const(rows), tile.c, ldc_here)
            with f.when(n > 0):
                f.call("add_listed", "void", panel.remainder_list, n, *where)
        activate(f, tile.c, ldc_here, f.const(rows), wide, early)
        if panel.prefetch is not None:
            panel.prefetch(rows)

    if panel.products is not None:
        call_finish(f, panel.products, at(f.const(0)), 1, n_rows)
        activate(f, c_here, ldc_here, n_rows, wide, early)
    elif panel.tiles is None:
        call_rows_int8(f, n_rows, panel.groups, at, after)
    else:
        call_rows_in_tiles(f, n_rows, panel.groups, panel.tiles, at)
        activate(f, c_here, ldc_here, n_rows, wide, early)
    if is_late is not None:
        steps = f.const(1.0, "float") / panel.step
        with f.when(is_late):
            for g in range(panel.groups):
                here, group = f.at(c_here, g * COLUMNS), panel.group + g
                f.call("remainders", "void", args, a, a_scales, n_rows, group, steps, here, ldc_here)
            activate(f, c_here, ldc_here, n_rows, wide, activation)
    with f.when(is_tail):
        f.call("copy_columns", "void", panel.own_c, wide, n_rows, panel.width, c, ldc)
