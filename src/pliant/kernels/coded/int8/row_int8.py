"""One row of the int8 GEMM: codes are decoded to bytes in registers and multiplied there, without storing
them.

A single row is limited by memory, so it reads only the planes, once. Outliers are not part of the decoded
sum, as planes hold code 0 in their places: a sparse pass adds their difference from it.
"""

from functools import partial, reduce
from operator import add

from pliant.kernels.coded.decode import decode_quads
from pliant.kernels.coded.fill import GROUP_ROWS, locate_planes, locate_slice, prefetch_streams
from pliant.kernels.coded.gemm_args import GemmArgs, SliceDesc
from pliant.kernels.coded.int8.fill_int8 import clip_to_steps, read_outlier_place, read_outliers
from pliant.kernels.coded.int8_form import int8_form
from pliant.kernels.coded.tile import COLUMNS
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value, vector
from pliant.kernels.product.integer_dots import add_quads, left_is_signed

_CHAINS = 4  # chains of products, and as many of sums
_WORDS = GROUP_ROWS // 4
_PLANES = range(1, 7)
_PARAMS = (("desc", "ptr"), ("group", "i64"), ("count", "i64"), ("x", "ptr"), ("to", "ptr"))


def has_row_int8(isa: Isa) -> bool:
    """Whether codes are decoded to bytes in few instructions; otherwise decoding spills registers, and
    scratch is as fast.
    """
    return isa.has_byte_permute and not isa.is_portable


def write_row_int8(module: Module) -> None:
    """Define `row8(args, column group, step, zero point, to)` and `is_coded(args, column group) -> i64`.

    to[0..15] are the products of the row with a column group in integers, to[16..31] the columns' sums, both
    i32 and without outliers, then to[32..47] float32 are the steps that outliers add.
    """
    for bits in _PLANES:
        _write_sum(module, bits)
    _write_sparse(module)
    params = (("args", "ptr"), ("column_group", "i64"), ("step", "float"), ("zero", "i32"), ("to", "ptr"))
    with module.function("row8", params, attributes="noinline", is_exported=False) as f:
        _write_row(f)
        f.ret()
    with module.function("is_coded", params[:2], "i64", attributes="noinline", is_exported=False) as f:
        f.ret(_is_coded(f))


def _write_row(f: Function) -> None:
    args, column_group, step, zero, to = f.params
    (a,) = f.fields(args, GemmArgs, "a")
    names = ("segment_rows", "n_segments", "column_groups_per_slice")
    segment_rows, n_segments, per_slice = f.fields(args, GemmArgs, *names)
    for v in range(0, 3 * COLUMNS, f.lanes):
        f.store(f.const(0, vector(f.lanes, "i32")), f.at(to, v, "i32"))
    count = segment_rows >> 5
    with f.each(0, n_segments) as s:
        desc, first_group, first_column = locate_slice(f, args, column_group // per_slice + s)
        local = column_group % per_slice
        x = f.at(a, s * segment_rows, "i8")
        (bits, outlier_rows) = f.fields(desc, SliceDesc, "bits", "outlier_rows")

        def multiply(n: int) -> None:
            f.call(f"row8_{n}", "void", desc, first_group + local * count, count, x, to)

        f.match(bits, {n: partial(multiply, n) for n in _PLANES})
        with f.when(outlier_rows.compare("ne", 0)):
            f.call("sparse8", "void", desc, first_column + local, x, step, zero, f.at(to, 2 * COLUMNS))


def _is_coded(f: Function) -> Value:
    """Whether all segments of a column group are in codes."""
    args, column_group = f.params
    n_segments, per_slice = f.fields(args, GemmArgs, "n_segments", "column_groups_per_slice")
    with f.loop(0, n_segments, carry=[f.const(1)]) as loop:
        desc, _, _ = locate_slice(f, args, column_group // per_slice + loop.index)
        (bits,) = f.fields(desc, SliceDesc, "bits")
        loop.carry([f.select(bits <= 6, loop.carried[0], f.const(0))])
    return loop.carried[0]


def _write_sum(module: Module, bits: int) -> None:
    """`row8_<bits>`: to[0..15] += x @ the groups from `group` on, to[16..31] += their sums."""
    with module.function(f"row8_{bits}", _PARAMS, attributes="noinline", is_exported=False) as f:
        desc, group, count, x, to = f.params
        table, planes = locate_planes(f, desc, bits, group)
        integers = vector(f.lanes, "i32")
        ones, zero = f.const(0x01010101, integers), f.const(0, integers)
        with f.each(0, COLUMNS, f.lanes) as column:
            here = f.at(to, column, "i32")
            sums_here = f.at(here, COLUMNS, "i32")
            begin = [f.load(here, integers), *[zero] * (_CHAINS - 1)]
            begin += [f.load(sums_here, integers), *[zero] * (_CHAINS - 1)]
            with f.loop(0, count, carry=begin) as loop:
                totals = list(loop.carried)
                at = [f.at(p, loop.index * COLUMNS + column, "i32") for p in planes]
                prefetch_streams(f, at)
                words = f.at(x, loop.index * _WORDS, "i32")

                def emit(w: int, weights: Value) -> None:
                    four = f.splat(f.load(f.at(words, w, "i32"), "i32"))
                    n, m = w % _CHAINS, _CHAINS + w % _CHAINS
                    totals[n] = add_quads(f, totals[n], four, weights)
                    totals[m] = add_quads(f, totals[m], ones, weights)

                decode_quads(f, at, table, emit)
                loop.carry(totals)
            f.store(reduce(add, loop.carried[:_CHAINS]), here)
            f.store(reduce(add, loop.carried[_CHAINS:]), sums_here)
        f.ret()


def _write_sparse(module: Module) -> None:
    """`sparse8(slice, column group, x, step, zero, to)`: writes the steps that outliers add to 16 columns."""
    params = (
        ("desc", "ptr"),
        ("group", "i64"),
        ("x", "ptr"),
        ("step", "float"),
        ("zero", "i32"),
        ("to", "ptr"),
    )
    with module.function("sparse8", params, attributes="noinline", is_exported=False) as f:
        desc, group, x, step, zero, to = f.params
        (table,) = f.fields(desc, SliceDesc, "table")
        placed = f.cast("sitofp", f.cast("sext", f.load(table, "i8"), "i32"), "float")
        steps = f.const(1.0, "float") / step
        most = f.const(float(int8_form(f.isa).weight), "float")
        begin, end, offsets, values = read_outliers(f, desc, group)
        with f.each(begin, end) as i:
            value = f.load(f.at(values, i))
            row, column = read_outlier_place(f, offsets, i)
            scaled = value * steps
            is_beyond = (scaled > most) | (scaled < -most)
            whole = f.cast("sitofp", clip_to_steps(f, value, steps, most), "float")
            by = f.select(is_beyond, scaled, whole) - placed
            byte = f.load(f.at(x, row, "i8"), "i8")
            q = f.cast("sext" if left_is_signed(f.isa) else "zext", byte, "i32") - zero
            here = f.at(to, column)
            f.store(f.fma(f.cast("sitofp", q, "float"), by, f.load(here)), here)
        f.ret()
