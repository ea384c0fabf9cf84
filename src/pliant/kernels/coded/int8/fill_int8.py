"""Fill scratch with a column group of B in steps of int8: bytes [K/4][16][4], or int16 [K/2][16][2].

Weights have at most `int8_form(isa).most_steps` steps; outliers beyond that are counted here, and their
remainders are added to C in float32 (remainders.py).
"""

from functools import partial

from pliant.kernels.coded.decode import decode_pairs, decode_quads
from pliant.kernels.coded.fill import GROUP_ROWS, locate_planes, locate_slice, prefetch_next, upcast
from pliant.kernels.coded.gemm_args import BF16, F16, F32, GemmArgs, SliceDesc
from pliant.kernels.coded.int8_form import MOST_SUM, int8_form
from pliant.kernels.coded.tile import COLUMNS
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.values import Value, vector
from pliant.kernels.emit.vmath import magnitude

_FORMS = (1, 2, 3, 4, 5, 6, F16, BF16, F32)
_PARAMS = (
    ("desc", "ptr"),
    ("group", "i64"),
    ("count", "i64"),
    ("to", "ptr"),
    ("steps", "float"),  # int8 steps in 1.0
    ("most", "float"),  # of a weight
)
# Adding 1.5 * 2**23 leaves the nearest integer, ties to even, in the low bits.
_ROUNDER, _ROUNDER_BITS = 12582912.0, 0x4B400000


def write_fill_int8(module: Module) -> None:
    """Define `block8(args, column group, space, steps) -> i64`, which fills all of K, and the functions that
    it calls.

    `steps` is the number of steps in 1.0; the result is the number of outliers with a remainder.
    """
    for bits in _FORMS:
        with module.function(f"fill8_{bits}", _PARAMS, attributes="noinline", is_exported=False) as f:
            if bits <= 6:
                _write_decode(f, bits)
            else:
                _write_full(f, bits)
            f.ret()
    _write_patch(module)
    params = [("args", "ptr"), ("column_group", "i64"), ("space", "ptr"), ("steps", "float")]
    with module.function("block8", params, "i64", attributes="noinline", is_exported=False) as f:
        f.ret(_write_block(f))


def round_to_integer(f: Function, x: Value) -> Value:
    """Floats below 2**22 in size as the nearest i32, ties to even."""
    integers = x.type.replace("float", "i32")
    return f.cast("bitcast", x + _ROUNDER, integers) - _ROUNDER_BITS


def _write_block(f: Function) -> Value:
    args, column_group, space, steps = f.params
    names = ("segment_rows", "n_segments", "column_groups_per_slice")
    segment_rows, n_segments, per_slice = f.fields(args, GemmArgs, *names)
    local = column_group % per_slice
    first_slice = column_group // per_slice
    count = segment_rows >> 5
    packing, most = int8_form(f.isa).packing, most_steps(f, args)
    with f.loop(0, n_segments, 1, carry=[f.const(0)]) as loop:
        s = loop.index
        desc, first_group, first_column = locate_slice(f, args, first_slice + s)
        group = first_group + local * count
        to = f.at(space, s * segment_rows * (COLUMNS // packing), "i32")
        bits, outlier_rows = f.fields(desc, SliceDesc, "bits", "outlier_rows")

        def fill(form: int) -> None:
            f.call(f"fill8_{form}", "void", desc, group, count, to, steps, most)

        f.match(bits, {form: partial(fill, form) for form in _FORMS})

        def patch() -> list[Value]:
            beyond = f.call("patch8", "i64", desc, first_column + local, to, steps, most)
            assert beyond is not None
            return [loop.carried[0] + beyond]

        # Full fidelity needs no patch, but its outliers beyond a byte have remainders too.
        loop.carry(f.choose(outlier_rows.compare("ne", 0), patch, lambda: loop.carried))
    return loop.carried[0]


def _write_decode(f: Function, bits: int) -> None:
    desc, group, count, to, _, _ = f.params
    table, planes = locate_planes(f, desc, bits, group)
    packing = int8_form(f.isa).packing
    decode = decode_quads if packing == 4 else decode_pairs
    with f.each(0, count) as g:
        prefetch_next(f, [f.at(p, g * COLUMNS, "i32") for p in planes], count)
        with f.each(0, COLUMNS, f.lanes) as column:
            here = [f.at(p, g * COLUMNS + column, "i32") for p in planes]
            rows = f.at(to, g * (GROUP_ROWS // packing * COLUMNS) + column, "i32")

            def emit(i: int, x: Value) -> None:
                f.store(x, f.at(rows, i * COLUMNS, "i32"), 4 * f.lanes)

            decode(f, here, table, emit)


def _write_full(f: Function, bits: int) -> None:
    desc, group, count, to, steps, most = f.params
    (full,) = f.fields(desc, SliceDesc, "full")
    element = "float" if bits == F32 else "i16"
    source = f.at(full, group * (GROUP_ROWS * COLUMNS), element)
    packing = int8_form(f.isa).packing
    width = 32 // packing
    with f.each(0, count * (GROUP_ROWS // packing)) as i, f.each(0, COLUMNS, f.lanes) as column:
        word = f.const(0, vector(f.lanes, "i32"))
        for row in range(packing):
            at = f.at(source, (i * packing + row) * COLUMNS + column, element)
            x = upcast(f, f.load(at, vector(f.lanes, element)), bits)
            word = word | (clip_to_steps(f, x, steps, most) & ((1 << width) - 1)) << (width * row)
        f.store(word, f.at(to, i * COLUMNS + column, "i32"), 4 * f.lanes)


def most_steps(f: Function, args: Value) -> Value:
    """`Int8Form.most_steps` of a product, as a float."""
    form = int8_form(f.isa)
    if form.is_bytes:
        return f.const(float(form.weight), "float")
    segment_rows, n_segments = f.fields(args, GemmArgs, "segment_rows", "n_segments")
    depth = segment_rows * n_segments
    levels = f.least(f.const(MOST_SUM // form.centroid) // depth, form.activation)
    return f.cast("sitofp", f.least(f.const(MOST_SUM) // (levels * depth), form.weight), "float")


def clip_to_steps(f: Function, x: Value, steps: Value, most: Value) -> Value:
    """Floats as integer steps, clipped to the range of a weight."""
    steps, high = (v if x.type == "float" else f.splat(v) for v in (steps, most))
    scaled, low = x * steps, -high
    scaled = f.select(scaled > high, high, scaled)
    return round_to_integer(f, f.select(scaled < low, low, scaled))


def read_outliers(f: Function, desc: Value, group: Value) -> tuple[Value, Value, Value, Value]:
    """(first, last + 1, offsets, values) of a column group's outliers."""
    names = ("outlier_rows", "outlier_offsets", "outlier_values")
    starts, offsets, values = f.fields(desc, SliceDesc, *names)
    ends = [f.load(f.at(starts, g, "i32"), "i32") for g in (group, group + 1)]
    begin, end = (f.cast("zext", i, "i64") for i in ends)
    return begin, end, offsets, values


def read_outlier_place(f: Function, offsets: Value, i: Value) -> tuple[Value, Value]:
    """(row, column) of outlier i."""
    offset = f.cast("zext", f.load(f.at(offsets, i, "i16"), "i16"), "i64")
    return offset >> 4, offset & (COLUMNS - 1)


def has_remainder(f: Function, value: Value, steps: Value, most: Value) -> Value:
    """Whether an outlier has a remainder."""
    return magnitude(f, value * steps) > most


def _write_patch(module: Module) -> None:
    """`patch8(slice, column group, to, steps, most) -> i64`: inserts a segment's outliers."""
    params = [("desc", "ptr"), ("group", "i64"), ("to", "ptr"), ("steps", "float"), ("most", "float")]
    packing = int8_form(module.isa).packing
    element = f"i{32 // packing}"
    with module.function("patch8", params, "i64", attributes="noinline", is_exported=False) as f:
        desc, group, to, steps, most = f.params
        begin, end, offsets, values = read_outliers(f, desc, group)
        with f.loop(begin, end, 1, carry=[f.const(0)]) as loop:
            row, column = read_outlier_place(f, offsets, loop.index)
            value = f.load(f.at(values, loop.index))
            place = (row // packing) * (packing * COLUMNS) + column * packing + row % packing
            whole = clip_to_steps(f, value, steps, most)
            f.store(f.cast("trunc", whole, element), f.at(to, place, element))
            loop.carry([loop.carried[0] + f.cast("zext", has_remainder(f, value, steps, most), "i64")])
        f.ret(loop.carried[0])
