"""One row of A times column groups: weights are decoded in registers and not stored.

Column groups are read one after the other, so that every plane is one stream: a row is limited by memory.
With products of bfloat16 pairs (centroids are bfloat16), each value of the row is the sum of two
(split_row.py): half the instructions, at a relative error of 2e-6 per product.

Outliers are not part of the decoded sum: planes hold code 0 where a weight is an outlier, so a second, sparse
pass adds x * (value - centroid of code 0) for each.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle

from pliant.kernels.coded.decode import WeightSink, decode_bfloats, decode_columns, first_centroid
from pliant.kernels.coded.fill import GROUP_ROWS, locate_planes, locate_slice, prefetch_streams, upcast
from pliant.kernels.coded.gemm_args import BF16, F16, F32, GemmArgs, SliceDesc
from pliant.kernels.coded.split_row import add_products, split_row
from pliant.kernels.coded.tile import COLUMNS, TileArgs, call_tile
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value, vector

_DOT_CHAINS = 8
_MOST_ROWS = 4096  # rows of a segment in codes
_FORMS = (1, 2, 3, 4, 5, 6, F16, BF16)
_PARAMS = (
    ("desc", "ptr"),
    ("group", "i64"),
    ("count", "i64"),
    ("x", "ptr"),
    ("c", "ptr"),
)


def has_row_form(isa: Isa) -> bool:
    """Whether the ISA has table lookups in registers; without them, scratch is as fast."""
    return isa.name not in ("x86-64", "neon")


def write_row(module: Module) -> None:
    """Define `row(args, first column group, last, scratch)`: one row of C, without activation."""
    for bits in _FORMS:
        (_write_dots if bits <= 6 and _splits(module.isa) else _write_sum)(module, bits)
    _write_sparse(module)
    params = (("args", "ptr"), ("first", "i64"), ("last", "i64"), ("scratch", "ptr"))
    with module.function("row", params, attributes="noinline", is_exported=False) as f:
        _write_row(f)
        f.ret()


def _write_row(f: Function) -> None:
    args, first, last, scratch = f.params
    a, segment_rows, n_segments = f.fields(args, GemmArgs, "a", "segment_rows", "n_segments")
    _write_start(f, args, first, last)
    with f.each(0, n_segments) as s:
        x = f.at(a, s * segment_rows)
        if _splits(f.isa):
            split_row(f, x, f.least(segment_rows, _MOST_ROWS), scratch)
        with f.each(first, last) as group:
            _write_group(f, group, s, x, scratch)


def _write_group(f: Function, group: Value, s: Value, x: Value, split: Value) -> None:
    """Add the products of segment `s` of a column group."""
    args = f.params[0]
    (c,) = f.fields(args, GemmArgs, "c")
    segment_rows, per_slice = f.fields(args, GemmArgs, "segment_rows", "column_groups_per_slice")
    desc, first_group, first_column = locate_slice(f, args, group // per_slice + s)
    local, groups = group % per_slice, segment_rows >> 5
    base = first_group + local * groups
    to = f.at(c, group * COLUMNS)
    (bits,) = f.fields(desc, SliceDesc, "bits")

    def add(form: int) -> None:
        values = split if form <= 6 and _splits(f.isa) else x
        f.call(f"row{form}", "void", desc, base, groups, values, to)

    def add_floats() -> None:
        (full,) = f.fields(desc, SliceDesc, "full")
        b = f.at(full, base * (GROUP_ROWS * COLUMNS))
        none, zeros = f.const(0), f.table([0.0] * COLUMNS, "float")
        call_tile(f, 1, TileArgs(x, none, (b,), to, none, zeros, to, none, segment_rows))

    cases: dict[int, Callable[[], None]] = {form: partial(add, form) for form in _FORMS}
    f.match(bits, {**cases, F32: add_floats})
    with f.when(bits <= 6):
        f.call("sparse", "void", desc, first_column + local, x, to)


def _write_start(f: Function, args: Value, first: Value, last: Value) -> None:
    """C starts as bias + residual."""
    c, bias, residual = f.fields(args, GemmArgs, "c", "bias", "residual")
    zeros = f.table([0.0] * COLUMNS, "float")
    with f.each(first, last) as group:
        column = group * COLUMNS
        bias_here = f.select(bias.compare("eq", 0), zeros, f.at(bias, column))
        residual_here = f.select(residual.compare("eq", 0), zeros, f.at(residual, column))
        for v in range(0, COLUMNS, f.lanes):
            start = f.load(f.at(bias_here, v), f.vec) + f.load(f.at(residual_here, v), f.vec)
            f.store(start, f.at(c, column + v))


def _write_sum(module: Module, bits: int) -> None:
    """`row<bits>`: c[0..15] += x @ the groups from `group` on."""
    with module.function(f"row{bits}", _PARAMS, attributes="noinline", is_exported=False) as f:
        desc, group, count, x, c = f.params
        read = _planes(f, desc, bits, group) if bits <= 6 else _full(f, desc, bits, group)
        with f.each(0, COLUMNS, f.lanes) as column:
            to = f.at(c, column)
            zero, chains = f.const(0.0, f.vec), _chains(f.isa, bits)
            is_pinned = f.isa.name in ("avx2", "avx512") and not f.isa.has_byte_permute
            with f.loop(0, count, 1, carry=[f.load(to, f.vec)] + [zero] * (chains - 1)) as loop:
                sums = list(loop.carried)
                x_here = f.at(x, loop.index * GROUP_ROWS)
                chain = cycle(range(chains))

                def emit(row: int, weights: Value) -> None:
                    n = next(chain)
                    sums[n] = f.fma(f.splat(f.load(f.at(x_here, row))), weights, sums[n])
                    if is_pinned:  # else weights of many rows are decoded before the first is multiplied
                        (sums[n],) = f.pin([sums[n]])

                read(loop.index, column, emit)
                loop.carry(sums)
            f.store(_total(loop.carried), to)
        f.ret()


def _write_dots(module: Module, bits: int) -> None:
    """As `_write_sum`, for a split row: the products of the remainders are summed separately."""
    with module.function(f"row{bits}", _PARAMS, attributes="noinline", is_exported=False) as f:
        desc, group, count, split, c = f.params
        table, planes = locate_planes(f, desc, bits, group)
        half = _DOT_CHAINS // 2
        begin = [f.load(c, f.vec), *[f.const(0.0, f.vec)] * (_DOT_CHAINS - 1)]
        with f.loop(0, count, 1, carry=begin) as loop:
            sums = list(loop.carried)
            here = [f.at(p, loop.index * COLUMNS, "i32") for p in planes]
            prefetch_streams(f, here, is_far=False)
            x, chain = f.at(split, loop.index * GROUP_ROWS, "i32"), cycle(range(half))

            def emit(row: int, weights: Value) -> None:
                n = next(chain)
                sums[n], sums[half + n] = add_products(f, x, row, weights, (sums[n], sums[half + n]))

            decode_bfloats(f, here, table, emit)
            loop.carry(sums)
        f.store(_total(loop.carried), c)
        f.ret()


def _splits(isa: Isa) -> bool:
    """Whether the row is multiplied as pairs of bfloat16, with weights decoded in pairs."""
    return isa.has_bf16 and isa.has_byte_permute


def _chains(isa: Isa, bits: int) -> int:
    """The number of sums that hide the latency of additions, limited by the registers that decoding
    leaves.
    """
    return 2 if isa.name == "avx2" and bits in (5, 6) else isa.registers // 4


def _total(sums: Sequence[Value]) -> Value:
    while len(sums) > 1:
        sums = [a + b for a, b in zip(sums[::2], sums[1::2], strict=False)] + list(sums[len(sums) & ~1 :])
    return sums[0]


RowReader = Callable[[Value, Value, WeightSink], None]
"""Passes the rows of group g, columns from `column` on, to `emit`."""


def _planes(f: Function, desc: Value, bits: int, group: Value) -> RowReader:
    table, planes = locate_planes(f, desc, bits, group)

    def read(g: Value, column: Value, emit: WeightSink) -> None:
        here = [f.at(p, g * COLUMNS + column, "i32") for p in planes]
        prefetch_streams(f, here)
        decode_columns(f, here, table, emit)

    return read


def _full(f: Function, desc: Value, bits: int, group: Value) -> RowReader:
    (full,) = f.fields(desc, SliceDesc, "full")
    source = f.at(full, group * (GROUP_ROWS * COLUMNS), "i16")

    def read(g: Value, column: Value, emit: WeightSink) -> None:
        here = f.at(source, g * (GROUP_ROWS * COLUMNS) + column, "i16")
        for row in range(GROUP_ROWS):
            raw = f.load(f.at(here, row * COLUMNS, "i16"), vector(f.lanes, "i16"))
            emit(row, upcast(f, raw, bits))

    return read


def _write_sparse(module: Module) -> None:
    """`sparse(slice, column group, x, c)`: adds outliers minus the values decoded in their places."""
    params = (("desc", "ptr"), ("group", "i64"), ("x", "ptr"), ("c", "ptr"))
    with module.function("sparse", params, attributes="noinline", is_exported=False) as f:
        desc, group, x, c = f.params
        names = ("table", "outlier_rows", "outlier_offsets", "outlier_values")
        table, starts, offsets, values = f.fields(desc, SliceDesc, *names)
        placed = first_centroid(f, table)
        ends = [f.load(f.at(starts, g, "i32"), "i32") for g in (group, group + 1)]
        begin, end = (f.cast("zext", i, "i64") for i in ends)
        with f.each(begin, end) as i:
            offset = f.cast("zext", f.load(f.at(offsets, i, "i16"), "i16"), "i64")
            to = f.at(c, offset & (COLUMNS - 1))
            by = f.load(f.at(values, i)) - placed
            f.store(f.fma(f.load(f.at(x, offset >> 4)), by, f.load(to)), to)
        f.ret()
