"""A unit of a float32 matrix product: which rows and column groups of which batch index it multiplies."""

from dataclasses import dataclass

from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.values import Value
from pliant.kernels.product.matmul_args import COLUMNS, MAX_BATCH_DIMS, MatmulArgs


@dataclass(frozen=True, slots=True)
class UnitPlace:
    """Column groups first..last-1 of `rows` rows; a, c, the residual (or null) start there, b as a whole."""

    depth: Value
    rows: Value
    first: Value
    last: Value
    a: Value
    a_row: Value
    a_column: Value
    b: Value
    c: Value
    c_row: Value
    residual: Value
    residual_row: Value


def locate_unit(f: Function, unit: Value) -> UnitPlace:
    """The place of a unit of the kernel's product, with MatmulArgs."""
    args = f.params[0]
    n_rows, n_columns, depth = f.fields(args, MatmulArgs, "n_rows", "n_columns", "depth")
    row_block, per_unit = f.fields(args, MatmulArgs, "row_block", "panel")
    n_groups = divide_up(n_columns, COLUMNS)
    n_panels = (n_groups + per_unit - 1) // per_unit
    n_blocks = (n_rows + row_block - 1) // row_block
    batch, rest = unit // (n_panels * n_blocks), unit % (n_panels * n_blocks)
    row = rest // n_panels * row_block
    first = rest % n_panels * per_unit
    last = f.least(first + per_unit, n_groups)
    rows = f.least(n_rows - row, row_block)
    a, b, c, residual = _batch_pointers(f, args, batch)
    a_row, a_column, c_row, residual_row = f.fields(
        args, MatmulArgs, "a_row", "a_column", "c_row", "residual_row"
    )
    null = f.const(0, "ptr")
    a, c = f.at(a, row * a_row), f.at(c, row * c_row)
    residual = f.select(residual.compare("eq", 0), null, f.at(residual, row * residual_row))
    return UnitPlace(depth, rows, first, last, a, a_row, a_column, b, c, c_row, residual, residual_row)


def divide_up(x: Value, by: Value | int) -> Value:
    """x divided by `by`, rounded up."""
    return (x + by - 1) // by


def _batch_pointers(f: Function, args: Value, batch: Value) -> list[Value]:
    """A, B, C and the residual (null if there is none) of a batch index."""
    pointers = f.fields(args, MatmulArgs, "a", "b", "c", "residual")
    names = ("a_batch", "b_batch", "c_batch", "residual_batch")
    offsets = [f.const(0)] * len(names)
    left = batch
    for d in reversed(range(MAX_BATCH_DIMS)):
        extent = _element(f, args, "extents", d)
        index = left % extent
        left = left // extent
        offsets = [o + index * _element(f, args, name, d) for o, name in zip(offsets, names, strict=True)]
    a, b, c = (f.at(p, o) for p, o in zip(pointers[:3], offsets[:3], strict=True))
    residual = pointers[3]
    return [a, b, c, f.select(residual.compare("eq", 0), residual, f.at(residual, offsets[3]))]


def _element(f: Function, args: Value, field: str, i: int) -> Value:
    return f.load(f.at(args, getattr(MatmulArgs, field).offset + 8 * i, "i8"), "i64")
