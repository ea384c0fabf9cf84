"""Pairs of bfloat16 in 32-bit lanes: converted from floats, multiplied and added in float32.

The low half of a lane is the pair's first number. A CPU with AVX512-BF16 or Arm's BF16 treats subnormal
numbers as zero, here and in its sums; the portable lowering keeps them.
"""

from collections.abc import Sequence

from pliant.errors import InputError
from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.dtypes import float_to_bfloat
from pliant.kernels.emit.isa import TARGETS, Isa
from pliant.kernels.emit.values import Value, like, vector

_DOT = {"avx512": "llvm.x86.avx512bf16.dpbf16ps.512", "neon": "llvm.aarch64.neon.bfdot.v4f32.v8bf16"}
_BLOCK = "llvm.aarch64.neon.bfmmla"
_ROUND_TWO = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
_UPPER, _HALF = -65536, 1 << 15


def require_bf16(isa: Isa) -> None:
    """Raises InputError if a row has no products of bfloat16."""
    if not isa.has_bf16:
        having = ", ".join(name for name, row in TARGETS.items() if row.has_bf16)
        raise InputError(
            f"the row {isa.target} lacks products of bfloat16, which {having} have. Instead of "
            "compute='bf16', give 'int8', which is faster and less exact and takes weights=8 or fewer (a "
            "store's are), or 'fp32'."
        )


def add_pairs_bf16(f: Function, x: Value, y: Value, total: Value) -> Value:
    """total + both products of the pairs of x and y, vectors of float32 that hold words."""
    if not f.isa.is_portable:
        halves = vector(2 * f.lanes, "bfloat")
        x, y = (f.cast("bitcast", z, halves) for z in (x, y))
        return f.intrinsic(_DOT[f.isa.name], total.type, total, x, y, suffix="")
    for half in (_first, _second):
        total = f.fma(half(f, x), half(f, y), total)
    return total


def add_block_bf16(f: Function, x: Value, y: Value, total: Value) -> Value:
    """total + x @ y of Arm's BF16: [2 rows][2 words] and [2 columns][2 words] to [2 rows][2 columns]."""
    halves = vector(2 * f.lanes, "bfloat")
    x, y = (f.cast("bitcast", z, halves) for z in (x, y))
    return f.intrinsic(_BLOCK, total.type, total, x, y, suffix="")


def round_pairs(f: Function, first: Value, second: Value) -> Value:
    """i32 lanes whose halves are the lanes of two vectors of float32, rounded to nearest even."""
    if _rounds(f.isa):
        halves = f.cast("bitcast", round_row(f, first, second), vector(2 * f.lanes, "i16"))
        order = [i + half for i in range(f.lanes) for half in (0, f.lanes)]
        return f.cast("bitcast", f.shuffle(halves, None, order), vector(f.lanes, "i32"))
    low, high = (f.cast("zext", float_to_bfloat(f, x), vector(f.lanes, "i32")) for x in (first, second))
    return low | (high << 16)


def round_row(f: Function, low: Value, high: Value) -> Value:
    """As many words as a vector has lanes: the numbers of `low`, then those of `high`, consecutive."""
    words = vector(f.lanes, "i32")
    if _rounds(f.isa):
        two = f.intrinsic(_ROUND_TWO, vector(2 * f.lanes, "bfloat"), high, low, suffix="")
        return f.cast("bitcast", two, words)
    both = f.shuffle(float_to_bfloat(f, low), float_to_bfloat(f, high), range(2 * f.lanes))
    return f.cast("bitcast", both, words)


def round_one(f: Function, x: Value) -> Value:
    """A float as the bits of a bfloat16 (i16)."""
    return float_to_bfloat(f, x)


def round_remainder(f: Function, x: Value) -> Value:
    """The remainder of floats after rounding to bfloat16: x minus the nearest."""
    words = f.cast("zext", float_to_bfloat(f, x), like(x.type, "i32")) << 16
    return x - f.cast("bitcast", words, x.type)


def split_floats(f: Function, x: Value) -> tuple[Value, Value]:
    """Floats as the sum of the nearest bfloat16 (the larger of two) and the remainder.

    Three instructions; the remainder of NaN and of infinity is NaN.
    """
    words = (f.cast("bitcast", x, like(x.type, "i32")) + _HALF) & _UPPER
    upper = f.cast("bitcast", words, x.type)
    return upper, x - upper


def store_parts(f: Function, two: Sequence[Value], places: Sequence[Value]) -> None:
    """Two vectors of floats as pairs of their upper parts, and pairs of their remainders rounded."""
    (first, low), (second, high) = (split_floats(f, x) for x in two)
    words = [f.cast("bitcast", x, vector(f.lanes, "i32")) for x in (first, second)]
    for pairs, place in zip(((words[0] >> 16) | words[1], round_pairs(f, low, high)), places, strict=True):
        f.store(pairs, place, 4 * f.lanes)


def _rounds(isa: Isa) -> bool:
    """Whether the row has an instruction for rounding that is used here."""
    return isa.name == "avx512" and not isa.is_portable


def _first(f: Function, words: Value) -> Value:
    return f.cast("bitcast", f.cast("bitcast", words, vector(f.lanes, "i32")) << 16, f.vec)


def _second(f: Function, words: Value) -> Value:
    return f.cast("bitcast", f.cast("bitcast", words, vector(f.lanes, "i32")) & _UPPER, f.vec)
