"""Turn nested bit-planes into weights by permutes of bytes (AVX512-VBMI's `vpermb`) or of 16 bits.

Byte b of a column's word has the nibbles that decode.py interleaves from planes 0 to 3: the low four bits of
an index. Planes 4 and 5, interleaved into pairs, are its bits 4 and 5, in one order for even w and another
for odd; the permute ignores the two upper bits. A permute of 16 bits looks up two rows of 16 columns at once,
as bfloat16, the upper halves of float32.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pliant.arrays import UInt8, UInt16
from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.values import Value, vector

_ENTRIES = 64
_LOW, _EVEN = 0x0F0F0F0F, 0x55555555
_PAIRED = [
    16 * i + 4 * column + 2 * pair + row
    for i in range(4)
    for pair in range(2)
    for column in range(4)
    for row in range(2)
]
"""Bytes [column][row] of each four columns as [row pair][column][row of the pair]."""
_W_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)


def table_64(
    centroids: UInt8[np.ndarray, " centroids"] | UInt16[np.ndarray, " centroids"], bits: int
) -> UInt8[np.ndarray, " bytes"]:
    """The bytes of 2**bits centroids of one or two bytes by index, 64 of them for each w & 3."""
    entry = np.arange(_ENTRIES)
    tables = []
    for u in range(4):
        place = {q: q ^ u for q in range(min(bits, 4))} | {4: 4 + u % 2, 5: 5 - u % 2}
        code = np.zeros(_ENTRIES, np.int64)
        for q in range(bits):
            code |= (entry >> place[q] & 1) << (bits - 1 - q)
        tables.append(centroids[code])
    return np.concatenate(tables).view(np.uint8)


PlaneWords = Sequence[Value]
"""A group's words of each plane, and the words interleaved from the first four planes."""


def permute_quads(
    f: Function, planes: PlaneWords, woven: PlaneWords, table: Value
) -> Iterator[tuple[int, Value]]:
    """(w, bytes of rows 4w .. 4w + 3 in the i32 lanes of 16 columns) for all w."""
    for w, index in quad_indices(f, planes, woven):
        yield w, permute_quad(f, w, index, table)


def permute_quad(f: Function, w: int, index: Value, table: Value) -> Value:
    """The bytes of rows 4w .. 4w + 3 from their indices."""
    return _permute(f, f.at(table, _ENTRIES * (w & 3), "i8"), index, "i8")


def permute_rows(
    f: Function, planes: PlaneWords, woven: PlaneWords, table: Value
) -> Iterator[tuple[int, Value]]:
    """(row, its float32 weights in 16 columns) for all rows, from a table of bfloat16."""
    for row, both in permute_pairs(f, planes, woven, table):
        yield row, f.cast("bitcast", both << 16, f.vec)
        yield row + 2, f.cast("bitcast", both & -65536, f.vec)


def permute_pairs(
    f: Function, planes: PlaneWords, woven: PlaneWords, table: Value
) -> Iterator[tuple[int, Value]]:
    """(row, bfloat16 of rows `row` and `row + 2` in the halves of i32 lanes) for rows 4w and 4w + 1."""
    for w, b, index in _word_indices(f, planes, woven):
        yield 4 * w + b, _permute(f, f.at(table, _ENTRIES * (w & 3), "i16"), index, "i16", len(planes))


def decode_pairs_by_permutes(
    f: Function, planes: PlaneWords, woven: PlaneWords, table: Value, emit: Callable[[int, Value], None]
) -> None:
    """Emit (i, rows 2i and 2i + 1 as bfloat16 in the i32 lanes of 16 columns).

    `table` has the low bytes, then the high bytes, each in the format of `table_64`.
    """
    bytes_, words = vector(64, "i8"), vector(16, "i32")
    for w, index in quad_indices(f, planes, woven):
        paired = f.shuffle(f.cast("bitcast", index, bytes_), None, _PAIRED)
        low, high = (
            _permute(f, f.at(table, _ENTRIES * (w & 3) + at, "i8"), paired, "i8") for at in (0, 4 * _ENTRIES)
        )
        for pair in range(2):
            lanes = [16 * i + 8 * pair + j for i in range(4) for j in range(8)]
            mixed = f.shuffle(low, high, [x for i in lanes for x in (i, _ENTRIES + i)])
            emit(2 * w + pair, f.cast("bitcast", mixed, words))


def _word_indices(f: Function, planes: PlaneWords, woven: PlaneWords) -> Iterator[tuple[int, int, Value]]:
    """(w, b, index of row 4w + b in the lower half of a lane, of row 4w + b + 2 in the upper)."""
    if len(planes) <= 4:
        for u, word in enumerate(woven):
            for nibble in range(4):
                yield u + 4 * (nibble % 2), nibble // 2, word >> 4 * nibble if nibble else word
        return
    for w, index in quad_indices(f, planes, woven):
        yield w, 0, index
        yield w, 1, index >> 8


def quad_indices(f: Function, planes: PlaneWords, woven: PlaneWords) -> Iterator[tuple[int, Value]]:
    """For each w a word whose byte b is the index of row 4w + b, except for its two upper bits."""
    upper = _upper(f, planes)
    for w in _W_ORDER:
        index = woven[w & 3]
        if upper:  # for w from 4 on it is four bits above the position where it is read
            pair = (upper[w & 3], index) if w >= 4 else (index, upper[w & 3])
            index = merge(*pair, _LOW)
        yield w, _rotate(f, index, -4) if w >= 4 else index


def _upper(f: Function, planes: PlaneWords) -> list[Value]:
    """For each w & 3 a word with planes 4 and 5 adjacent, above the index of w and below that of w + 4.

    Row 4w + b has its bit of plane 5 at 8b + w, and of plane 4 at 8b + (4, 5, -2, -1, 8, 9, 2, 3)[w].
    """
    if len(planes) < 5:
        return []
    both = [planes[4]] * 2
    if len(planes) == 6:
        fifth = merge(_rotate(f, planes[5], 5), _rotate(f, planes[5], -3), 0x66666666)
        both = [merge(planes[4], fifth, _EVEN), merge(_rotate(f, fifth, -2), planes[4], _EVEN)]
    return both + [_rotate(f, x, 6) for x in both]


def _rotate(f: Function, word: Value, left: int) -> Value:
    return f.intrinsic("llvm.fshl", word.type, word, word, f.const(left % 32, word.type))


def merge(a: Value, b: Value, mask: int) -> Value:
    """The bits of a where mask has ones, else of b."""
    f = a.function
    if f.isa.name != "avx512" or f.isa.is_portable:
        return b ^ ((a ^ b) & mask)
    # As an intrinsic: LLVM splits three-operand logic into two instructions if an operand is shared.
    constants = f.const(mask, a.type), f.const(0xCA, "i32")
    return f.intrinsic("llvm.x86.avx512.pternlog.d.512", a.type, constants[0], a, b, constants[1], suffix="")


def _permute(f: Function, table: Value, index: Value, element: str, bits: int = 4) -> Value:
    """Look up entries of 8 or 16 bits, in place in i32 lanes; entries of 16 bits need two registers from five
    bits on.
    """
    lanes = 64 if element == "i8" else 32
    whole, words = vector(lanes, element), index.type
    index = f.cast("bitcast", index, whole)
    if f.isa.is_portable:
        return f.cast("bitcast", _look_up(f, table, index, element), words)
    name = {"i8": "qi", "i16": "hi"}[element]
    first = f.load(table, whole, 64)
    if element == "i8" or bits <= 4:
        found = f.intrinsic(f"llvm.x86.avx512.permvar.{name}.512", whole, first, index, suffix="")
    else:
        second = f.load(f.at(table, lanes, element), whole, 64)
        found = f.intrinsic("llvm.x86.avx512.vpermi2var.hi.512", whole, first, index, second, suffix="")
    return f.cast("bitcast", found, words)


def _look_up(f: Function, table: Value, index: Value, element: str) -> Value:
    """As `_permute`, without the instruction."""
    found = f.const(0, index.type)
    for lane in range(int(index.type[1:].split(" ")[0])):
        at = f.cast("zext", f.extract(index, lane) & (_ENTRIES - 1), "i64")
        found = f.insert(found, f.load(f.at(table, at, element), element), lane)
    return found
