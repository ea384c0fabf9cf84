"""Fill scratch with a block of B: planes decoded, full fidelity converted, outliers put in place."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pliant.kernels.coded.decode import decode_columns
from pliant.kernels.coded.gemm_args import BF16, F16, F32, GemmArgs, SliceDesc
from pliant.kernels.coded.tile import COLUMNS
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.values import Value, vector
from pliant.kernels.emit.vmath import bfloat_to_float, half_to_float

GROUP_ROWS = 32
GROUP_BYTES = 64
_AHEAD = 16, 32  # groups: decoded during one memory latency
_FAR_BYTES, _NEAR_BYTES = 4096, 384


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """The format of a block of B in scratch: [rows][16] numbers, `row_bytes` per row.

    `decode(f, planes, table, to)` writes 32 rows of one column per lane; `full(f, source, bits, to,
    n_groups)` writes all columns, and `put(f, value, to, offset)` one float at row * 16 + column. Slices of
    the form `in_place` already have this format if their field `place` is not null, and are read there.
    `prefix` distinguishes the functions of two such blocks in one module.
    """

    row_bytes: int
    in_place: int
    decode: Callable[[Function, Sequence[Value], Value, Value], None]
    full: Callable[[Function, Value, int, Value, Value], None]
    put: Callable[[Function, Value, Value, Value], None]
    prefix: str = ""
    place: str = "full"


FORMS = (1, 2, 3, 4, 5, 6, F16, BF16, F32)


def write_fill(module: Module, forms: Sequence[int] = FORMS, block: BlockFormat | None = None) -> None:
    """Define `block` and the functions that it calls, for slices of these `forms` (SliceDesc.bits); by
    default as float32.
    """
    block = block or BlockFormat(4 * COLUMNS, F32, _decode_floats, _upcast_floats, _put_float)
    for bits in forms:
        if bits <= 6:
            _write_decode(module, bits, block)
        else:
            _write_full(module, bits, block)
    _write_patch(module, block)
    _write_block(module, forms, block)


def locate_slice(f: Function, args: Value, index: Value) -> tuple[Value, Value, Value]:
    """Slice `index`: its descriptor, and the first group and first column group of the matrix in it."""
    names = ("slices", "first_group", "first_column_group", "segment_rows", "column_groups_per_slice")
    slices, first_group, first_column, segment_rows, per_slice = f.fields(args, GemmArgs, *names)
    is_own = slices.compare("eq", 0)
    own, given = f.at(args, GemmArgs.own.offset, "i8"), f.at(slices, index * ctypes.sizeof(SliceDesc), "i8")
    before = f.select(is_own, index * per_slice, f.const(0))
    group = first_group + before * (segment_rows >> 5)
    return f.select(is_own, own, given), group, first_column + before


def _write_block(module: Module, forms: Sequence[int], block: BlockFormat) -> None:
    """`block(args, column group, first row, rows, space) -> ptr`: a block of B in the format `block`."""
    params = [("args", "ptr"), ("group", "i64"), ("k", "i64"), ("n", "i64"), ("space", "ptr")]
    name = f"{block.prefix}block"
    with module.function(name, params, "ptr", attributes="noinline", is_exported=False) as f:
        args, group, k, n, space = f.params
        segment_rows, per_slice = f.fields(args, GemmArgs, "segment_rows", "column_groups_per_slice")
        local = group % per_slice
        first_slice = group // per_slice
        within = local * (segment_rows >> 5)
        segment = k // segment_rows
        if block.in_place in forms:
            row = k - segment * segment_rows
            here, base, _ = locate_slice(f, args, first_slice + segment)
            bits, place = f.fields(here, SliceDesc, "bits", block.place)
            is_there = bits.compare("eq", block.in_place) & (row + n <= segment_rows)
            if block.place != "full":
                is_there = is_there & place.compare("ne", 0)
            with f.when(is_there):
                f.ret(f.at(place, ((base + within) * GROUP_ROWS + row) * block.row_bytes, "i8"))
                f.place(f.label("dead"))
        end = k + n
        with f.each(segment, (end + segment_rows - 1) // segment_rows) as s:
            begin = s * segment_rows
            first = f.select(begin < k, k - begin, f.const(0))
            last = f.least(end - begin, segment_rows)
            count = last - first
            desc, base, first_column = locate_slice(f, args, first_slice + s)
            to = f.at(space, (begin + first - k) * block.row_bytes, "i8")
            here = base + within + (first >> 5)
            _fill(f, desc, here, count >> 5, segment_rows >> 5, to, forms, block.prefix)
            (is_bits,) = f.fields(desc, SliceDesc, "bits")
            with f.when(is_bits <= 6):
                here = first_column + local
                ends = first * COLUMNS, last * COLUMNS
                f.call(f"{block.prefix}patch", "void", desc, here, *ends, to)
        f.ret(space)


def _fill(
    f: Function,
    desc: Value,
    group: Value,
    count: Value,
    step: Value,
    to: Value,
    forms: Sequence[int],
    prefix: str,
) -> None:
    """Write `count` groups of a slice, from its group `group` on, to `to`."""
    (bits,) = f.fields(desc, SliceDesc, "bits")

    def fill(n: int) -> None:
        f.call(f"{prefix}fill{n}", "void", desc, group, count, step, to)

    f.match(bits, {n: partial(fill, n) for n in forms})


_FILL = (
    ("desc", "ptr"),
    ("group", "i64"),
    ("count", "i64"),
    ("step", "i64"),  # groups from one column group to the next
    ("to", "ptr"),
)


def _write_decode(module: Module, bits: int, block: BlockFormat) -> None:
    with module.function(f"{block.prefix}fill{bits}", _FILL, attributes="noinline", is_exported=False) as f:
        desc, group, count, step, to = f.params
        table, planes = locate_planes(f, desc, bits, group)
        with f.each(0, count) as g:
            prefetch_next(f, [f.at(p, g * COLUMNS, "i32") for p in planes], step)
            with f.each(0, COLUMNS, f.lanes) as column:
                here = [f.at(p, g * COLUMNS + column, "i32") for p in planes]
                rows = f.at(to, g * (GROUP_ROWS * block.row_bytes), "i8")
                block.decode(f, here, table, f.at(rows, column))
        f.ret()


def _decode_floats(f: Function, planes: Sequence[Value], table: Value, to: Value) -> None:
    def emit(row: int, x: Value) -> None:
        f.store(x, f.at(to, row * COLUMNS), 4 * f.lanes)

    decode_columns(f, planes, table, emit)


def locate_planes(f: Function, desc: Value, bits: int, group: Value) -> tuple[Value, list[Value]]:
    """The table of a slice, and its first `bits` planes from `group` on."""
    (table,) = f.fields(desc, SliceDesc, "table")
    first = f.at(desc, SliceDesc.planes.offset, "i8")
    planes = [f.load(f.at(first, q, "ptr"), "ptr") for q in range(bits)]
    return table, [f.at(p, group * GROUP_BYTES, "i8") for p in planes]


def prefetch_next(f: Function, planes: Sequence[Value], step: Value) -> None:
    """Prefetch planes as far ahead as the next column group, within limits.

    Many slices are more streams than the CPU's prefetcher tracks.
    """
    least, most = _AHEAD
    groups = f.least(f.select(step < least, f.const(least), step), most)
    # Opaque, else LLVM keeps a second pointer per plane and spills them all.
    ahead = f.op(f'call i64 asm sideeffect "", "=r,0"({groups * GROUP_BYTES})', "i64")
    for p in planes:
        f.prefetch(f.at(p, ahead, "i8"))


def prefetch_streams(f: Function, planes: Sequence[Value], *, is_far: bool = True) -> None:
    """Prefetch planes that are read in order: far ahead into L2, and shortly before use into L1.

    Prefetching from memory directly into L1 would occupy its few miss buffers. If decoding takes about as
    long as the memory reads, the CPU's prefetcher makes `is_far` unnecessary.
    """
    for p in planes:
        if is_far:
            f.prefetch(f.at(p, _FAR_BYTES, "i8"), level=2)
        f.prefetch(f.at(p, _NEAR_BYTES, "i8"))


def _write_full(module: Module, bits: int, block: BlockFormat) -> None:
    with module.function(f"{block.prefix}fill{bits}", _FILL, attributes="noinline", is_exported=False) as f:
        desc, group, count, _, to = f.params
        (full,) = f.fields(desc, SliceDesc, "full")
        source = f.at(full, group * (GROUP_ROWS * COLUMNS), full_element(bits))
        block.full(f, source, bits, to, count)
        f.ret()


def full_element(bits: int) -> str:
    """The stored type of a number at full fidelity."""
    return "float" if bits == F32 else "i16"


def _upcast_floats(f: Function, source: Value, bits: int, to: Value, count: Value) -> None:
    element = full_element(bits)
    with f.each(0, count * (GROUP_ROWS * COLUMNS), f.lanes) as i:
        raw = f.load(f.at(source, i, element), vector(f.lanes, element))
        f.store(upcast(f, raw, bits), f.at(to, i))


def upcast(f: Function, raw: Value, bits: int) -> Value:
    """Convert exactly to float32."""
    match bits:
        case 16:
            return half_to_float(f, raw)
        case 17:
            return bfloat_to_float(f, raw)
        case _:
            return raw


def _put_float(f: Function, value: Value, to: Value, offset: Value) -> None:
    f.store(value, f.at(to, offset))


def _write_patch(module: Module, block: BlockFormat) -> None:
    """`patch(slice, column group, first, last, to)`: writes outliers with offsets first..last-1 to
    to[0..].
    """
    params = [("desc", "ptr"), ("group", "i64"), ("first", "i64"), ("last", "i64"), ("to", "ptr")]
    with module.function(f"{block.prefix}patch", params, attributes="noinline", is_exported=False) as f:
        desc, group, first, last, to = f.params
        names = ("outlier_rows", "outlier_offsets", "outlier_values")
        starts, offsets, values = f.fields(desc, SliceDesc, *names)

        def start(i: Value) -> Value:
            return f.cast("zext", f.load(f.at(starts, i, "i32"), "i32"), "i64")

        def offset(i: Value) -> Value:
            return f.cast("zext", f.load(f.at(offsets, i, "i16"), "i16"), "i64")

        begin, end = start(group), start(group + 1)
        f.prefetch(f.at(offsets, end, "i16"))
        f.prefetch(f.at(values, end))
        # Find the block's first outlier by binary search.
        halvings = f.const(64) - f.intrinsic("llvm.ctlz", "i64", end - begin, f.const(0, "i1"))
        with f.loop(0, f.select(first > 0, halvings, f.const(0)), 1, carry=[begin, end]) as loop:
            low, high = loop.carried
            middle = (low + high) >> 1
            is_open = low < high
            probe = f.select(is_open, middle, begin)
            is_before = is_open & (offset(probe) < first)
            loop.carry(
                [
                    f.select(is_before, middle + 1, low),
                    f.select(is_open & is_before.compare("eq", 0), middle, high),
                ]
            )
        head, body, done = f.label("head"), f.label("body"), f.label("done")
        before = loop.carried[0]
        origin = f._block
        f.branch(head)
        f.place(head)
        i = f._phi_slot("i64")
        check = f.label("check")
        f.branch_if(i < end, check, done)
        f.place(check)
        here = offset(i)
        f.branch_if(here < last, body, done)
        f.place(body)
        block.put(f, f.load(f.at(values, i)), to, here - first)
        following = i + 1
        f.branch(head)
        f._fill_phi(i, [(before, origin), (following, body)])
        f.place(done)
        f.ret()
