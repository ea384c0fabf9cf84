"""Interleave planes to indices, and look them up with byte shuffles, 32 at a time (AVX2).

Planes 4 and 5 select among tables. There are 16 registers: planes are loaded again where that saves a
register, and tables that do not fit in registers are loaded for each half of a byte.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from pliant.kernels.coded.decode_permute import merge
from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.values import Value, vector

_LOW = 0x0F0F0F0F


def load_plane(f: Function, plane: Value) -> Value:
    """A plane's words, of one column per lane."""
    return f.load(plane, vector(f.lanes, "i32"), 4 * f.lanes)


def weave(words: Sequence[Value]) -> list[Value]:
    """For w & 3 = 0..3 the word whose nibbles are indices: the low one for w, the high one for w + 4."""
    bits = len(words)
    if bits == 1:
        return [words[0]] * 4
    even, odd = swap(words[0], words[1], 0x55555555)
    if bits == 2:
        return [even, odd, even, odd]
    even2, odd2 = (words[2], words[2]) if bits == 3 else swap(words[2], words[3], 0x55555555)
    first, third = swap(even, even2, 0x33333333)
    second, fourth = swap(odd, odd2, 0x33333333)
    return [first, second, third, fourth]


def swap(a: Value, b: Value, mask: int) -> tuple[Value, Value]:
    """(a where mask else b, b where mask else a)."""
    if a.function.isa.name == "avx512":
        return merge(a, b, mask), merge(b, a, mask)
    t = (a ^ b) & mask
    return b ^ t, a ^ t


def bitcast_lanes(f: Function, x: Value, lanes: int, element: str) -> Value:
    """The same bits as another vector."""
    to = vector(lanes, element)
    return x if x.type == to else f.cast("bitcast", x, to)


def look_up_bytes(
    f: Function, planes: Sequence[Value], table: Value, n_bytes: int, order: "ByteOrder"
) -> Iterator[tuple[int, list[Value]]]:
    """For each w: the bytes of an entry for rows 4w .. 4w + 3, 32 codes at a time, in `order`."""
    words = [order(f, load_plane(f, p), 0) for p in planes]
    woven = weave(words)
    if len(words) > 2:  # else LLVM keeps their operands in registers instead
        woven = f.pin(woven)
    masks = _masks(f, planes, words, order)
    tables = 1 << max(0, len(planes) - 4)
    for u in (3, 2, 1, 0):
        choices = next(masks)
        ways = list(zip((u, u + 4), choices, strict=True))
        # A table is read once for both halves of a byte if there are enough registers.
        for together in [ways] if tables <= 2 else [[way] for way in ways]:
            (nibbles,) = woven[u : u + 1] = f.pin([woven[u]])
            indices = [
                bitcast_lanes(f, (nibbles >> 4 if w > u else nibbles) & _LOW, 32, "i8") for w, _ in together
            ]
            found: list[list[Value]] = [[] for _ in together]
            for byte in range(n_bytes):
                # Without a barrier LLVM loads all tables ahead of their use, and spills them.
                f.barrier()
                at = [16 * (n_bytes * (u * tables + t) + byte) for t in range(tables)]
                for index, (_, mask), out in zip(indices, together, found, strict=True):
                    out.append(_look_up_one(f, table, at, index, mask))
            yield from ((w, values) for (w, _), values in zip(together, found, strict=True))


ByteOrder = Callable[[Function, Value, int], Value]
"""Reorders bytes [column][row] of eight words, with the rows of a column rotated by a number."""


def keep_order(f: Function, plane: Value, turn: int) -> Value:
    """The order [column][row], unchanged."""
    return _arrange(f, plane, [4 * (i // 4) + (i + turn) % 4 for i in range(16)]) if turn else plane


def pair_rows(f: Function, plane: Value, turn: int) -> Value:
    """[row pair][column][row of the pair] of each four words."""
    places = product(range(2), range(4), range(2))
    return _arrange(f, plane, [4 * column + (2 * pair + row + turn) % 4 for pair, column, row in places])


def _arrange(f: Function, plane: Value, lane: list[int]) -> Value:
    order = lane + [16 + i for i in lane]
    return bitcast_lanes(f, f.shuffle(bitcast_lanes(f, plane, 32, "i8"), None, order), 8, "i32")


TableMasks = tuple[list[Value], list[Value]]
"""For rows 4w + b of w = u and w = u + 4: bytes whose top bits are planes 5 and 4, if these planes exist."""


def _masks(
    f: Function, planes: Sequence[Value], words: Sequence[Value], order: ByteOrder
) -> Iterator[TableMasks]:
    """For u = 3, 2, 1, 0. Each mask is the previous one, doubled by an addition, for which ports are free.

    Row 4w + b has its bit of plane 5 at 8b + w, and of plane 4 at 8b + (4, 5, -2, -1, 8, 9, 2, 3)[w].
    """
    if len(planes) < 5:
        while True:
            yield [], []
    fourth = _doubling(f, order(f, load_plane(f, planes[4]), -1)), _doubling(f, words[4] << 4)
    sixth = (_doubling(f, words[5] << 4), _doubling(f, words[5])) if len(planes) == 6 else None
    for u in (3, 2, 1, 0):
        if u == 1:  # loaded again instead of kept in registers
            word = load_plane(f, planes[4])
            fourth = _doubling(f, order(f, word, 0) << 2), _doubling(f, order(f, word, 1) << 6)
        low, high = (([next(s)] if sixth else []) for s in (sixth or fourth))
        yield [*low, next(fourth[0])], [*high, next(fourth[1])]


def _doubling(f: Function, word: Value) -> Iterator[Value]:
    """word, 2 word, 4 word, ... as bytes, in a form that LLVM does not turn back into shifts."""
    while True:
        yield bitcast_lanes(f, word, 32, "i8")
        word = f.black_box(word) << 1


def _look_up_one(f: Function, table: Value, at: Sequence[int], index: Value, masks: Sequence[Value]) -> Value:
    """Look up one of 1, 2 or 4 tables, selected by the masks; first the mask that distinguishes adjacent
    tables.
    """
    if len(at) > 1:
        half, (*before, mask) = len(at) // 2, masks
        low = _look_up_one(f, table, at[:half], index, before)
        if before:  # else LLVM loads all four tables first
            (low,) = f.pin([low])
        return _blend(f, low, _look_up_one(f, table, at[half:], index, before), mask)
    entries = f.load(f.at(table, at[0], "i8"), vector(16, "i8"), 16)
    return _shuffle_bytes(f, f.shuffle(entries, None, [*range(16), *range(16)]), index)


def _shuffle_bytes(f: Function, table: Value, index: Value) -> Value:
    return f.intrinsic("llvm.x86.avx2.pshuf.b", "<32 x i8>", table, index, suffix="")


def _blend(f: Function, a: Value, b: Value, mask: Value) -> Value:
    return f.intrinsic("llvm.x86.avx2.pblendvb", "<32 x i8>", a, b, mask, suffix="")


def interleave(f: Function, low: Value, high: Value) -> list[Value]:
    """Combine two bytes to 16 bits, for both row pairs in the order of `pair_rows`."""
    out = []
    for pair in range(2):
        lanes = [lane + 8 * pair + i for lane in (0, 16) for i in range(8)]
        mixed = [x for i in lanes for x in (i, 32 + i)]
        out.append(bitcast_lanes(f, f.shuffle(low, high, mixed), 8, "i32"))
    return out
