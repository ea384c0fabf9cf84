"""A few rows of A times column groups: weights are decoded in registers and not stored.

Column groups are read one after the other, so that every plane is one stream: a few rows are limited by
memory. Weights decoded once are multiplied with up to four rows; more rows read a column group again from the
caches. With products of bfloat16 pairs (centroids are bfloat16), each value of a single row is the sum of two
(split_row.py): half the instructions, at a relative error of 2e-6 per product. More rows share the conversion
of weights to float32, which then takes fewer instructions.

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
_KEYS = 8  # a form and up to four rows as one number
_PARAMS = (
    ("desc", "ptr"),
    ("group", "i64"),
    ("count", "i64"),
    ("x", "ptr"),
    ("lda", "i64"),
    ("c", "ptr"),
    ("ldc", "i64"),
    ("n_rows", "i64"),
)


def most_rows(isa: Isa) -> int:
    """The most rows that are multiplied as weights are decoded; more are as fast through scratch.

    It is 0 for ISAs without table lookups in registers. With 16 registers, decoding leaves too few for the
    sums of several rows.
    """
    match isa.name:
        case "avx512":
            return 8 if isa.has_byte_permute else 4
        case "avx2":
            return 1
        case _:
            return 0


def _heights(isa: Isa) -> list[int]:
    """The numbers of rows that are multiplied with weights decoded once."""
    return [rows for rows in (1, 2, 4) if rows <= most_rows(isa)]


def write_row(module: Module) -> None:
    """Define `row(args, first column group, last, scratch)`: a few rows of C, without activation."""
    for bits in _FORMS:
        for rows in _heights(module.isa):
            if rows == 1 and bits <= 6 and _splits(module.isa):
                _write_dots(module, bits)
            else:
                _write_sum(module, bits, rows)
    _write_sparse(module)
    params = (("args", "ptr"), ("first", "i64"), ("last", "i64"), ("scratch", "ptr"))
    with module.function("row", params, attributes="noinline", is_exported=False) as f:
        _write_row(f)
        f.ret()


def _write_row(f: Function) -> None:
    args, first, last, scratch = f.params
    a, n_rows, segment_rows, n_segments = f.fields(
        args, GemmArgs, "a", "n_rows", "segment_rows", "n_segments"
    )
    _write_start(f, args, first, last)
    with f.each(0, n_segments) as s:
        x = f.at(a, s * segment_rows)
        if _splits(f.isa):
            with f.when(n_rows.compare("eq", 1)):
                split_row(f, x, f.least(segment_rows, _MOST_ROWS), scratch)
        with f.each(first, last) as group:
            _write_group(f, group, s, x, scratch)


def _write_group(f: Function, group: Value, s: Value, x: Value, split: Value) -> None:
    """Add the products of segment `s` of a column group."""
    args = f.params[0]
    lda, c, ldc, n_rows = f.fields(args, GemmArgs, "lda", "c", "ldc", "n_rows")
    segment_rows, per_slice = f.fields(args, GemmArgs, "segment_rows", "column_groups_per_slice")
    desc, first_group, first_column = locate_slice(f, args, group // per_slice + s)
    local, groups = group % per_slice, segment_rows >> 5
    base = first_group + local * groups
    (bits,) = f.fields(desc, SliceDesc, "bits")
    heights, is_single = _heights(f.isa), n_rows.compare("eq", 1)
    with f.each(0, n_rows, heights[-1]) as row:
        n = f.least(n_rows - row, heights[-1])
        x_here, to = f.at(x, row * lda), f.at(c, row * ldc + group * COLUMNS)

        def add(form: int, rows: int) -> None:
            values = split if rows == 1 and form <= 6 and _splits(f.isa) else x_here
            f.call(f"row{form}_{rows}", "void", desc, base, groups, values, lda, to, ldc, n)

        def add_floats(rows: int) -> None:
            (full,) = f.fields(desc, SliceDesc, "full")
            b = f.at(full, base * (GROUP_ROWS * COLUMNS))
            zeros = f.table([0.0] * COLUMNS, "float")
            call_tile(f, rows, TileArgs(x_here, lda, (b,), to, ldc, zeros, to, ldc, segment_rows))

        rows = f.select(is_single, n, f.select(n <= 2, f.const(2), f.const(4)))
        cases: dict[int, Callable[[], None]] = {
            form * _KEYS + height: partial(add, form, height) for form in _FORMS for height in heights
        }
        floats = {F32 * _KEYS + m: partial(add_floats, m) for m in range(1, heights[-1] + 1)}
        key = bits * _KEYS + f.select(bits.compare("eq", F32), n, rows)
        f.match(key, {**cases, **floats})
        with f.when(bits <= 6):
            f.call("sparse", "void", desc, first_column + local, x_here, lda, to, ldc, n)


def _write_start(f: Function, args: Value, first: Value, last: Value) -> None:
    """C starts as bias + residual."""
    names = ("c", "ldc", "n_rows", "bias", "residual", "ldr")
    c, ldc, n_rows, bias, residual, ldr = f.fields(args, GemmArgs, *names)
    zeros = f.table([0.0] * COLUMNS, "float")
    with f.each(first, last) as group, f.each(0, n_rows) as row:
        column = group * COLUMNS
        bias_here = f.select(bias.compare("eq", 0), zeros, f.at(bias, column))
        residual_here = f.select(residual.compare("eq", 0), zeros, f.at(residual, row * ldr + column))
        for v in range(0, COLUMNS, f.lanes):
            start = f.load(f.at(bias_here, v), f.vec) + f.load(f.at(residual_here, v), f.vec)
            f.store(start, f.at(c, row * ldc + column + v))


def _write_sum(module: Module, bits: int, rows: int) -> None:
    """`row<bits>_<rows>`: c[row, 0..15] += x @ the groups from `group` on, for up to `rows` rows.

    The last row is computed again in place of each that there is not: each has the same result.
    """
    with module.function(f"row{bits}_{rows}", _PARAMS, attributes="noinline", is_exported=False) as f:
        desc, group, count, x, lda, c, ldc, n_rows = f.params
        read = _planes(f, desc, bits, group) if bits <= 6 else _full(f, desc, bits, group)
        places = [f.least(n_rows - 1, row) for row in range(rows)] if rows > 1 else [f.const(0)]
        at = [(f.at(x, i * lda), f.at(c, i * ldc)) for i in places]
        together = min(rows, _chains(f.isa, bits))
        for first in range(0, rows, together):
            with f.each(0, COLUMNS, f.lanes) as column:
                _sum_rows(f, bits, (read, column, count), at[first : first + together])
        f.ret()


def _sum_rows(
    f: Function, bits: int, weights_of: tuple["RowReader", Value, Value], at: Sequence[tuple[Value, Value]]
) -> None:
    """Add the products of the rows whose (x, c) are at `at` with (a reader, its column, its groups)."""
    read, column, count = weights_of
    rows = len(at)
    to = [f.at(c, column) for _, c in at]
    chains = max(1, _chains(f.isa, bits) // rows)
    zeros = [f.const(0.0, f.vec)] * (rows * (chains - 1))
    is_pinned = rows > 1 or not f.isa.has_byte_permute
    with f.loop(0, count, 1, carry=[f.load(p, f.vec) for p in to] + zeros) as loop:
        sums = list(loop.carried)
        x_here = [f.at(x, loop.index * GROUP_ROWS) for x, _ in at]
        chain = cycle(range(chains))

        def emit(row: int, weights: Value) -> None:
            first = next(chain) * rows
            for n, x in enumerate(x_here, first):
                sums[n] = f.fma(f.splat(f.load(f.at(x, row))), weights, sums[n])
                if is_pinned:  # else weights of many rows are decoded before the first is multiplied
                    (sums[n],) = f.pin([sums[n]])

        read(loop.index, column, emit)
        loop.carry(sums)
    for n, p in enumerate(to):
        f.store(_total(loop.carried[n::rows]), p)


def _write_dots(module: Module, bits: int) -> None:
    """`row<bits>_1` for a split row: the products of the remainders are summed separately."""
    with module.function(f"row{bits}_1", _PARAMS, attributes="noinline", is_exported=False) as f:
        desc, group, count, split, _, c, _, _ = f.params
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
    """`sparse(slice, column group, x, lda, c, ldc, rows)`: adds outliers minus the values decoded in their
    places.
    """
    params = (("desc", "ptr"), ("group", "i64"), *_PARAMS[3:])
    with module.function("sparse", params, attributes="noinline", is_exported=False) as f:
        desc, group, x, lda, c, ldc, n_rows = f.params
        names = ("table", "outlier_rows", "outlier_offsets", "outlier_values")
        table, starts, offsets, values = f.fields(desc, SliceDesc, *names)
        placed = first_centroid(f, table)
        ends = [f.load(f.at(starts, g, "i32"), "i32") for g in (group, group + 1)]
        begin, end = (f.cast("zext", i, "i64") for i in ends)
        with f.each(begin, end) as i:
            offset = f.cast("zext", f.load(f.at(offsets, i, "i16"), "i16"), "i64")
            by = f.load(f.at(values, i)) - placed
            factors, sums = f.at(x, offset >> 4), f.at(c, offset & (COLUMNS - 1))
            with f.each(0, n_rows) as row:
                to = f.at(sums, row * ldc)
                f.store(f.fma(f.load(f.at(factors, row * lda)), by, f.load(to)), to)
        f.ret()
