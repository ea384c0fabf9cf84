"""The register tile of the int8 GEMM: integer rows times one column group, then scales and epilogue."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pliant.kernels.coded.int8_form import int8_form
from pliant.kernels.coded.tile import COLUMNS
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value, vector
from pliant.kernels.product.integer_dots import add_pairs, add_quads, add_quads_portably

_AVX2_BYTES = "llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"
_MATMUL = ".v4i32.v16i8"
_AVX512_BYTES = "llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512"


@dataclass(frozen=True, slots=True)
class TileInt8Args:
    """Where a tile reads and writes: C = (A @ B) * scales * step + bias + added. Strides in elements.

    `a` holds int16 or bytes, `lda` counts int16; `sums` are what the sums of 16 columns start from.
    """

    a: Value
    lda: Value
    b: Value
    sums: Value
    c: Value
    ldc: Value
    bias: Value
    added: Value
    added_stride: Value
    scales: Value
    depth: Value
    step: Value


def write_tiles_int8(module: Module) -> None:
    """Define the tiles of every height and, for bytes, `column_sums`."""
    for rows in range(1, _tile_rows(module.isa) + 1):
        _write_tile(module, rows)
    if int8_form(module.isa).is_bytes:
        _write_column_sums(module)


def call_rows_int8(
    f: Function,
    n_rows: Value,
    at: Callable[[Value], TileInt8Args],
    after: Callable[[TileInt8Args, int], None],
) -> None:
    """Cover `n_rows` rows of a column group; `at(row)` says where the tile that starts at `row` works.

    `after` follows each tile with its number of rows, while C is in L1.
    """
    full = _tile_rows(f.isa)

    def tile(rows: int, row: Value) -> None:
        t = at(row)
        pointers = (t.a, t.b, t.c, t.bias, t.added, t.scales, t.sums)
        f.call(f"tile8_{rows}", "void", *pointers, t.lda, t.ldc, t.added_stride, t.depth, t.step)
        after(t, rows)

    n_full = n_rows - n_rows % full
    with f.each(0, n_full, full) as row:
        tile(full, row)
    f.match(n_rows - n_full, {n: partial(tile, n, n_full) for n in range(1, full)})


def _tile_rows(isa: Isa) -> int:
    """Rows whose sums and factors fill the registers; few where all is emulated, or columns change places."""
    if isa.is_portable:
        return 3
    return 4 if isa.has_matmul else {"avx512": 12, "avx2": 4, "neon": 6, "x86-64": 3}[isa.name]


def _turn(isa: Isa) -> int:
    """Rows of K before the loop turns: short loops cost a tile of few rows a tenth.

    In long ones LLVM takes loads of six rows by DotProd forward, for which there are no registers.
    """
    is_dot_product = _multiplication(isa) is _multiply_quads
    return 8 if isa.is_portable or is_dot_product else 32


def _write_tile(module: Module, rows: int) -> None:
    """`rows` rows of C, 16 columns, all of K."""
    params = [(n, "ptr") for n in ("a", "b", "c", "bias", "added", "scales", "sums")]
    params += [(n, "i64") for n in ("lda", "ldc", "added_stride", "depth")]
    params += [("step", "float")]
    form = int8_form(module.isa)
    with module.function(f"tile8_{rows}", params, attributes="noinline", is_exported=False) as f:
        a, b, c, bias, added, scales, sums, lda, ldc, added_stride, depth, step = f.params
        for i in range(rows):
            f.prefetch(f.at(added, added_stride * i))
        vectors = COLUMNS // f.lanes
        a_rows = [f.at(a, lda * i, "i16") for i in range(rows)]
        integers = vector(f.lanes, "i32")
        zero = f.const(0, integers)
        start = [f.load(f.at(sums, v * f.lanes, "i32"), integers) for v in range(vectors)]
        begin = (start if form.is_bytes else [zero] * vectors) * rows
        multiply = _multiplication(f.isa)
        is_by_pairs = multiply is _multiply_pairs
        if is_by_pairs:
            begin = _paired(f, begin, rows)
        with f.loop(0, depth, _turn(f.isa), carry=begin) as turn:
            turn.carry(multiply(f, turn.index, a_rows, b, list(turn.carried)))
        sums_of_rows = _paired(f, turn.carried, rows) if is_by_pairs else turn.carried
        for i in range(rows):
            scale = f.splat(f.load(f.at(scales, i)) * step)
            for v in range(vectors):
                at = v * f.lanes
                more = f.load(f.at(bias, at), f.vec) + f.load(f.at(added, added_stride * i + at), f.vec)
                value = f.cast("sitofp", sums_of_rows[i * vectors + v], f.vec)
                f.store(f.fma(value, scale, more), f.at(c, ldc * i + at))
        f.ret()


def _multiplication(isa: Isa) -> Callable[[Function, Value, list[Value], Value, list[Value]], list[Value]]:
    """How a tile of the row takes some rows of K."""
    if not int8_form(isa).is_bytes:
        return _multiply_words
    if isa.name != "neon" or isa.is_portable:
        return _multiply_bytes
    return _multiply_pairs if isa.has_matmul else _multiply_quads


def _multiply_words(f: Function, k: Value, a_rows: list[Value], b: Value, sums: list[Value]) -> list[Value]:
    """int16: two rows of K at a time."""
    vectors = COLUMNS // f.lanes
    for pair in range(_turn(f.isa) // 2):
        columns = _columns(f, b, (k >> 1) + pair)
        for i, p in enumerate(a_rows):
            x = f.splat(f.load(f.at(p, k + 2 * pair, "i16"), "i32", 2))
            for v, y in enumerate(columns):
                n = i * vectors + v
                # Opaque, or LLVM adds products of several turns first, and spills them.
                sums[n] = f.opaque(add_pairs(f, sums[n], x, y))
    return sums


def _multiply_bytes(f: Function, k: Value, a_rows: list[Value], b: Value, sums: list[Value]) -> list[Value]:
    """Bytes: eight rows of K at a time, whose products are added as int16 before they widen."""
    vectors = COLUMNS // f.lanes
    for eight in range(0, _turn(f.isa), 8):
        quads = [_columns(f, b, (k + eight + four) >> 2) for four in (0, 4)]
        for i, p in enumerate(a_rows):
            xs = [f.splat(f.load(f.at(p, k + eight + four, "i8"), "i32", 1)) for four in (0, 4)]
            for v in range(vectors):
                n = i * vectors + v
                sums[n] = f.opaque(_add_eight(f, sums[n], xs, [q[v] for q in quads]))
    return sums


def _paired(f: Function, sums: Sequence[Value], rows: int) -> list[Value]:
    """Sums by row as sums of 2 x 2 blocks, and back: halves of vectors change places between a pair of rows.

    Of rows i and i + 1, columns 0..3, the first block has columns 0 and 1 of both, the second 2 and 3. A last
    row without another stays as it is.
    """
    vectors, out = COLUMNS // f.lanes, list(sums)
    for i in range(0, rows - 1, 2):
        for v in range(vectors):
            at, below = i * vectors + v, (i + 1) * vectors + v
            out[at] = f.shuffle(sums[at], sums[below], (0, 1, 4, 5))
            out[below] = f.shuffle(sums[at], sums[below], (2, 3, 6, 7))
    return out


def _multiply_pairs(f: Function, k: Value, a_rows: list[Value], b: Value, sums: list[Value]) -> list[Value]:
    """Bytes by I8MM: two rows and eight of K, times eight of K and two columns; sums are `_paired`."""
    vectors, bytes_ = COLUMNS // f.lanes, vector(16, "i8")
    for eight in range(0, _turn(f.isa), 8):
        rows = [f.load(f.at(p, k + eight, "i8"), vector(2, "i32"), 1) for p in a_rows]
        pairs = [f.shuffle(x, y, range(4)) for x, y in zip(rows[::2], rows[1::2], strict=False)]
        for v in range(vectors):
            low, high = (_column_vector(f, b, (k + eight + four) >> 2, v) for four in (0, 4))
            halves = [f.shuffle(low, high, lanes) for lanes in ((0, 4, 1, 5), (2, 6, 3, 7))]
            for i, pair in enumerate(pairs):
                for half, y in enumerate(halves):
                    n = (2 * i + half) * vectors + v
                    x, y = (f.cast("bitcast", z, bytes_) for z in (pair, y))
                    made = f.intrinsic("llvm.aarch64.neon.smmla", sums[n].type, sums[n], x, y, suffix=_MATMUL)
                    sums[n] = f.opaque(made)
            if len(rows) % 2:
                n = (len(rows) - 1) * vectors + v
                for part, y in enumerate((low, high)):
                    x = f.shuffle(rows[-1], None, [part] * f.lanes)
                    sums[n] = f.opaque(add_quads(f, sums[n], x, y))
    return sums


def _column_vector(f: Function, b: Value, row: Value, v: int) -> Value:
    at = f.at(b, row * COLUMNS + v * f.lanes, "i32")
    return f.load(at, vector(f.lanes, "i32"), 4 * f.lanes)


def _multiply_quads(f: Function, k: Value, a_rows: list[Value], b: Value, sums: list[Value]) -> list[Value]:
    """Bytes by DotProd: four rows of K at a time, whose columns have room beside the sums of six rows."""
    vectors = COLUMNS // f.lanes
    for four in range(0, _turn(f.isa), 4):
        columns = _columns(f, b, (k + four) >> 2)
        for i, p in enumerate(a_rows):
            x = f.splat(f.load(f.at(p, k + four, "i8"), "i32", 1))
            for v, y in enumerate(columns):
                n = i * vectors + v
                sums[n] = f.opaque(add_quads(f, sums[n], x, y))
    return sums


def _columns(f: Function, b: Value, row: Value) -> list[Value]:
    return [_column_vector(f, b, row, v) for v in range(COLUMNS // f.lanes)]


def _add_eight(f: Function, total: Value, xs: list[Value], ys: list[Value]) -> Value:
    """total + the products of unsigned bytes of xs and signed bytes of ys, four to a lane and twice."""
    if f.isa.is_portable or f.isa.has_dot:
        add = add_quads_portably if f.isa.is_portable else add_quads
        for x, y in zip(xs, ys, strict=True):
            total = add(f, total, x, y)
        return total
    by_bytes, by_words = _AVX512_BYTES if f.lanes == 16 else _AVX2_BYTES
    halves = vector(2 * f.lanes, "i16")
    products = []
    for x, y in zip(xs, ys, strict=True):
        x8, y8 = (_as(f, z, 4 * f.lanes, "i8") for z in (x, y))
        products.append(f.intrinsic(by_bytes, halves, x8, y8, suffix=""))
    both = products[0] + products[1]
    return total + f.intrinsic(by_words, total.type, both, f.const(1, halves), suffix="")


def _write_column_sums(module: Module) -> None:
    """`column_sums(b, depth, to)`: i32 [16], minus the activations' zero times the sum over K."""
    params = [("b", "ptr"), ("depth", "i64"), ("to", "ptr")]
    with module.function("column_sums", params, attributes="noinline", is_exported=False) as f:
        b, depth, to = f.params
        integers = vector(f.lanes, "i32")
        ones = f.const(0x01010101, integers)
        vectors = COLUMNS // f.lanes
        with f.loop(0, depth, 8, carry=[f.const(0, integers)] * vectors) as turn:
            quads = [_columns(f, b, (turn.index + four) >> 2) for four in (0, 4)]
            turn.carry(
                [_add_eight(f, turn.carried[v], [ones, ones], [q[v] for q in quads]) for v in range(vectors)]
            )
        for v in range(vectors):
            f.store(turn.carried[v] * -int8_form(f.isa).zero, f.at(to, v * f.lanes, "i32"))
        f.ret()


def _as(f: Function, x: Value, lanes: int, element: str) -> Value:
    return f.cast("bitcast", x, vector(lanes, element))
