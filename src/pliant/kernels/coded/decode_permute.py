"""Turn nested bit-planes into bytes by one permute of 64 (AVX512-VBMI's `vpermb`) for 64 codes, or into
bfloat16 by two.

Byte b of a column's word has the nibbles that decode.py weaves from planes 0 to 3: the low four bits of an
index. Shifted and rotated words of planes 4 and 5 give its bits 4 and 5, in one order for even w and another
for odd; the permute ignores the two bits above.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pliant.arrays import Int32, UInt8
from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.values import Value, vector

_ENTRIES = 64
_LOW = 0x0F0F0F0F
_PAIRED = [
    16 * i + 4 * column + 2 * pair + row
    for i in range(4)
    for pair in range(2)
    for column in range(4)
    for row in range(2)
]
"""Bytes [column][row] of each four columns as [row pair][column][row of the pair]."""
_W_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
_FOURTH_LEFT = (0, 0, 6, 6, -4, -4, 2, 2)
"""Rotation that brings the bit of plane 4, for w = 0..7, to index bit 4 (w even) or 5."""
_FIFTH_LEFT = (5, 3, 3, 1, 1, -1, -1, -3)
"""Shift that brings the bit of plane 5 to index bit 5 (w even) or 4."""


def table_64(values: Int32[np.ndarray, " centroids"], bits: int) -> UInt8[np.ndarray, " 256"]:
    """The low bytes of 2**bits centroids by index, for each w & 3."""
    entry = np.arange(_ENTRIES)
    tables = []
    for u in range(4):
        place = {q: q ^ u for q in range(min(bits, 4))} | {4: 4 + u % 2, 5: 5 - u % 2}
        code = np.zeros(_ENTRIES, np.int64)
        for q in range(bits):
            code |= (entry >> place[q] & 1) << (bits - 1 - q)
        tables.append((values[code] & 0xFF).astype(np.uint8))
    return np.concatenate(tables)


def decode_by_permutes(
    f: Function,
    planes: Sequence[Value],
    woven: Sequence[Value],
    table: Value,
    emit: Callable[[int, Value], None],
) -> None:
    """Emit (w, bytes of rows 4w .. 4w + 3 in the i32 lanes of 16 columns) of a group's words `planes`."""
    for w, index in _indices(f, planes, woven):
        emit(w, _as_words(f, _permute(f, f.at(table, _ENTRIES * (w & 3), "i8"), index)))


def decode_pairs_by_permutes(
    f: Function,
    planes: Sequence[Value],
    woven: Sequence[Value],
    table: Value,
    emit: Callable[[int, Value], None],
) -> None:
    """Emit (i, rows 2i and 2i + 1 as bfloat16 in the i32 lanes of 16 columns).

    `table` has low bytes, then high bytes, each as `table_64` gives them.
    """
    for w, index in _indices(f, planes, woven):
        index = f.shuffle(index, None, _PAIRED)
        low, high = (
            _permute(f, f.at(table, _ENTRIES * (w & 3) + at, "i8"), index) for at in (0, 4 * _ENTRIES)
        )
        for pair in range(2):
            lanes = [16 * i + 8 * pair + j for i in range(4) for j in range(8)]
            mixed = f.shuffle(low, high, [x for i in lanes for x in (i, _ENTRIES + i)])
            emit(2 * w + pair, _as_words(f, mixed))


def _indices(f: Function, planes: Sequence[Value], woven: Sequence[Value]) -> Iterator[tuple[int, Value]]:
    """(w, index bytes of rows 4w .. 4w + 3 of 16 columns)."""
    fourth = _Moved(f, planes[4], is_rotated=True) if len(planes) > 4 else None
    fifth = _Moved(f, planes[5], is_rotated=False) if len(planes) > 5 else None
    for w in _W_ORDER:
        index = woven[w & 3] >> 4 if w >= 4 else woven[w & 3]
        if fourth is not None:
            upper = fourth.left(_FOURTH_LEFT[w])
            if fifth is not None:
                upper = _merge(fifth.left(_FIFTH_LEFT[w]), upper, 0x20202020 if w % 2 == 0 else 0x10101010)
            index = _merge(index, upper, _LOW)
        yield w, f.cast("bitcast", index, vector(_ENTRIES, "i8"))


class _Moved:
    """A word shifted or rotated by some numbers, each once."""

    def __init__(self, f: Function, word: Value, *, is_rotated: bool) -> None:
        self._f, self._word, self._is_rotated = f, word, is_rotated
        self._made = {0: word}

    def left(self, n: int) -> Value:
        if n not in self._made:
            self._made[n] = self._move(n)
        return self._made[n]

    def _move(self, n: int) -> Value:
        word = self._word
        if self._is_rotated:
            by = self._f.const(n % 32, word.type)
            return self._f.intrinsic("llvm.fshl", word.type, word, word, by)
        return word << n if n > 0 else word >> -n


def _merge(a: Value, b: Value, mask: int) -> Value:
    """a where mask, else b."""
    return b ^ ((a ^ b) & mask)


def _permute(f: Function, table: Value, index: Value) -> Value:
    """64 bytes of a table by the low six bits of each index."""
    bytes_ = index.type
    if not f.isa.is_portable:
        entries = f.load(table, bytes_, _ENTRIES)
        return f.intrinsic("llvm.x86.avx512.permvar.qi.512", bytes_, entries, index, suffix="")
    found = f.const(0, bytes_)
    for lane in range(_ENTRIES):
        at = f.cast("zext", f.extract(index, lane) & (_ENTRIES - 1), "i64")
        found = f.insert(found, f.load(f.at(table, at, "i8"), "i8"), lane)
    return found


def _as_words(f: Function, bytes_: Value) -> Value:
    return f.cast("bitcast", bytes_, vector(16, "i32"))
