"""The register tile of the int8 GEMM: packed integer rows times column groups, then scales and epilogue."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from operator import add

from pliant.kernels.coded.int8_form import Int8Form
from pliant.kernels.coded.tile import COLUMNS, exchange_halves
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value, vector
from pliant.kernels.product.integer_dots import add_pairs, add_quads, add_quads_portably, splat_word

_AVX2_BYTES = "llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"
_MATMUL = ".v4i32.v16i8"
_AVX512_BYTES = "llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512"
_PRODUCTS_A_TURN = 48
_CHAINS = 4


@dataclass(frozen=True, slots=True)
class TileShape:
    """Rows and column groups of a full tile."""

    rows: int
    groups: int


def tile_shape(isa: Isa) -> TileShape:
    """As many sums as fit in registers besides one word of each column vector and one word of A.

    ISA rows that add pairs of bytes in 16 bits also hold two words of B and the products; those with I8MM
    hold the halves of exchanged columns.
    """
    if isa.is_portable:
        return TileShape(3, 2)  # little code, since all of it is emulated
    match isa.name:
        case "avx512":
            return TileShape(8, 3) if isa.has_dot else TileShape(8, 2)
        case "avx2":
            return TileShape(6, 1) if isa.has_dot else TileShape(4, 1)
        case "neon":
            return TileShape(4 if isa.has_matmul else 6 if isa.has_dot else 5, 1)
        case _:
            return TileShape(2, 1)


@dataclass(frozen=True, slots=True)
class TileInt8Args:
    """The operands of a tile: C = (A @ B) * scales * step + bias + added. Strides in elements.

    `a` is a block of packed rows, `scales` their pairs (see `RoundRowsArgs`); `b` are column groups of
    `words` words, and `sums` the columns' sums. Resident weights have a step per column; `step` points to
    these.
    """

    a: Value
    b: Value
    sums: Value
    c: Value
    ldc: Value
    bias: Value
    added: Value
    added_stride: Value
    scales: Value
    words: Value
    step: Value


def write_tiles_int8(module: Module, form: Int8Form) -> None:
    """Define the tiles of every height, one and all column groups wide, and for bytes `column_sums`."""
    shape = tile_shape(module.isa)
    for groups in {1, shape.groups}:
        for rows in range(1, shape.rows + 1):
            _write_tile(module, form, rows, groups)
    if form.is_bytes and not form.is_resident:
        _write_column_sums(module)


def call_rows_int8(
    f: Function,
    n_rows: Value,
    groups: int,
    at: Callable[[Value], TileInt8Args],
    after: Callable[[TileInt8Args, int], None],
) -> None:
    """Cover `n_rows` rows of some column groups; `at(row)` returns the operands of the tile that starts at
    `row`.

    `after` is called after each tile with its number of rows, while C is in L1.
    """
    full = tile_shape(f.isa).rows

    def tile(rows: int, row: Value) -> None:
        t = at(row)
        pointers = (t.a, t.b, t.c, t.bias, t.added, t.scales, t.sums)
        f.call(f"tile8_{groups}_{rows}", "void", *pointers, t.ldc, t.added_stride, t.words, t.step)
        after(t, rows)

    n_full = n_rows - n_rows % full
    with f.each(0, n_full, full) as row:
        tile(full, row)
    f.match(n_rows - n_full, {n: partial(tile, n, n_full) for n in range(1, full)})


def _write_tile(module: Module, form: Int8Form, rows: int, groups: int) -> None:
    """`rows` rows of C, `groups` column groups, all of K."""
    params = [(n, "ptr") for n in ("a", "b", "c", "bias", "added", "scales", "sums")]
    params += [(n, "i64") for n in ("ldc", "added_stride", "words")]
    params += [("step", "ptr" if form.is_resident else "float")]
    with module.function(f"tile8_{groups}_{rows}", params, attributes="noinline", is_exported=False) as f:
        a, b, c, bias, added, scales, sums, ldc, added_stride, words, step = f.params
        for i in range(rows):
            f.prefetch(f.at(added, added_stride * i))
        places = range(0, groups * COLUMNS, f.lanes)
        begin = _starts(f, form, sums, scales, rows, groups)
        panels = [f.at(b, words * (g * COLUMNS), form.word) for g in range(groups)]
        # A tile with few sums needs more addition chains than it has sums.
        chains = max(1, min(_CHAINS, _CHAINS // len(begin)))
        per_word = len(begin)
        is_by_pairs = _is_by_pairs(f.isa)
        together = 2 if is_by_pairs else form.words_per_widening
        if is_by_pairs:
            begin = exchange_halves(f, begin, rows)
        turn_words = max(together * chains, min(8, _power_of_two(_PRODUCTS_A_TURN // per_word)))
        zero = f.const(0, vector(f.lanes, "i32"))
        with f.loop(0, words, turn_words, carry=begin + [zero] * (per_word * (chains - 1))) as loop:
            carried = list(loop.carried)
            for n, word in enumerate(range(0, turn_words, together)):
                chain = n % chains * per_word
                here = carried[chain : chain + per_word]
                more = _multiply(f, form, loop.index + word, (a, rows), panels, here)
                carried[chain : chain + per_word] = more
            loop.carry(carried)
        totals = loop.carried[:per_word]
        for chain in range(per_word, len(loop.carried), per_word):
            totals = [x + y for x, y in zip(totals, loop.carried[chain : chain + per_word], strict=True)]
        if is_by_pairs:
            totals = exchange_halves(f, totals, rows)
        for i in range(rows):
            scale = f.load(f.at(scales, 2 * i))
            scale = f.splat(scale if form.is_resident else scale * step)
            for v, at in enumerate(places):
                by = scale * f.load(f.at(step, at), f.vec) if form.is_resident else scale
                start = f.load(f.at(bias, at), f.vec) + f.load(f.at(added, added_stride * i + at), f.vec)
                value = f.cast("sitofp", totals[i * len(places) + v], f.vec)
                f.store(f.fma(value, by, start), f.at(c, ldc * i + at))
        f.ret()


def _is_by_pairs(isa: Isa) -> bool:
    """Whether two rows are multiplied with two words of K at once."""
    return isa.has_matmul and not isa.is_portable


def _power_of_two(n: int) -> int:
    return 1 << max(0, n.bit_length() - 1)


def _starts(f: Function, form: Int8Form, sums: Value, scales: Value, rows: int, groups: int) -> list[Value]:
    """The initial sums of each row: minus its zero point times the columns' sums."""
    integers = vector(f.lanes, "i32")
    places = range(0, groups * COLUMNS, f.lanes)
    if not form.is_bytes:
        return [f.const(0, integers)] * (rows * len(places))
    of_columns = [f.load(f.at(sums, v, "i32"), integers) for v in places]
    begin = []
    for i in range(rows):
        less = f.splat(-f.load(f.at(scales, 2 * i + 1, "i32"), "i32"))
        begin += [x * less for x in of_columns]
    return begin


def _multiply(
    f: Function,
    form: Int8Form,
    word: Value,
    a: tuple[Value, int],
    panels: list[Value],
    sums: list[Value],
) -> list[Value]:
    """Add the products of one word of K, or of two words if bytes are added in 16 bits or rows are in
    pairs.
    """
    if _is_by_pairs(f.isa):
        return _multiply_pairs(f, word, a, panels, sums)
    block, rows = a
    places = [f.at(b, v, form.word) for b in panels for v in range(0, COLUMNS, f.lanes)]

    def of_column(v: int) -> list[Value]:
        return [
            _weights(f, form, f.at(places[v], (word + i) * COLUMNS, form.word))
            for i in range(form.words_per_widening)
        ]

    def of_row(row: int) -> list[Value]:
        at = [f.at(block, (word + i) * rows + row, "i32") for i in range(form.words_per_widening)]
        return [splat_word(f, f.load(p, "i32")) for p in at]

    if f.isa.name == "avx2" and form.words_per_widening > 1:  # registers suffice for one column only
        for v in range(len(places)):
            ys, here = of_column(v), slice(v, None, len(places))
            made = [_add(f, form.is_bytes, x, of_row(row), ys) for row, x in enumerate(sums[here])]
            sums[here] = f.pin(made)
        return sums
    columns = [of_column(v) for v in range(len(places))]
    for row in range(rows):
        xs, here = of_row(row), slice(row * len(columns), (row + 1) * len(columns))
        pairs = zip(sums[here], columns, strict=True)
        sums[here] = f.keep_sums([_add(f, form.is_bytes, total, xs, ys) for total, ys in pairs])
    return sums


def _weights(f: Function, form: Int8Form, at: Value) -> Value:
    """A vector of B's words."""
    words = vector(f.lanes, "i32")
    if not form.is_widened:
        return f.load(at, words, 4 * f.lanes)
    narrow = f.load(at, vector(2 * f.lanes, "i8"), 2 * f.lanes)
    return f.cast("bitcast", f.cast("sext", narrow, vector(2 * f.lanes, "i16")), words)


def _multiply_pairs(
    f: Function, word: Value, a: tuple[Value, int], panels: list[Value], sums: list[Value]
) -> list[Value]:
    """Bytes by I8MM: two rows and two words of K, times two words of K and two columns, into 2 x 2 sums."""
    block, rows = a
    bytes_, two, whole = vector(16, "i8"), vector(2, "i32"), vector(f.lanes, "i32")
    both = [word, word + 1]
    pairs = []
    for i in range(0, rows - 1, 2):
        x, y = (f.load(f.at(block, at * rows + i, "i32"), two) for at in both)
        pairs.append(f.shuffle(x, y, (0, 2, 1, 3)))
    places = [f.at(b, v, "i32") for b in panels for v in range(0, COLUMNS, f.lanes)]
    for v, place in enumerate(places):
        low, high = (f.load(f.at(place, at * COLUMNS, "i32"), whole, 4 * f.lanes) for at in both)
        halves = [f.shuffle(low, high, lanes) for lanes in ((0, 4, 1, 5), (2, 6, 3, 7))]
        for i, pair in enumerate(pairs):
            for half, y in enumerate(halves):
                n = (2 * i + half) * len(places) + v
                x, y = (f.cast("bitcast", z, bytes_) for z in (pair, y))
                made = f.intrinsic("llvm.aarch64.neon.smmla", whole, sums[n], x, y, suffix=_MATMUL)
                sums[n] = f.black_box(made)
        if rows % 2:
            n = (rows - 1) * len(places) + v
            for at, y in zip(both, (low, high), strict=True):
                x = f.splat(f.load(f.at(block, at * rows + rows - 1, "i32"), "i32"))
                sums[n] = f.black_box(add_quads(f, sums[n], x, y))
    return sums


def _add(f: Function, is_bytes: bool, total: Value, xs: list[Value], ys: list[Value]) -> Value:
    return _add_bytes(f, total, xs, ys) if is_bytes else add_pairs(f, total, xs[0], ys[0])


def _add_bytes(f: Function, total: Value, xs: list[Value], ys: list[Value]) -> Value:
    """total + the products of unsigned bytes of xs and signed bytes of ys, four per lane."""
    if f.isa.is_portable or f.isa.has_dot:
        add_one = add_quads_portably if f.isa.is_portable else add_quads
        for x, y in zip(xs, ys, strict=True):
            total = add_one(f, total, x, y)
        return total
    by_bytes, by_words = _AVX512_BYTES if f.lanes == 16 else _AVX2_BYTES
    halves = vector(2 * f.lanes, "i16")
    products = []
    for x, y in zip(xs, ys, strict=True):
        x8, y8 = (_as(f, z, 4 * f.lanes, "i8") for z in (x, y))
        products.append(f.intrinsic(by_bytes, halves, x8, y8, suffix=""))
    both = reduce(add, products)
    return total + f.intrinsic(by_words, total.type, both, f.const(1, halves), suffix="")


def _write_column_sums(module: Module) -> None:
    """`column_sums(b, words, to)`: i32 [16], the sums over K of a column group."""
    params = [("b", "ptr"), ("words", "i64"), ("to", "ptr")]
    with module.function("column_sums", params, attributes="noinline", is_exported=False) as f:
        b, words, to = f.params
        integers = vector(f.lanes, "i32")
        ones = f.const(0x01010101, integers)
        places = range(0, COLUMNS, f.lanes)
        with f.loop(0, words, 8, carry=[f.const(0, integers)] * (4 * len(places))) as loop:
            carried = list(loop.carried)
            for chain in range(4):
                for i, v in enumerate(places):
                    at = (f.at(b, (loop.index + 2 * chain + n) * COLUMNS + v, "i32") for n in range(2))
                    ys = [f.load(p, integers, 4 * f.lanes) for p in at]
                    n = chain * len(places) + i
                    carried[n] = _add_bytes(f, carried[n], [ones, ones], ys)
            loop.carry(carried)
        for i, v in enumerate(places):
            total = loop.carried[i]
            for chain in range(1, 4):
                total = total + loop.carried[chain * len(places) + i]
            f.store(total, f.at(to, v, "i32"))
        f.ret()


def _as(f: Function, x: Value, lanes: int, element: str) -> Value:
    return f.cast("bitcast", x, vector(lanes, element))
