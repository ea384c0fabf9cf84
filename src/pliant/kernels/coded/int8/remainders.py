"""Add the remainders of outliers beyond the most steps of the int8 GEMM to C, in float32.

They are few, so a panel's remainders are listed first, and added to each tile's rows while those are in L1.
If there are more than the list holds, or rows use AMX tiles, they are added to all rows at the end. Both ways
add in the same order and give the same numbers.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from pliant.kernels.coded.fill import locate_slice
from pliant.kernels.coded.gemm_args import GemmArgs, SliceDesc
from pliant.kernels.coded.int8.fill_int8 import (
    clip_to_steps,
    has_remainder,
    most_steps,
    read_outlier_place,
    read_outliers,
)
from pliant.kernels.coded.int8.tile_int8 import tile_shape
from pliant.kernels.coded.int8_form import int8_form
from pliant.kernels.coded.tile import COLUMNS
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.values import Value
from pliant.kernels.product.integer_dots import left_is_signed
from pliant.kernels.tiles.tile_rows import takes_tiles

MAX_REMAINDERS = 64
"""The most remainders in a list: a panel of 48 columns and 3072 rows has four on average."""


class _Remainder(ctypes.Structure):
    """A remainder: its row of K, its column in the panel, its value."""

    _fields_ = (("k", ctypes.c_int64), ("column", ctypes.c_int32), ("by", ctypes.c_float))


def allocate_list(f: Function) -> Value:
    """Memory for a list; must be emitted in a function's first block."""
    return f.op(f"alloca [{MAX_REMAINDERS * ctypes.sizeof(_Remainder)} x i8], align 8", "ptr")


def write_remainders(module: Module) -> None:
    """Define `remainders`, `list_remainders` and `add_listed`."""
    _write_remainders(module)
    _write_list(module)
    _write_add_listed(module)


def list_remainders(f: Function, group: Value, groups: int, steps: Value, to: Value) -> None:
    """List those of `groups` column groups from `group` on: there must be at most MOST_LISTED."""
    here = to
    for g in range(groups):
        column = f.const(g * COLUMNS, "i32")
        n = f.call("list_remainders", "i64", f.params[0], group + g, column, steps, here)
        assert n is not None
        here = f.at(here, n * ctypes.sizeof(_Remainder), "i8")


def _write_remainders(module: Module) -> None:
    """`remainders(args, a, scales, rows, column group, steps, c, ldc)`.

    c[row, 0..15] += A times the remainders of outliers, for rows of packed A from `a` on.
    """
    params = [("args", "ptr"), ("a", "ptr"), ("a_scales", "ptr"), ("n_rows", "i64")]
    params += [("column_group", "i64"), ("steps", "float"), ("c", "ptr"), ("ldc", "i64")]
    with module.function("remainders", params, attributes="noinline", is_exported=False) as f:
        args, _, _, _, column_group, steps, _, _ = f.params
        segment_rows, n_segments = f.fields(args, GemmArgs, "segment_rows", "n_segments")
        words = segment_rows * n_segments // int8_form(f.isa).packing
        with _each(f, args, column_group, steps) as (k, column, by):
            _add_to_all(f, words, k, column, by)
        f.ret()


def _write_list(module: Module) -> None:
    """`list_remainders(args, column group, its first column, steps, to) -> i64`: lists them and returns their
    number.
    """
    params = [("args", "ptr"), ("group", "i64"), ("column", "i32"), ("steps", "float"), ("to", "ptr")]
    with module.function("list_remainders", params, "i64", attributes="noinline", is_exported=False) as f:
        args, group, first, steps, to = f.params
        n = f.op("alloca i64", "ptr")
        f.store(f.const(0), n)
        with _each(f, args, group, steps) as (k, column, by):
            count = f.load(n, "i64")
            here = f.at(to, count * ctypes.sizeof(_Remainder), "i8")
            places = {"k": k, "column": f.cast("trunc", column, "i32") + first, "by": by}
            for name, value in places.items():
                f.store(value, f.at(here, getattr(_Remainder, name).offset, "i8"))
            f.store(count + 1, n)
        f.ret(f.load(n, "i64"))


def _write_add_listed(module: Module) -> None:
    """`add_listed(list, n, block of A, scales, rows, c, ldc)`: adds the listed remainders of a block's rows
    to c[row, 0..].
    """
    params = [("list", "ptr"), ("n", "i64"), ("a", "ptr"), ("a_scales", "ptr"), ("n_rows", "i64")]
    params += [("c", "ptr"), ("ldc", "i64")]
    with module.function("add_listed", params, attributes="noinline", is_exported=False) as f:
        listed, n, block, scales, n_rows, c, ldc = f.params
        with f.each(0, n) as i:
            here = f.at(listed, i * ctypes.sizeof(_Remainder), "i8")
            k, by = f.fields(here, _Remainder, "k", "by")
            column = f.load(f.at(here, _Remainder.column.offset, "i8"), "i32")
            to = f.at(c, f.cast("zext", column, "i64"))
            packing, element = _activations(f)
            first = f.at(block, k // packing * (n_rows * packing) + k % packing, element)
            with f.each(0, n_rows) as row:
                one = f.load(f.at(first, row * packing, element), element)
                _add(f, one, by, f.at(scales, row * 2), f.at(to, row * ldc))
        f.ret()


@contextmanager
def _each(
    f: Function, args: Value, column_group: Value, steps: Value
) -> Iterator[tuple[Value, Value, Value]]:
    """Emit a loop body for each (row of K, column of the group, remainder) of a column group."""
    names = ("segment_rows", "n_segments", "column_groups_per_slice")
    segment_rows, n_segments, per_slice = f.fields(args, GemmArgs, *names)
    step, most = f.const(1.0, "float") / steps, most_steps(f, args)
    with f.each(0, n_segments) as s:
        desc, _, first_column = locate_slice(f, args, column_group // per_slice + s)
        (outlier_rows,) = f.fields(desc, SliceDesc, "outlier_rows")
        with f.when(outlier_rows.compare("ne", 0)):
            begin, end, offsets, values = read_outliers(f, desc, first_column + column_group % per_slice)
            with f.each(begin, end) as i:
                value = f.load(f.at(values, i))
                with f.when(has_remainder(f, value, steps, most)):
                    row, column = read_outlier_place(f, offsets, i)
                    whole = f.cast("sitofp", clip_to_steps(f, value, steps, most), "float") * step
                    yield s * segment_rows + row, column, value - whole


def _add_to_all(f: Function, words: Value, k: Value, column: Value, by: Value) -> None:
    """Add one outlier's remainder to all rows: c[row, column] += by * A[row, k]."""
    _, a, a_scales, n_rows, _, _, c, ldc = f.params
    height, (packing, element) = tile_shape(f.isa).rows, _activations(f)
    to = f.at(c, column)

    def add(block: Value, in_block: Value, row: Value) -> None:
        place = (k // packing * in_block + row) * packing + k % packing
        one = f.load(f.at(f.at(a, block * words, "i32"), place, element), element)
        m = block + row
        _add(f, one, by, f.at(a_scales, m * 2), f.at(to, m * ldc))

    full = n_rows - n_rows % height
    if f.isa.has_tiles:
        # Rows that are not in blocks are blocks of one.
        (all_rows,) = f.fields(f.params[0], GemmArgs, "n_rows")
        is_by_rows = takes_tiles(all_rows, "int8")
        full = f.select(is_by_rows, f.const(0), full)
        with f.each(0, f.select(is_by_rows, n_rows, f.const(0))) as row:
            add(row, f.const(1), f.const(0))
        n_rows = f.select(is_by_rows, f.const(0), n_rows)
    with f.each(0, full, height) as block:
        for i in range(height):
            add(block, f.const(height), f.const(i))
    with f.each(0, n_rows - full) as row:
        add(full, n_rows - full, row)


def _activations(f: Function) -> tuple[int, str]:
    """(activations in a word of packed A, their type)."""
    packing = int8_form(f.isa).packing
    return packing, f"i{32 // packing}"


def _add(f: Function, one: Value, by: Value, scales: Value, to: Value) -> None:
    """One activation's product with a remainder."""
    is_signed = left_is_signed(f.isa) or not int8_form(f.isa).is_bytes
    integer = f.cast("sext" if is_signed else "zext", one, "i32")
    less = integer - f.load(f.at(scales, 1, "i32"), "i32")
    x = f.cast("sitofp", less, "float") * f.load(scales)
    f.store(f.fma(x, by, f.load(to)), to)
