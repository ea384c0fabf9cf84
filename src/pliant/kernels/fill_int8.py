"""Fill scratch with a column group of B in steps of int8, widened to int16: [K/2][16][2].

Centroids are at most 127 steps; an outlier or a full-fidelity weight is as many steps as it is, up to 16
bits, so none is clipped to the centroids' range. Knows nothing of A and C.
"""

import ctypes
from functools import partial

from pliant.kernels.decode import decode_pairs
from pliant.kernels.emit import Function, Module
from pliant.kernels.fill import GROUP_ROWS, prefetch_next, slice_planes, upcast
from pliant.kernels.gemm_args import BF16, F16, F32, GemmArgs, SliceDesc
from pliant.kernels.tile import COLUMNS
from pliant.kernels.values import Value, vector

_FORMS = (1, 2, 3, 4, 5, 6, F16, BF16, F32)
_PARAMS = (
    ("desc", "ptr"),
    ("group", "i64"),
    ("count", "i64"),
    ("to", "ptr"),
    ("steps", "float"),  # int8 steps in 1.0
)
_LARGEST = 32767.0
# Adding 1.5 * 2**23 leaves the nearest integer, ties to even, in the low bits.
_ROUNDER, _ROUNDER_BITS = 12582912.0, 0x4B400000


def write_fill_int8(module: Module) -> None:
    """Define `block16(args, column group, space, steps)`, which fills all of K, and what it calls."""
    for bits in _FORMS:
        with module.function(f"fill16_{bits}", _PARAMS, attributes="noinline", is_exported=False) as f:
            if bits <= 6:
                _write_decode(f, bits)
            else:
                _write_full(f, bits)
            f.ret()
    _write_patch(module)
    params = [("args", "ptr"), ("column_group", "i64"), ("space", "ptr"), ("steps", "float")]
    with module.function("block16", params, attributes="noinline", is_exported=False) as f:
        _write_block(f)
        f.ret()


def nearest(f: Function, x: Value) -> Value:
    """Floats below 2**22 in size as the nearest i32, ties to even."""
    integers = x.type.replace("float", "i32")
    return f.cast("bitcast", x + _ROUNDER, integers) - _ROUNDER_BITS


def _write_block(f: Function) -> None:
    args, column_group, space, steps = f.params
    names = ("slices", "first_group", "first_column_group", "segment_rows")
    slices, first_group, first_column, segment_rows = f.fields(args, GemmArgs, *names)
    n_segments, per_slice = f.fields(args, GemmArgs, "n_segments", "column_groups_per_slice")
    local = column_group % per_slice
    first = f.at(slices, (column_group // per_slice) * ctypes.sizeof(SliceDesc), "i8")
    count = segment_rows >> 5
    group = first_group + local * count
    with f.each(0, n_segments) as s:
        desc = f.at(first, s * ctypes.sizeof(SliceDesc), "i8")
        to = f.at(space, s * segment_rows * COLUMNS, "i16")
        (bits,) = f.fields(desc, SliceDesc, "bits")

        def fill(form: int) -> None:
            f.call(f"fill16_{form}", "void", desc, group, count, to, steps)

        f.match(bits, {form: partial(fill, form) for form in _FORMS})
        with f.when(bits <= 6):
            f.call("patch16", "void", desc, first_column + local, to, steps)


def _write_decode(f: Function, bits: int) -> None:
    desc, group, count, to, _ = f.params
    table, planes = slice_planes(f, desc, bits, group)
    with f.each(0, count) as g:
        prefetch_next(f, [f.at(p, g * COLUMNS, "i32") for p in planes], count)
        with f.each(0, COLUMNS, f.lanes) as column:
            here = [f.at(p, g * COLUMNS + column, "i32") for p in planes]
            rows = f.at(to, g * (GROUP_ROWS // 2 * COLUMNS) + column, "i32")

            def emit(pair: int, x: Value) -> None:
                f.store(x, f.at(rows, pair * COLUMNS, "i32"), 4 * f.lanes)

            decode_pairs(f, bits, here, table, emit)


def _write_full(f: Function, bits: int) -> None:
    desc, group, count, to, steps = f.params
    (full,) = f.fields(desc, SliceDesc, "full")
    element = "float" if bits == F32 else "i16"
    source = f.at(full, group * (GROUP_ROWS * COLUMNS), element)
    with f.each(0, count * (GROUP_ROWS // 2)) as pair, f.each(0, COLUMNS, f.lanes) as column:
        upper, lower = (
            _steps(f, upcast(f, f.load(f.at(source, at, element), vector(f.lanes, element)), bits), steps)
            for at in (pair * (2 * COLUMNS) + COLUMNS + column, pair * (2 * COLUMNS) + column)
        )
        f.store((lower & 0xFFFF) | (upper << 16), f.at(to, pair * COLUMNS + column, "i32"), 4 * f.lanes)


def _steps(f: Function, x: Value, steps: Value) -> Value:
    """Floats as whole steps, at most 16 bits."""
    scaled = x * (steps if x.type == "float" else f.splat(steps))
    low, high = f.const(-_LARGEST, x.type), f.const(_LARGEST, x.type)
    scaled = f.select(scaled > high, high, scaled)
    return nearest(f, f.select(scaled < low, low, scaled))


def _write_patch(module: Module) -> None:
    """`patch16(slice, column group, to, steps)`: a segment's outliers put in place."""
    params = [("desc", "ptr"), ("group", "i64"), ("to", "ptr"), ("steps", "float")]
    with module.function("patch16", params, attributes="noinline", is_exported=False) as f:
        desc, group, to, steps = f.params
        names = ("outlier_rows", "outlier_offsets", "outlier_values")
        starts, offsets, values = f.fields(desc, SliceDesc, *names)
        ends = [f.load(f.at(starts, g, "i32"), "i32") for g in (group, group + 1)]
        begin, end = (f.cast("zext", i, "i64") for i in ends)
        with f.each(begin, end) as i:
            offset = f.cast("zext", f.load(f.at(offsets, i, "i16"), "i16"), "i64")
            row, column = offset >> 4, offset & (COLUMNS - 1)
            place = (row >> 1) * (2 * COLUMNS) + column * 2 + (row & 1)
            value = f.cast("trunc", _steps(f, f.load(f.at(values, i)), steps), "i16")
            f.store(value, f.at(to, place, "i16"))
        f.ret()
