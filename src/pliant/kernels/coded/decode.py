"""Turn nested bit-planes into float32 weights inside a kernel.

A group is 32 rows x 16 columns of codes; plane q of a group is 16 u32, one a column. Row v = 4w + b has its
bit at 8b + (w ^ q) for planes 0 to 3, so within byte b of a column's word a nibble woven from the first four
planes is the whole index of row w (low nibble) or w + 4 (high nibble), in a bit order that depends on w & 3
alone: there is one table for each of these four orders, and the weaving needs no shifts.

Three forms of the lookup exist. Where a permute reads tables of 64 bytes or words (AVX512-VBMI), it looks up
int8 or bfloat16 (decode_permute.py). Where a byte shuffle reads 16-entry tables (AVX2), bfloat16 centroids
are looked up as two bytes, planes 4 and 5 blend between tables, and rows come out of bytes by shifts: 32
codes at once. Elsewhere a word index reads float32 tables, by `vpermps` in registers or by loads from memory.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product

import numpy as np

from pliant.arrays import Float, Int32, UInt8, UInt32
from pliant.kernels.coded.decode_permute import merge, permuted_pairs, permuted_quads, permuted_rows, table_64
from pliant.kernels.coded.int8_form import int8_form
from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value, vector
from pliant.kernels.runtime.aligned_memory import aligned_bytes

Emit = Callable[[int, Value], None]
"""Receives (row 0..31 of the group, or pair of rows; weights in as many columns as a vector has lanes)."""

_ORDERS = 4
_LOW = 0x0F0F0F0F


def decode_table(codebook: Float[np.ndarray, "centroids"], bits: int, isa: Isa) -> UInt8[np.ndarray, "bytes"]:
    """The lookup table of a codebook of 2**bits ascending float32 centroids, as kernels of `isa` read it.

    Centroids must be bfloat16 values (low 16 bits zero); the table is 64-byte aligned.
    """
    words = np.ascontiguousarray(codebook, np.float32).view(np.uint32)
    assert not (words & 0xFFFF).any(), "centroids must be rounded to bfloat16"
    if isa.has_byte_permute:
        return _aligned(table_64((words >> 16).astype(np.uint16), bits))
    return _table(words, bits, isa, (16, 24))


def int8_step(codebook: Float[np.ndarray, "centroids"], isa: Isa) -> float:
    """What a step of a layer's weights is worth in the int8 GEMM.

    To be taken from the six-bit codebook, whose extremes are those of all prefixes, for a whole layer.
    """
    return float(np.float32(np.abs(codebook).max() / int8_form(isa).centroid or 1.0))


def decode_table_int8(
    codebook: Float[np.ndarray, "centroids"], bits: int, isa: Isa, step: float
) -> UInt8[np.ndarray, "bytes"]:
    """As `decode_table`, of centroids in whole steps, each worth `step`."""
    steps = whole_steps(codebook, step)
    if isa.has_byte_permute:
        return _aligned(table_64(steps.astype(np.int8).view(np.uint8), bits))
    return _table(steps.view(np.uint32), bits, isa, (0,))


def whole_steps(values: Float[np.ndarray, "*shape"], step: float) -> Int32[np.ndarray, "*shape"]:
    """Weights in steps, as the kernels round them."""
    steps: np.ndarray = np.rint(np.asarray(values, np.float32) * (np.float32(1) / np.float32(step)))
    return steps.astype(np.int32)


def decode_columns(f: Function, planes: Sequence[Value], table: Value, emit: Emit) -> None:
    """Decode 32 rows of one vector's columns, whose words stand at `planes`.

    A group's 16 columns are 16 / lanes of these; one at a time keeps all of it in registers.
    """
    if not _by_bytes(f.isa):
        words = [_plane(f, p) for p in planes]
        if f.isa.has_byte_permute:
            for row, x in permuted_rows(f, words, weave(words), table):
                emit(row, x)
        else:
            _decode_words(f, words, table, emit)
        return

    def rows(pair: int, both: Value) -> None:
        emit(2 * pair, _as(f, both << 16, 8, "float"))
        emit(2 * pair + 1, _as(f, both & -65536, 8, "float"))

    for w, (low, high) in _look_up_bytes(f, planes, table, 2, _paired):
        for i, x in enumerate(_interleave(f, low, high)):
            rows(2 * w + i, x)


def decode_bfloats(f: Function, planes: Sequence[Value], table: Value, emit: Emit) -> None:
    """As `decode_columns`, rows i and i + 2 as bfloat16 halves of i32 lanes, for i & 3 < 2."""
    words = [_plane(f, p) for p in planes]
    for row, x in permuted_pairs(f, words, weave(words), table):
        emit(row, x)


def decode_quads(f: Function, planes: Sequence[Value], table: Value, emit: Emit) -> None:
    """As `decode_columns`, from an int8 table: rows 4w .. 4w + 3 as bytes of i32 lanes, for w = 0..7."""
    if _by_bytes(f.isa):
        for w, (x,) in _look_up_bytes(f, planes, table, 1, _natural):
            emit(w, _as(f, x, 8, "i32"))
        return
    words = [_plane(f, p) for p in planes]
    if f.isa.has_byte_permute:
        for w, x in permuted_quads(f, words, weave(words), table):
            emit(w, x)
        return
    four: list[Value] = []

    def quads(row: int, x: Value) -> None:
        four.append((_as(f, x, f.lanes, "i32") & 0xFF) << (8 * (row % 4)))
        if row % 4 == 3:
            emit(row // 4, (four[0] | four[1]) | (four[2] | four[3]))
            four.clear()

    _decode_words(f, words, table, quads)


def decode_pairs(f: Function, planes: Sequence[Value], table: Value, emit: Emit) -> None:
    """As `decode_quads`, rows 2i and 2i + 1 as int16 halves of i32 lanes; not where bytes are looked up."""
    assert not _by_bytes(f.isa)
    words = [_plane(f, p) for p in planes]
    before: list[Value] = []

    def pairs(row: int, x: Value) -> None:
        steps = _as(f, x, f.lanes, "i32")
        if row % 2:
            emit(row // 2, (before.pop() & 0xFFFF) | (steps << 16))
        else:
            before.append(steps)

    _decode_words(f, words, table, pairs)


def _plane(f: Function, plane: Value) -> Value:
    return f.load(plane, vector(f.lanes, "i32"), 4 * f.lanes)


def first_centroid(f: Function, table: Value) -> Value:
    """The value of code 0, from a table of any number of bits."""
    if f.isa.has_byte_permute:
        return f.cast("bitcast", f.cast("zext", f.load(table, "i16"), "i32") << 16, "float")
    if not _by_bytes(f.isa):
        return f.load(table)
    low, high = (f.cast("zext", f.load(f.at(table, at, "i8"), "i8"), "i32") for at in (0, 16))
    return f.cast("bitcast", (high << 24) | (low << 16), "float")


def _by_bytes(isa: Isa) -> bool:
    return isa.name == "avx2"


def _table(
    words: UInt32[np.ndarray, "centroids"], bits: int, isa: Isa, shifts: Sequence[int]
) -> UInt8[np.ndarray, "bytes"]:
    """Words of 32 bits by code; where bytes are looked up, those at `shifts` of each."""
    assert 1 <= bits <= 6
    assert words.shape == (1 << bits,)
    if not _by_bytes(isa):
        values = np.concatenate([words[_ordered(bits, u, by_bytes=False)] for u in range(_ORDERS)])
        return _aligned(values.view(np.uint8))
    rows = []
    for u in range(_ORDERS):
        entries = words[_ordered(bits, u, by_bytes=True)].reshape(-1, 16)
        rows += [(e >> shift & 0xFF).astype(np.uint8) for e in entries for shift in shifts]
    return _aligned(np.concatenate(rows))


def _aligned(raw: UInt8[np.ndarray, "bytes"]) -> UInt8[np.ndarray, "bytes"]:
    out = aligned_bytes(raw.size)
    out[:] = raw
    return out


@cache  # the same for every layer
def _ordered(bits: int, u: int, *, by_bytes: bool) -> np.ndarray:
    """The codes of order `u`'s table, as bytes or as words are looked up."""
    codes = _codes((_nibble_order if by_bytes else _word_order)(bits, u), bits)
    codes.flags.writeable = False
    return codes


def _codes(order: dict[int, int], bits: int) -> np.ndarray:
    """The code each table entry stands for, when index bit p is plane `order[p]`; other bits are ignored.

    Planes 4 and 5 that are no index bit choose among tables, which follow one another.
    """
    size = max(16, 1 << bits)
    entry = np.arange(size)
    code = np.zeros(size, np.int64)
    missing = [q for q in range(bits) if q not in order.values()]
    of_plane = {q: p for p, q in order.items()}
    of_plane |= {q: 4 + (len(missing) - 1 - i) for i, q in enumerate(missing)}
    if 4 in order:  # a five-bit index: plane 5 chooses between tables of 32
        of_plane |= dict.fromkeys(missing, 5)
    for q in range(bits):
        code |= (entry >> of_plane[q] & 1) << (bits - 1 - q)
    return code


def _nibble_order(bits: int, u: int) -> dict[int, int]:
    return {q ^ u: q for q in range(min(bits, 4))}


def _word_order(bits: int, u: int) -> dict[int, int]:
    """Index bits of a shifted word: the nibble, and plane 4 above it (u < 2) or below it."""
    nibble = _nibble_order(bits, u)
    if bits <= 4:
        return nibble
    return {**nibble, 4: 4} if u < 2 else {0: 4, **{p + 1: q for p, q in nibble.items()}}


def weave(words: Sequence[Value]) -> list[Value]:
    """For w & 3 = 0..3 the word whose nibbles are indices: low for w, high for w + 4."""
    bits = len(words)
    if bits == 1:
        return [words[0]] * 4
    even, odd = _swap(words[0], words[1], 0x55555555)
    if bits == 2:
        return [even, odd, even, odd]
    even2, odd2 = (words[2], words[2]) if bits == 3 else _swap(words[2], words[3], 0x55555555)
    first, third = _swap(even, even2, 0x33333333)
    second, fourth = _swap(odd, odd2, 0x33333333)
    return [first, second, third, fourth]


def _swap(a: Value, b: Value, mask: int) -> tuple[Value, Value]:
    """(a where mask else b, b where mask else a)."""
    if a.function.isa.name == "avx512":
        return merge(a, b, mask), merge(b, a, mask)
    t = (a ^ b) & mask
    return b ^ t, a ^ t


def _look_up_bytes(
    f: Function, planes: Sequence[Value], table: Value, n_bytes: int, order: "Order"
) -> Iterator[tuple[int, list[Value]]]:
    """For each w: the bytes of an entry for rows 4w .. 4w + 3, 32 codes at a time, in `order`."""
    words = [order(f, _plane(f, p), 0) for p in planes]
    woven = weave(words)
    if len(words) > 2:  # or LLVM keeps what they are made of instead
        woven = f.pinned(woven)
    masks = _masks(f, planes, words, order)
    tables = 1 << max(0, len(planes) - 4)
    for u in (3, 2, 1, 0):
        choices = next(masks)
        for w, choice in zip((u, u + 4), choices, strict=True):
            (nibbles,) = f.pinned([woven[u]])
            index, found = _as(f, (nibbles >> 4 if w > u else nibbles) & _LOW, 32, "i8"), list[Value]()
            for byte in range(n_bytes):
                # Without a barrier LLVM reads all tables ahead of their use, and spills what it read.
                f.barrier()
                at = [16 * (n_bytes * (u * tables + t) + byte) for t in range(tables)]
                entries = [f.load(f.at(table, i, "i8"), vector(16, "i8"), 16) for i in at]
                both = [f.shuffle(e, None, [*range(16), *range(16)]) for e in entries]
                found.append(_choose(f, [_shuffle_bytes(f, t, index) for t in both], choice))
            yield w, found


Order = Callable[[Function, Value, int], Value]
"""Bytes [column][row] of eight words in another order, with the rows of a column turned by a number."""


def _natural(f: Function, plane: Value, turn: int) -> Value:
    """[column][row], as they are."""
    return _arrange(f, plane, [4 * (i // 4) + (i + turn) % 4 for i in range(16)]) if turn else plane


def _paired(f: Function, plane: Value, turn: int) -> Value:
    """[row pair][column][row of the pair] of each four words."""
    places = product(range(2), range(4), range(2))
    return _arrange(f, plane, [4 * column + (2 * pair + row + turn) % 4 for pair, column, row in places])


def _arrange(f: Function, plane: Value, lane: list[int]) -> Value:
    order = lane + [16 + i for i in lane]
    return _as(f, f.shuffle(_as(f, plane, 32, "i8"), None, order), 8, "i32")


Masks = tuple[list[Value], list[Value]]
"""For rows 4w + b of w = u and w = u + 4: bytes whose top bits are planes 5 and 4, if there are such."""


def _masks(f: Function, planes: Sequence[Value], words: Sequence[Value], order: Order) -> Iterator[Masks]:
    """For u = 3, 2, 1, 0. Each next mask is the one before, doubled: an addition, where ports are free.

    Row 4w + b has its bit of plane 5 at 8b + w, and of plane 4 at 8b + (4, 5, -2, -1, 8, 9, 2, 3)[w].
    """
    if len(planes) < 5:
        while True:
            yield [], []
    fourth = _doubling(f, order(f, _plane(f, planes[4]), -1)), _doubling(f, words[4] << 4)
    sixth = (_doubling(f, words[5] << 4), _doubling(f, words[5])) if len(planes) == 6 else None
    for u in (3, 2, 1, 0):
        if u == 1:  # read again, rather than kept in registers until now
            word = _plane(f, planes[4])
            fourth = _doubling(f, order(f, word, 0) << 2), _doubling(f, order(f, word, 1) << 6)
        low, high = (([next(s)] if sixth else []) for s in (sixth or fourth))
        yield [*low, next(fourth[0])], [*high, next(fourth[1])]


def _doubling(f: Function, word: Value) -> Iterator[Value]:
    """word, 2 word, 4 word, ... as bytes, in ways that LLVM does not turn back into shifts."""
    while True:
        yield _as(f, word, 32, "i8")
        word = f.opaque(word) << 1


def _choose(f: Function, values: Sequence[Value], masks: Sequence[Value]) -> Value:
    """One of 1, 2 or 4 values by as many masks as it takes, the mask that tells neighbours apart first."""
    for mask in masks:
        values = [_blend(f, a, b, mask) for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def _shuffle_bytes(f: Function, table: Value, index: Value) -> Value:
    return f.intrinsic("llvm.x86.avx2.pshuf.b", "<32 x i8>", table, index, suffix="")


def _blend(f: Function, a: Value, b: Value, mask: Value) -> Value:
    return f.intrinsic("llvm.x86.avx2.pblendvb", "<32 x i8>", a, b, mask, suffix="")


def _interleave(f: Function, low: Value, high: Value) -> list[Value]:
    """Two bytes made 16 bits, for both row pairs in the order of `_paired`."""
    out = []
    for pair in range(2):
        lanes = [lane + 8 * pair + i for lane in (0, 16) for i in range(8)]
        mixed = [x for i in lanes for x in (i, 32 + i)]
        out.append(_as(f, f.shuffle(low, high, mixed), 8, "i32"))
    return out


def _as(f: Function, x: Value, lanes: int, element: str) -> Value:
    to = vector(lanes, element)
    return x if x.type == to else f.cast("bitcast", x, to)


def _decode_words(f: Function, words: Sequence[Value], table: Value, emit: Emit) -> None:
    """One shifted word a row is the index into float32 tables."""
    bits = len(words)
    woven = weave(words)
    mixed = _mix_fifth(woven, words[4]) if bits >= 5 else woven * 2
    if bits == 6 and f.isa.name == "x86-64":  # or LLVM keeps what they are made of as well
        mixed = f.pinned(mixed)
    for v in range(32):
        w, b = v >> 2, v & 3
        offset = 8 * b + (4 if w >= 4 else 0) - (1 if bits >= 5 and w & 3 >= 2 else 0)
        is_wrapped = bits >= 5 and not 0 <= offset <= 27
        index = _rotate(f, mixed[w], offset) if is_wrapped else _shift(mixed[w], offset)
        sixth = words[5] if bits == 6 else None
        entry = f.at(table, (w & 3) * max(16, 1 << bits))
        emit(v, _look_up(f, bits, entry, index, sixth, 8 * b + w))


def _mix_fifth(woven: Sequence[Value], fifth: Value) -> list[Value]:
    """For each w the word in which plane 4 stands beside the nibble of w, the other nibble given up."""
    beside = [fifth, fifth >> 1, fifth << 1, fifth]
    pairs = [_swap(woven[u], beside[u], _LOW) for u in range(4)]
    return [pair[0] for pair in pairs] + [pair[1] for pair in pairs]


def _shift(word: Value, bits: int) -> Value:
    return word >> bits if bits else word


def _rotate(f: Function, word: Value, right: int) -> Value:
    left = f.const(-right % 32, word.type)
    return f.intrinsic("llvm.fshl", word.type, word, word, left)


def _look_up(f: Function, bits: int, entry: Value, index: Value, sixth: Value | None, sixth_at: int) -> Value:
    if f.isa.name == "avx512" and not f.isa.is_portable:
        return _permute(f, bits, entry, index, sixth, sixth_at)
    index = index & (31 if bits >= 5 else 15)
    if sixth is not None:
        index = index | (_shift(sixth, sixth_at) & 1) << 5
    out = f.const(0.0, f.vec)
    for lane in range(f.lanes):
        at = f.cast("zext", f.extract(index, lane), "i64")
        out = f.insert(out, f.load(f.at(entry, at)), lane)
    return out


def _permute(f: Function, bits: int, entry: Value, index: Value, sixth: Value | None, sixth_at: int) -> Value:
    """Tables of 16 by one permute, of 32 by one over two registers, of 64 by two and the bit of plane 5."""

    def register(i: int) -> Value:
        return f.load(f.at(entry, 16 * i), f.vec, 64)

    def two(i: int) -> Value:
        args = (register(i), index, register(i + 1))
        return f.intrinsic("llvm.x86.avx512.vpermi2var.ps.512", f.vec, *args, suffix="")

    if bits <= 4:
        return f.intrinsic("llvm.x86.avx512.permvar.sf.512", f.vec, register(0), index, suffix="")
    if sixth is None:
        return two(0)
    bit = sixth & (1 << sixth_at if sixth_at < 31 else -(1 << 31))
    return f.select(bit.compare("ne", 0), two(2), two(0))
