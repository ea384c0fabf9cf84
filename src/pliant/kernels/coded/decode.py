"""Turn nested bit-planes into float32 weights inside a kernel.

A group is 32 rows x 16 columns of codes; plane q of a group is 16 u32, one per column. Row v = 4w + b has its
bit at 8b + (w ^ q) for planes 0 to 3, so within byte b of a column's word a nibble interleaved from the first
four planes is the whole index of row w (low nibble) or w + 4 (high nibble), in a bit order that depends only
on w & 3: there is one table for each of these four orders, and the interleaving needs no shifts.

Three forms of the lookup exist. With a permute of 64-entry tables of bytes or words (AVX512-VBMI), it looks
up int8 or bfloat16 (decode_permute.py). With a byte shuffle of 16-entry tables (AVX2), bfloat16 centroids are
looked up as two bytes, planes 4 and 5 select between tables, and rows are extracted from bytes by shifts: 32
codes at once. Elsewhere a word index reads float32 tables, by `vpermps` in registers or by loads from memory.
"""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from pliant.arrays import Float, Int32, UInt8, UInt32
from pliant.kernels.coded.decode_bytes import (
    bitcast_lanes,
    interleave,
    keep_order,
    load_plane,
    look_up_bytes,
    pair_rows,
    swap,
    weave,
)
from pliant.kernels.coded.decode_permute import permute_pairs, permute_quads, permute_rows, table_64
from pliant.kernels.coded.int8_form import int8_form
from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value
from pliant.kernels.runtime.aligned_memory import aligned_bytes

WeightSink = Callable[[int, Value], None]
"""Receives (row 0..31 of the group, or pair of rows; weights in as many columns as a vector has lanes)."""

_ORDERS = 4
_LOW = 0x0F0F0F0F


def decode_table(codebook: Float[np.ndarray, "centroids"], bits: int, isa: Isa) -> UInt8[np.ndarray, "bytes"]:
    """The lookup table of a codebook of 2**bits ascending float32 centroids, in the layout for kernels of
    `isa`.

    Centroids must be bfloat16 values (low 16 bits zero); the table is 64-byte aligned.
    """
    words = np.ascontiguousarray(codebook, np.float32).view(np.uint32)
    assert not (words & 0xFFFF).any(), "centroids must be rounded to bfloat16"
    if isa.has_byte_permute:
        return _align(table_64((words >> 16).astype(np.uint16), bits))
    return _table(words, bits, isa, (16, 24))


def int8_step(
    codebook: Float[np.ndarray, "centroids"], outliers: Float[np.ndarray, "outliers"], isa: Isa
) -> float:
    """The value of one step of a layer's weights in the int8 GEMM.

    Compute it from the six-bit codebook of the whole layer, whose extremes are those of all prefixes, and
    from its outliers, which are the only other weights if all centroids are 0.
    """
    largest = np.abs(codebook).max() or np.abs(outliers).max(initial=0.0)
    return float(np.float32(largest / int8_form(isa).centroid or 1.0))


def decode_table_int8(
    codebook: Float[np.ndarray, "centroids"], bits: int, isa: Isa, step: float
) -> UInt8[np.ndarray, "bytes"]:
    """As `decode_table`, with centroids as integer multiples of `step`."""
    steps = round_to_steps(codebook, step)
    if isa.has_byte_permute:
        return _align(table_64(steps.astype(np.int8).view(np.uint8), bits))
    return _table(steps.view(np.uint32), bits, isa, (0,))


def round_to_steps(values: Float[np.ndarray, "*shape"], step: float) -> Int32[np.ndarray, "*shape"]:
    """Weights in steps, as the kernels round them."""
    steps: np.ndarray = np.rint(np.asarray(values, np.float32) * (np.float32(1) / np.float32(step)))
    return steps.astype(np.int32)


def decode_columns(f: Function, planes: Sequence[Value], table: Value, emit: WeightSink) -> None:
    """Decode 32 rows of one vector of columns, whose words are at `planes`.

    A group's 16 columns are 16 / lanes such vectors; decoding one at a time keeps all data in registers.
    """
    if not _uses_byte_lookups(f.isa):
        words = [load_plane(f, p) for p in planes]
        if f.isa.has_byte_permute:
            for row, x in permute_rows(f, words, weave(words), table):
                emit(row, x)
        else:
            _decode_words(f, words, table, emit)
        return

    def rows(pair: int, both: Value) -> None:
        emit(2 * pair, bitcast_lanes(f, both << 16, 8, "float"))
        emit(2 * pair + 1, bitcast_lanes(f, both & -65536, 8, "float"))

    for w, (low, high) in look_up_bytes(f, planes, table, 2, pair_rows):
        for i, x in enumerate(interleave(f, low, high)):
            rows(2 * w + i, x)


def decode_bfloats(f: Function, planes: Sequence[Value], table: Value, emit: WeightSink) -> None:
    """As `decode_columns`, rows i and i + 2 as bfloat16 halves of i32 lanes, for i & 3 < 2."""
    words = [load_plane(f, p) for p in planes]
    for row, x in permute_pairs(f, words, weave(words), table):
        emit(row, x)


def decode_quads(f: Function, planes: Sequence[Value], table: Value, emit: WeightSink) -> None:
    """As `decode_columns`, from an int8 table: rows 4w .. 4w + 3 as bytes of i32 lanes, for w = 0..7."""
    if _uses_byte_lookups(f.isa):
        for w, (x,) in look_up_bytes(f, planes, table, 1, keep_order):
            emit(w, bitcast_lanes(f, x, 8, "i32"))
        return
    words = [load_plane(f, p) for p in planes]
    if f.isa.has_byte_permute:
        for w, x in permute_quads(f, words, weave(words), table):
            emit(w, x)
        return
    four: list[Value] = []

    def quads(row: int, x: Value) -> None:
        four.append((bitcast_lanes(f, x, f.lanes, "i32") & 0xFF) << (8 * (row % 4)))
        if row % 4 == 3:
            emit(row // 4, (four[0] | four[1]) | (four[2] | four[3]))
            four.clear()

    _decode_words(f, words, table, quads)


def decode_pairs(f: Function, planes: Sequence[Value], table: Value, emit: WeightSink) -> None:
    """As `decode_quads`, rows 2i and 2i + 1 as int16 halves of i32 lanes; not for byte lookups."""
    assert not _uses_byte_lookups(f.isa)
    words = [load_plane(f, p) for p in planes]
    before: list[Value] = []

    def pairs(row: int, x: Value) -> None:
        steps = bitcast_lanes(f, x, f.lanes, "i32")
        if row % 2:
            emit(row // 2, (before.pop() & 0xFFFF) | (steps << 16))
        else:
            before.append(steps)

    _decode_words(f, words, table, pairs)


def first_centroid(f: Function, table: Value) -> Value:
    """The value of code 0, from a table of any number of bits."""
    if f.isa.has_byte_permute:
        return f.cast("bitcast", f.cast("zext", f.load(table, "i16"), "i32") << 16, "float")
    if not _uses_byte_lookups(f.isa):
        return f.load(table)
    low, high = (f.cast("zext", f.load(f.at(table, at, "i8"), "i8"), "i32") for at in (0, 16))
    return f.cast("bitcast", (high << 24) | (low << 16), "float")


def _uses_byte_lookups(isa: Isa) -> bool:
    return isa.name == "avx2"


def _table(
    words: UInt32[np.ndarray, "centroids"], bits: int, isa: Isa, shifts: Sequence[int]
) -> UInt8[np.ndarray, "bytes"]:
    """The 32-bit words by code; for byte lookups, the bytes at `shifts` of each word."""
    assert 1 <= bits <= 6
    assert words.shape == (1 << bits,)
    if not _uses_byte_lookups(isa):
        values = np.concatenate([words[_order_codes(bits, u, by_bytes=False)] for u in range(_ORDERS)])
        return _align(values.view(np.uint8))
    rows = []
    for u in range(_ORDERS):
        entries = words[_order_codes(bits, u, by_bytes=True)].reshape(-1, 16)
        rows += [(e >> shift & 0xFF).astype(np.uint8) for e in entries for shift in shifts]
    return _align(np.concatenate(rows))


def _align(raw: UInt8[np.ndarray, "bytes"]) -> UInt8[np.ndarray, "bytes"]:
    out = aligned_bytes(raw.size)
    out[:] = raw
    return out


@cache  # equal for all layers
def _order_codes(bits: int, u: int, *, by_bytes: bool) -> np.ndarray:
    """The codes in the order of table `u`, for byte or word lookups."""
    codes = _codes((_nibble_order if by_bytes else _word_order)(bits, u), bits)
    codes.flags.writeable = False
    return codes


def _codes(order: dict[int, int], bits: int) -> np.ndarray:
    """The code of each table entry, where index bit p is plane `order[p]`; other bits are ignored.

    Planes 4 and 5, if they are not index bits, select one of several consecutive tables.
    """
    size = max(16, 1 << bits)
    entry = np.arange(size)
    code = np.zeros(size, np.int64)
    missing = [q for q in range(bits) if q not in order.values()]
    of_plane = {q: p for p, q in order.items()}
    of_plane |= {q: 4 + (len(missing) - 1 - i) for i, q in enumerate(missing)}
    if 4 in order:  # a five-bit index: plane 5 selects between tables of 32
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


def _decode_words(f: Function, words: Sequence[Value], table: Value, emit: WeightSink) -> None:
    """Look up float32 tables with one shifted word per row as the index."""
    bits = len(words)
    woven = weave(words)
    mixed = _mix_fifth(woven, words[4]) if bits >= 5 else woven * 2
    if bits == 6 and f.isa.name == "x86-64":  # else LLVM keeps their operands in registers as well
        mixed = f.pin(mixed)
    for v in range(32):
        w, b = v >> 2, v & 3
        offset = 8 * b + (4 if w >= 4 else 0) - (1 if bits >= 5 and w & 3 >= 2 else 0)
        is_wrapped = bits >= 5 and not 0 <= offset <= 27
        index = _rotate(f, mixed[w], offset) if is_wrapped else _shift(mixed[w], offset)
        sixth = words[5] if bits == 6 else None
        entry = f.at(table, (w & 3) * max(16, 1 << bits))
        emit(v, _look_up(f, bits, entry, index, sixth, 8 * b + w))


def _mix_fifth(woven: Sequence[Value], fifth: Value) -> list[Value]:
    """For each w the word with plane 4 next to the nibble of w, in place of the other nibble."""
    beside = [fifth, fifth >> 1, fifth << 1, fifth]
    pairs = [swap(woven[u], beside[u], _LOW) for u in range(4)]
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
    """Look up tables of 16 with one permute, of 32 with one over two registers, of 64 with two and the bit of
    plane 5.
    """

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
