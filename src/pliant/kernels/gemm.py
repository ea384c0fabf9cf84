"""GEMM over the slices of a layer: C = activation(A @ B + bias [+ residual]), B full fidelity or bit-planes.

B's planes are decoded one block of a column group at a time into scratch, outliers put in place, and all rows
of A multiplied with it: the float32 matrix never exists. Knows addresses and sizes, nothing of models or plans.
"""

import ctypes

import numpy as np
from jaxtyping import Float

from pliant.kernels.decode import decode_group, decode_table
from pliant.kernels.emit import Function, Module
from pliant.kernels.isa import Isa
from pliant.kernels.memory import aligned_floats
from pliant.kernels.tile import COLUMNS, TileArgs, call_rows, tiling, write_tiles
from pliant.kernels.values import Value, vector

__all__ = [
    "SLICE_DTYPE",
    "GemmArgs",
    "SliceDesc",
    "decode_table",
    "gemm_ir",
    "pack",
    "scratch_bytes",
    "units",
]

ACTIVATIONS = {None: 0, "gelu": 1, "gelu_tanh": 2, "relu": 3, "tanh": 4}
"""What `GemmArgs.activation` holds."""

F16, BF16, F32 = 16, 17, 32
"""What `SliceDesc.bits` holds for full fidelity; 1..6 count planes."""

_GROUP_ROWS = 32
_GROUP_BYTES = 64
_KERNEL = "gemm"


class SliceDesc(ctypes.Structure):
    """One slice of a layer: what is resident of its weights, and where. Shared by the layer's four matrices."""

    _fields_ = (
        ("bits", ctypes.c_int64),
        ("planes", ctypes.c_void_p * 6),
        ("full", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("outlier_rows", ctypes.c_void_p),
        ("outlier_offsets", ctypes.c_void_p),
        ("outlier_values", ctypes.c_void_p),
    )


SLICE_DTYPE = np.dtype(
    [
        ("bits", np.int64),
        ("planes", np.uint64, 6),
        ("full", np.uint64),
        ("table", np.uint64),
        ("outlier_rows", np.uint64),
        ("outlier_offsets", np.uint64),
        ("outlier_values", np.uint64),
    ]
)
"""`SliceDesc` for numpy: an array of it is one layer."""
assert SLICE_DTYPE.itemsize == ctypes.sizeof(SliceDesc)


class GemmArgs(ctypes.Structure):
    """One GEMM. Strides in floats; `bias`, `residual` may be null; K = segment_rows * n_segments.

    Column group g and segment s of the matrix live in slice g // column_groups_per_slice + s, there as column
    group g % column_groups_per_slice of a matrix that begins at `first_group` and `first_column_group`.
    """

    _fields_ = (
        ("a", ctypes.c_void_p),
        ("lda", ctypes.c_int64),
        ("c", ctypes.c_void_p),
        ("ldc", ctypes.c_int64),
        ("n_rows", ctypes.c_int64),
        ("n_columns", ctypes.c_int64),
        ("slices", ctypes.c_void_p),
        ("first_group", ctypes.c_int64),
        ("first_column_group", ctypes.c_int64),
        ("segment_rows", ctypes.c_int64),
        ("n_segments", ctypes.c_int64),
        ("column_groups_per_slice", ctypes.c_int64),
        ("bias", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("ldr", ctypes.c_int64),
        ("activation", ctypes.c_int64),
    )


def units(n_columns: int, isa: Isa) -> int:
    """Work units of a GEMM: panels of column groups."""
    return -(-n_columns // (COLUMNS * tiling(isa).panel))


def scratch_bytes(isa: Isa) -> int:
    """Scratch a thread needs, 64-byte aligned."""
    return 4 * COLUMNS * tiling(isa).panel * block_rows(isa)


def block_rows(isa: Isa) -> int:
    """Rows of B decoded at a time: they stay in L1 (one column group) or L2 (three)."""
    return 768 if isa.name == "avx512" else 384


def pack(weights: Float[np.ndarray, "K N"]) -> Float[np.ndarray, "N/16 K 16"]:
    """A plain matrix in the order of full fidelity: column groups of [K][16], on a cache line."""
    K, N = weights.shape
    out = aligned_floats(N // COLUMNS, K, COLUMNS)
    out[:] = weights.reshape(K, N // COLUMNS, COLUMNS).transpose(1, 0, 2)
    return out


def gemm_ir(isa: Isa, name: str = _KERNEL) -> str:
    """The GEMM kernel of `isa`: one function for every shape, mix of bits, and epilogue."""
    module = Module(isa)
    panel = tiling(isa).panel
    for groups in {1, panel}:
        write_tiles(module, groups)
    for bits in range(1, 7):
        _write_decode(module, bits)
    for bits in (F16, BF16, F32):
        _write_full(module, bits)
    _write_patch(module)
    _write_block(module)
    with module.kernel(name) as f:
        _write_panels(f, panel)
    return module.text()


def _write_panels(f: Function, panel: int) -> None:
    args, lo, hi, scratch = f.params
    (n_columns,) = f.fields(args, GemmArgs, "n_columns")
    n_groups = n_columns >> 4
    if panel == 1:
        with f.each(lo, hi) as unit:
            _write_panel(f, args, unit, 1, scratch)
        return
    with f.each(lo, hi) as unit:
        first = unit * panel
        is_full = first + panel <= n_groups
        with f.when(is_full):
            _write_panel(f, args, first, panel, scratch)
        with f.when(is_full.compare("eq", 0)), f.each(first, n_groups) as group:
            _write_panel(f, args, group, 1, scratch)


def _write_panel(f: Function, args: Value, group: Value, groups: int, scratch: Value) -> None:
    """All rows of C, `groups` column groups from `group` on."""
    names = ("a", "lda", "c", "ldc", "n_rows", "segment_rows", "n_segments", "bias", "residual", "ldr")
    a, lda, c, ldc, n_rows, segment_rows, n_segments, bias, residual, ldr = f.fields(args, GemmArgs, *names)
    zeros = f.table([0.0] * COLUMNS * groups, "float")
    column = group * COLUMNS
    null, none = f.const(0, "ptr"), f.const(0)
    bias_here = f.select(bias.compare("eq", 0), zeros, f.at(bias, column))
    residual_here = f.select(residual.compare("eq", 0), null, f.at(residual, column))
    c_here = f.at(c, column)
    depth = segment_rows * n_segments
    rows = block_rows(f.isa)
    with f.each(0, depth, rows) as k:
        n = f.least(depth - k, rows)
        blocks = []
        for g in range(groups):
            space = f.at(scratch, g * rows * COLUMNS)
            block = f.call("block", "ptr", args, group + g, k, n, space)
            assert block is not None
            blocks.append(block)
        is_first = k.compare("eq", 0)
        start = f.select(is_first, bias_here, c_here)
        start_stride = f.select(is_first, none, ldc)
        added = f.select(is_first, residual_here, null)
        a_here = f.at(a, k)

        def at(row: Value) -> TileArgs:
            return TileArgs(
                a=f.at(a_here, row * lda),
                lda=lda,
                b=tuple(blocks),
                c=f.at(c_here, row * ldc),
                ldc=ldc,
                start=f.at(start, row * start_stride),
                start_stride=start_stride,
                added=f.select(added.compare("eq", 0), null, f.at(added, row * ldr)),
                added_stride=ldr,
                depth=n,
            )

        call_rows(f, n_rows, groups, at)


def _write_block(module: Module) -> None:
    """`block(args, column group, first row, rows, space) -> ptr`: a block of B as float32 [rows][16]."""
    params = [("args", "ptr"), ("group", "i64"), ("k", "i64"), ("n", "i64"), ("space", "ptr")]
    with module.function("block", params, "ptr", attributes="noinline", is_exported=False) as f:
        args, group, k, n, space = f.params
        names = ("slices", "first_group", "first_column_group", "segment_rows", "column_groups_per_slice")
        slices, first_group, first_column, segment_rows, per_slice = f.fields(args, GemmArgs, *names)
        local = group % per_slice
        first_slice = f.at(slices, (group // per_slice) * ctypes.sizeof(SliceDesc), "i8")
        base = first_group + local * (segment_rows >> 5)
        segment = k // segment_rows
        row = k - segment * segment_rows
        here = f.at(first_slice, segment * ctypes.sizeof(SliceDesc), "i8")
        bits, full = f.fields(here, SliceDesc, "bits", "full")
        with f.when(bits.compare("eq", F32) & (row + n <= segment_rows)):
            f.ret(f.at(full, (base * _GROUP_ROWS + row) * COLUMNS))
            f.place(f.label("dead"))
        end = k + n
        with f.each(segment, (end + segment_rows - 1) // segment_rows) as s:
            begin = s * segment_rows
            first = f.select(begin < k, k - begin, f.const(0))
            last = f.least(end - begin, segment_rows)
            count = last - first
            desc = f.at(first_slice, s * ctypes.sizeof(SliceDesc), "i8")
            to = f.at(space, (begin + first - k) * COLUMNS)
            _fill(f, desc, base + (first >> 5), count >> 5, to)
            (is_bits,) = f.fields(desc, SliceDesc, "bits")
            with f.when(is_bits <= 6):
                f.call("patch", "void", desc, first_column + local, first * COLUMNS, last * COLUMNS, to)
        f.ret(space)


def _fill(f: Function, desc: Value, group: Value, count: Value, to: Value) -> None:
    """`count` groups of a slice from its group `group` on, as float32 rows at `to`."""
    (bits,) = f.fields(desc, SliceDesc, "bits")

    def fill(n: int) -> None:
        f.call(f"fill{n}", "void", desc, group, count, to)

    f.match(bits, {n: lambda n=n: fill(n) for n in (1, 2, 3, 4, 5, 6, F16, BF16, F32)})


_FILL = (("desc", "ptr"), ("group", "i64"), ("count", "i64"), ("to", "ptr"))


def _write_decode(module: Module, bits: int) -> None:
    with module.function(f"fill{bits}", _FILL, attributes="noinline", is_exported=False) as f:
        desc, group, count, to = f.params
        table, planes = slice_planes(f, desc, bits, group)
        with f.each(0, count) as g:
            here = [f.at(p, g * 16, "i32") for p in planes]
            rows = f.at(to, g * (_GROUP_ROWS * COLUMNS))

            def emit(row: int, column: int, x: Value) -> None:
                f.store(x, f.at(rows, row * COLUMNS + column), 4 * f.lanes)

            decode_group(f, bits, here, table, emit)
        f.ret()


def slice_planes(f: Function, desc: Value, bits: int, group: Value) -> tuple[Value, list[Value]]:
    """The table of a slice, and its first `bits` planes from `group` on."""
    (table,) = f.fields(desc, SliceDesc, "table")
    first = f.at(desc, SliceDesc.planes.offset, "i8")
    planes = [f.load(f.at(first, q, "ptr"), "ptr") for q in range(bits)]
    return table, [f.at(p, group * _GROUP_BYTES, "i8") for p in planes]


def _write_full(module: Module, bits: int) -> None:
    with module.function(f"fill{bits}", _FILL, attributes="noinline", is_exported=False) as f:
        desc, group, count, to = f.params
        (full,) = f.fields(desc, SliceDesc, "full")
        element = {F32: "float", F16: "i16", BF16: "i16"}[bits]
        source = f.at(full, group * (_GROUP_ROWS * COLUMNS), element)
        with f.each(0, count * (_GROUP_ROWS * COLUMNS), f.lanes) as i:
            raw = f.load(f.at(source, i, element), vector(f.lanes, element))
            f.store(_upcast(f, raw, bits), f.at(to, i))
        f.ret()


def _upcast(f: Function, raw: Value, bits: int) -> Value:
    """Exactly the same number as float32."""
    integers = vector(f.lanes, "i32")
    if bits == F32:
        return raw
    if bits == BF16:
        return f.cast("bitcast", f.cast("zext", raw, integers) << 16, f.vec)
    if f.isa.has_f16c:
        return f.cast("fpext", f.cast("bitcast", raw, vector(f.lanes, "half")), f.vec)
    x = f.cast("zext", raw, integers)
    sign, rest = (x & 0x8000) << 16, (x & 0x7FFF) << 13
    # Scaling by 2**112 moves the exponent's bias and makes normal numbers of subnormal ones.
    scaled = f.cast("bitcast", f.cast("bitcast", rest, f.vec) * 2.0**112, integers)
    special = rest | 0x7F800000
    is_special = rest.compare("ge", 0x7C00 << 13)
    return f.cast("bitcast", f.select(is_special, special, scaled) | sign, f.vec)


def _write_patch(module: Module) -> None:
    """`patch(slice, column group, first, last, to)`: outliers with offsets first..last-1 put at to[0..]."""
    params = [("desc", "ptr"), ("group", "i64"), ("first", "i64"), ("last", "i64"), ("to", "ptr")]
    with module.function("patch", params, attributes="noinline", is_exported=False) as f:
        desc, group, first, last, to = f.params
        names = ("outlier_rows", "outlier_offsets", "outlier_values")
        starts, offsets, values = f.fields(desc, SliceDesc, *names)

        def start(i: Value) -> Value:
            return f.cast("zext", f.load(f.at(starts, i, "i32"), "i32"), "i64")

        def offset(i: Value) -> Value:
            return f.cast("zext", f.load(f.at(offsets, i, "i16"), "i16"), "i64")

        begin, end = start(group), start(group + 1)
        # The block begins at the first outlier not before it: 16 halvings cover every list.
        with f.loop(0, f.select(first > 0, f.const(17), f.const(0)), 1, carry=[begin, end]) as turn:
            low, high = turn.carried
            middle = (low + high) >> 1
            is_open = low < high
            probe = f.select(is_open, middle, begin)
            is_before = is_open & (offset(probe) < first)
            turn.carry(
                [
                    f.select(is_before, middle + 1, low),
                    f.select(is_open & is_before.compare("eq", 0), middle, high),
                ]
            )
        head, body, done = f.label("head"), f.label("body"), f.label("done")
        before = turn.carried[0]
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
        f.store(f.load(f.at(values, i)), f.at(to, here - first))
        following = i + 1
        f.branch(head)
        f._fill_phi(i, [(before, origin), (following, body)])
        f.place(done)
        f.ret()
