"""Float32 matrix products: C = activation(alpha * A @ B + bias + residual), batched, with any strides.

The tiles are those of the local engine. B is passed packed in panels, or a block of it is packed into scratch
just before its use; A is copied only if its columns are not contiguous.
"""

from collections.abc import Callable
from dataclasses import replace

from pliant.kernels.coded.fill import GROUP_ROWS, write_fill
from pliant.kernels.coded.tile import UNROLL, TileArgs, call_rows, tiling, write_tiles
from pliant.kernels.emit import vmath
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value
from pliant.kernels.product.matmul_args import (
    BLOCK_ROWS,
    COLUMNS,
    MatmulArgs,
    MatmulCodedArgs,
)
from pliant.kernels.product.matmul_pack import provide_block, write_pack
from pliant.kernels.product.matmul_unit import divide_up, locate_unit
from pliant.kernels.product.scaled_block import WeightElement, write_scaled_block

ActivationFunction = Callable[[Function, Value], Value]


def matmul_name(
    activation: str | None = None, bits: int | None = None, element: WeightElement | None = None
) -> str:
    """The kernel's name."""
    parts = ["matmul", f"k{bits}" if bits else "", element or "", activation or ""]
    return "_".join(part for part in parts if part)


def scratch_bytes(row_block: int, isa: Isa) -> int:
    """Scratch a thread needs: a panel block of B, the last columns of C, the last of bias, a block of A."""
    width = COLUMNS * tiling(isa).panel
    return 4 * (BLOCK_ROWS * width + COLUMNS + row_block * (COLUMNS + BLOCK_ROWS))


def matmul_ir(
    isa: Isa, activation: str | None = None, bits: int | None = None, element: WeightElement | None = None
) -> str:
    """The kernel `matmul_name(...)` with MatmulArgs; `activation` is one of vmath.ACTIVATIONS.

    With `bits` B has that many planes, and the arguments are MatmulCodedArgs; with `element` B has that type,
    with scales, and the arguments are MatmulScaledArgs.
    """
    module = Module(isa)
    panel = tiling(isa).panel
    for groups in {1, panel}:
        write_tiles(module, groups)
    write_pack(module)
    block = provide_block
    if bits:
        write_fill(module, (bits,))
        block = _decode_block
    elif element:
        write_scaled_block(module, element)
        block = _scale_block
    if activation:
        write_activate(module, vmath.ACTIVATIONS[activation])
    for groups in {1, panel}:
        _write_panel(module, groups, bool(activation), block)
    with module.kernel(matmul_name(activation, bits, element)) as f:
        _, lo, hi, _ = f.params
        with f.each(lo, hi) as unit:
            _write_unit(f, unit, panel, GROUP_ROWS if bits else UNROLL)
    return module.text()


def _write_unit(f: Function, unit: Value, panel: int, step: int) -> None:
    """Write a unit; `step` rows of B cannot be separated."""
    args, _, _, scratch = f.params
    n_columns, row_block = f.fields(args, MatmulArgs, "n_columns", "row_block")
    place = locate_unit(f, unit)
    a, b, c, residual, rows = place.a, place.b, place.c, place.residual, place.rows
    a_row, a_column, depth, first, last = place.a_row, place.a_column, place.depth, place.first, place.last
    copies_a = a_column.compare("ne", 1)
    space = f.at(scratch, row_block * COLUMNS + (BLOCK_ROWS * panel + 1) * COLUMNS)
    # A product of depth 0 still has a bias.
    terms = f.select(depth < 1, f.const(1), depth)
    even = divide_up(divide_up(terms, divide_up(terms, BLOCK_ROWS)), step) * step
    with f.each(0, terms, even) as k:
        n = f.least(depth - k, even)
        a_here = f.at(a, k * a_column)
        with f.when(copies_a):
            f.call("pack_rows", "void", a_here, a_row, a_column, rows, n, space)
        a_block = f.select(copies_a, space, a_here)
        lda = f.select(copies_a, n, a_row)
        n_whole = (last - first) // panel * panel
        common = (args, scratch, a_block, lda, b, c, residual, rows, k, n, first, last)
        with f.each(first, first + n_whole, panel) as group:
            # Only panels of one group can end within a group.
            is_tail = (group + panel) * COLUMNS > n_columns if panel > 1 else f.const(1, "i1")
            with f.when(is_tail), f.each(group, group + panel) as one:
                f.call("panel1", "void", *common, one)
            with f.when(is_tail.compare("eq", 0)):
                f.call(f"panel{panel}", "void", *common, group)
        with f.each(first + n_whole, last) as group:
            f.call("panel1", "void", *common, group)


_PANEL = (
    ("args", "ptr"),
    ("scratch", "ptr"),
    ("a", "ptr"),
    ("lda", "i64"),
    ("b", "ptr"),
    ("c", "ptr"),
    ("residual", "ptr"),
    ("rows", "i64"),
    ("k", "i64"),
    ("n", "i64"),
    ("first", "i64"),
    ("last", "i64"),
    ("group", "i64"),
)


BlockSource = Callable[[Function, Value, Value, Value, Value, Value, Value], Value]
"""Returns the address of rows k .. k + n - 1 of a column group: (f, args, b, group, k, n, scratch)."""


def _write_panel(module: Module, groups: int, has_activation: bool, block: BlockSource) -> None:
    """`panel<groups>`: `rows` rows of C, `groups` column groups, rows k .. k + n - 1 of B.

    Only a panel of one group may extend past the last column: it is summed in scratch, then copied.
    """
    with module.function(f"panel{groups}", _PANEL, attributes="noinline", is_exported=False) as f:
        args, scratch, a, lda, b, c, residual, rows, k, n, first, last, group = f.params
        n_columns, depth, bias = f.fields(args, MatmulArgs, "n_columns", "depth", "bias")
        c_row, residual_row = f.fields(args, MatmulArgs, "c_row", "residual_row")
        spaces = [f.at(scratch, g * BLOCK_ROWS * COLUMNS) for g in range(groups)]
        blocks = [block(f, args, b, group + g, k, n, space) for g, space in enumerate(spaces)]
        null, zeros = f.const(0, "ptr"), f.table([0.0] * COLUMNS * groups, "float")
        column = group * COLUMNS
        is_first, is_last = k.compare("eq", 0), k + n >= depth
        bias_here = f.select(bias.compare("eq", 0), zeros, f.at(bias, column))
        residual_here = f.select(residual.compare("eq", 0), null, f.at(residual, column))
        c_here, ldc, ldr = f.at(c, column), c_row, residual_row
        if groups == 1:
            is_tail = column + COLUMNS > n_columns
            tail_bias = f.at(scratch, BLOCK_ROWS * COLUMNS * tiling(f.isa).panel)
            tail_c = f.at(tail_bias, COLUMNS)
            width = n_columns - column
            with f.when(is_tail & is_first):
                f.call("copy_columns", "void", bias_here, ldr, f.const(1), width, tail_bias, f.const(COLUMNS))
                with f.when(residual_here.compare("ne", 0)):
                    f.call("copy_columns", "void", residual_here, ldr, rows, width, tail_c, f.const(COLUMNS))
            bias_here = f.select(is_tail, tail_bias, bias_here)
            residual_here = f.select(is_tail & residual_here.compare("ne", 0), tail_c, residual_here)
            c_here = f.select(is_tail, tail_c, c_here)
            ldc = f.select(is_tail, f.const(COLUMNS), ldc)
            ldr = f.select(is_tail, f.const(COLUMNS), ldr)
        start = f.select(is_first, bias_here, zeros)
        added = f.select(is_first, residual_here, c_here)
        added_stride = f.select(is_first, ldr, ldc)
        next_group = f.select(group + groups < last, group + groups, f.select(is_last, last, first))
        next_row = f.select(group + groups < last, k, f.select(is_last, f.const(0), k + n))
        next_block = f.at(b, (next_group * depth + next_row) * COLUMNS)

        top = TileArgs(a, lda, tuple(blocks), c_here, ldc, start, added, added_stride, n)

        def at(row: Value) -> TileArgs:
            if block is not provide_block:
                return top.down(f, row)
            return replace(top.down(f, row), ahead=f.at(next_block, row // tiling(f.isa).rows * n))

        def after(tile: TileArgs, tile_rows: int) -> None:
            if has_activation:
                with f.when(is_last):
                    shape = f.const(tile_rows), f.const(groups * COLUMNS)
                    f.call("activate", "void", tile.c, ldc, *shape)

        call_rows(f, rows, at, after)
        if groups == 1:
            with f.when(is_tail & is_last):
                f.call("copy_columns", "void", tail_c, ldc, rows, width, f.at(c, column), c_row)
        f.ret()


def _decode_block(
    f: Function, args: Value, b: Value, group: Value, k: Value, n: Value, space: Value
) -> Value:
    """The same for a coded B, whose rows are in groups."""
    coded = f.at(args, MatmulCodedArgs.coded.offset, "i8")
    block = f.call("block", "ptr", coded, group, k, (n + (GROUP_ROWS - 1)) & -GROUP_ROWS, space)
    assert block is not None
    return block


def _scale_block(f: Function, args: Value, b: Value, group: Value, k: Value, n: Value, space: Value) -> Value:
    """The same for a B of another type, with scales."""
    f.call("scaled_block", "void", args, b, group, k, n, space)
    return space


def write_activate(module: Module, function: ActivationFunction) -> None:
    """`activate(c, ldc, rows, columns)`: in place, over a tile that is still in L1."""
    params = [("c", "ptr"), ("ldc", "i64"), ("rows", "i64"), ("columns", "i64")]
    with module.function("activate", params, attributes="noinline", is_exported=False) as f:
        c, ldc, rows, columns = f.params
        with f.each(0, rows) as row, f.each(0, columns, f.lanes) as column:
            p = f.at(c, row * ldc + column)
            # Opaque, else LLVM turns relu in place into a masked store, ten times slower on some CPUs.
            f.store(function(f, f.black_box(f.load(p, f.vec))), p)
        f.ret()
