"""A few rows of the int8 GEMM: codes are decoded to bytes in registers and multiplied there, without storing
them.

A few rows are limited by memory, so they read only the planes, once for all rows. Planes hold code 0 in the
places of outliers: a sparse pass adds their difference from it, in integers. So a row has the same numbers as
in a product of any number of rows.
"""

from functools import partial, reduce
from itertools import cycle
from operator import add, itemgetter

from pliant.kernels.coded.decode_bytes import load_plane, weave
from pliant.kernels.coded.decode_permute import permute_quad, quad_indices
from pliant.kernels.coded.fill import GROUP_ROWS, locate_planes, locate_slice, prefetch_streams
from pliant.kernels.coded.gemm_args import GemmArgs, SliceDesc
from pliant.kernels.coded.int8.fill_int8 import (
    clip_to_steps,
    has_remainder,
    read_outlier_place,
    read_outliers,
)
from pliant.kernels.coded.int8.tile_int8 import tile_shape
from pliant.kernels.coded.int8_form import int8_form
from pliant.kernels.coded.tile import COLUMNS
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value, vector
from pliant.kernels.product.integer_dots import add_quads, left_is_signed

_CHAINS = 8  # of products, which hide the latency of one
_MOST_CHAINS = 4  # of one row
_WORDS = GROUP_ROWS // 4
_MOST_PLANES = 6
_PARAMS = (
    ("desc", "ptr"),
    ("group", "i64"),
    ("count", "i64"),
    ("x", "ptr"),
    ("stride", "i64"),
    ("to", "ptr"),
)


def most_rows_int8(isa: Isa) -> int:
    """The most rows that are multiplied as codes are decoded: a block of packed rows.

    It is 0 where decoding to bytes takes many instructions: it spills registers, and scratch is as fast.
    """
    return tile_shape(isa).rows if isa.has_byte_permute and not isa.is_portable else 0


def write_row_int8(module: Module) -> None:
    """Define `row8(args, column group, steps, to) -> i64` and `is_coded(args, column group) -> i64`.

    to[0..15], i32, are the products of the first row with a column group, followed by those of the other
    rows. The result of `row8` is the number of outliers that have a remainder.
    """
    for rows in range(1, most_rows_int8(module.isa) + 1):
        _write_sum(module, rows)
    _write_sparse(module)
    params = (("args", "ptr"), ("column_group", "i64"), ("steps", "float"), ("to", "ptr"))
    with module.function("row8", params, "i64", attributes="noinline", is_exported=False) as f:
        f.ret(_write_rows(f))
    with module.function("is_coded", params[:2], "i64", attributes="noinline", is_exported=False) as f:
        f.ret(_is_coded(f))


def _write_rows(f: Function) -> Value:
    """Write products; returns the number of remainders."""
    args, column_group, steps, to = f.params
    a, n_rows = f.fields(args, GemmArgs, "a", "n_rows")
    names = ("segment_rows", "n_segments", "column_groups_per_slice")
    segment_rows, n_segments, per_slice = f.fields(args, GemmArgs, *names)
    count = segment_rows >> 5
    with f.each(0, n_rows * COLUMNS, f.lanes) as i:
        f.store(f.const(0, vector(f.lanes, "i32")), f.at(to, i, "i32"))
    with f.loop(0, n_segments, carry=[f.const(0)]) as loop:
        s = loop.index
        desc, first_group, first_column = locate_slice(f, args, column_group // per_slice + s)
        local = column_group % per_slice
        x = f.at(a, s * segment_rows * n_rows, "i8")
        (outlier_rows,) = f.fields(desc, SliceDesc, "outlier_rows")

        def multiply(rows: int) -> None:
            f.call(f"row8_{rows}", "void", desc, first_group + local * count, count, x, n_rows, to)

        f.match(n_rows, {rows: partial(multiply, rows) for rows in range(1, most_rows_int8(f.isa) + 1)})

        def patch() -> list[Value]:
            outliers = (desc, first_column + local, x, n_rows, steps, to)
            beyond = f.call("sparse8", "i64", *outliers)
            assert beyond is not None
            return [loop.carried[0] + beyond]

        loop.carry(f.choose(outlier_rows.compare("ne", 0), patch, lambda: loop.carried))
    return loop.carried[0]


def _is_coded(f: Function) -> Value:
    """Whether all segments of a column group are in codes."""
    args, column_group = f.params
    n_segments, per_slice = f.fields(args, GemmArgs, "n_segments", "column_groups_per_slice")
    with f.loop(0, n_segments, carry=[f.const(1)]) as loop:
        desc, _, _ = locate_slice(f, args, column_group // per_slice + loop.index)
        (bits,) = f.fields(desc, SliceDesc, "bits")
        loop.carry([f.select(bits <= 6, loop.carried[0], f.const(0))])
    return loop.carried[0]


def _write_sum(module: Module, rows: int) -> None:
    """`row8_<rows>`: to[0..15] of every row += x, whose words are `stride` apart, @ the groups from `group`
    on.

    The number of bits is a switch in its loop: a function for each takes LLVM twice as long.
    """
    with module.function(f"row8_{rows}", _PARAMS, attributes="noinline", is_exported=False) as f:
        desc, group, count, x, stride, to = f.params
        (bits,) = f.fields(desc, SliceDesc, "bits")
        table, planes = locate_planes(f, desc, _MOST_PLANES, group)
        integers = vector(f.lanes, "i32")
        zero = f.const(0, integers)
        chains = max(1, min(_MOST_CHAINS, _CHAINS // rows))
        with f.each(0, COLUMNS, f.lanes) as column:
            here = [f.at(to, column + row * COLUMNS, "i32") for row in range(rows)]
            begin = [f.load(at, integers) for at in here] + [zero] * ((chains - 1) * rows)
            with f.loop(0, count, carry=begin) as loop:
                totals = list(loop.carried)
                at = [f.at(p, loop.index * COLUMNS + column, "i32") for p in planes]
                words = f.at(x, loop.index * stride * _WORDS, "i32")
                chain = cycle(range(0, chains * rows, rows))
                for w, index in enumerate(_indices(f, bits, at)):
                    weights = permute_quad(f, w, index, table)
                    first, four_rows = next(chain), f.at(words, stride * w, "i32")
                    for row in range(rows):
                        four = f.splat(f.load(f.at(four_rows, row, "i32"), "i32"))
                        totals[first + row] = add_quads(f, totals[first + row], four, weights)
                loop.carry(totals)
            for i, address in enumerate(here):
                f.store(reduce(add, loop.carried[i::rows]), address)
        f.ret()


def _indices(f: Function, bits: Value, planes: list[Value], least: int = 1) -> list[Value]:
    """The indices of a group's eight words in the table, from as many planes as `bits` says: at least
    `least`, at most all."""

    def read() -> list[Value]:
        prefetch_streams(f, planes)
        words = [load_plane(f, p) for p in planes]
        return [index for _, index in sorted(quad_indices(f, words, weave(words)), key=itemgetter(0))]

    most = len(planes)
    if least == most:
        return read()
    middle = (least + most) // 2
    return f.choose(
        bits > middle,
        lambda: _indices(f, bits, planes, middle + 1),
        lambda: _indices(f, bits, planes[:middle], least),
    )


def _write_sparse(module: Module) -> None:
    """`sparse8(slice, column group, x, rows, steps, to) -> i64`: adds what outliers change in the products of
    every row, and returns the number of remainders.
    """
    params = [("desc", "ptr"), ("group", "i64"), ("x", "ptr"), ("n_rows", "i64")]
    params += [("steps", "float"), ("to", "ptr")]
    with module.function("sparse8", params, "i64", attributes="noinline", is_exported=False) as f:
        desc, group, x, n_rows, steps, to = f.params
        (table,) = f.fields(desc, SliceDesc, "table")
        placed = f.cast("sext", f.load(table, "i8"), "i32")
        most = f.const(float(int8_form(f.isa).weight), "float")
        begin, end, offsets, values = read_outliers(f, desc, group)
        with f.loop(begin, end, carry=[f.const(0)]) as loop:
            value = f.load(f.at(values, loop.index))
            k, column = read_outlier_place(f, offsets, loop.index)
            by = clip_to_steps(f, value, steps, most) - placed
            here = f.at(to, column, "i32")
            factors = f.at(x, (k >> 2) * n_rows, "i32")
            with f.each(0, n_rows) as row:
                byte = f.load(f.at(f.at(factors, row, "i32"), k & 3, "i8"), "i8")
                q = f.cast("sext" if left_is_signed(f.isa) else "zext", byte, "i32")
                _add(f, q * by, f.at(here, row * COLUMNS, "i32"))
            loop.carry([loop.carried[0] + f.cast("zext", has_remainder(f, value, steps, most), "i64")])
        f.ret(loop.carried[0])


def _add(f: Function, by: Value, to: Value) -> None:
    f.store(f.load(to, by.type) + by, to)
