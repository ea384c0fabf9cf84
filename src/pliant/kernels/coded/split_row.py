"""A row of float32 as sums of two bfloat16, laid out for products of pairs, and those products.

For each 32 values, 64 bytes hold the rounded values and 64 bytes the rounded remainders: i32 of values i and
i + 2 for i & 3 < 2, the order of decoded weight pairs. Values from 3.39e38 on exceed bfloat16 and become
infinite.
"""

from pliant.kernels.coded.fill import GROUP_ROWS
from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.dtypes import float_to_bfloat
from pliant.kernels.emit.values import Value, vector
from pliant.kernels.emit.vmath import magnitude

_HALVES = 16
_PAIRED = [4 * (i // 4) + (0, 2, 1, 3)[i % 4] for i in range(_HALVES)]
_DOT = "llvm.x86.avx512bf16.dpbf16ps.512"


def split_row(f: Function, x: Value, n: Value, to: Value) -> None:
    """Lay out n values, a multiple of 32, from `x` in 4 n bytes at `to`."""
    with f.each(0, n, _HALVES) as i:
        values = f.load(f.at(x, i), vector(_HALVES, "float"))
        rounded = _round(f, values)
        upper = f.cast("bitcast", f.cast("zext", rounded, vector(_HALVES, "i32")) << 16, values.type)
        is_finite = magnitude(f, upper) < float("inf")
        left = f.select(is_finite, values - upper, f.const(0.0, values.type))
        half = f.at(to, (i & -GROUP_ROWS) + ((i & _HALVES) >> 1), "i32")
        _store_pairs(f, rounded, half)
        _store_pairs(f, _round(f, left), f.at(half, _HALVES, "i32"))


def add_products(
    f: Function, split: Value, row: int, weights: Value, sums: tuple[Value, Value]
) -> list[Value]:
    """(sums of rounded values, sums of remainders), with the products of rows `row` and `row` + 2 added."""
    pair = f.at(split, row // 4 * 2 + row % 4, "i32")
    added = []
    for at, total in zip((0, _HALVES), sums, strict=True):
        words = f.splat(f.load(f.at(pair, at, "i32"), "i32"))
        added.append(_add_pairs(f, total, weights, words))
    return added


def _round(f: Function, values: Value) -> Value:
    """Round to bfloat16, in i16. Without an instruction for it, LLVM would call a C function."""
    if f.isa.is_portable:
        return float_to_bfloat(f, values)
    rounded = f.cast("fptrunc", values, vector(_HALVES, "bfloat"))
    return f.cast("bitcast", rounded, vector(_HALVES, "i16"))


def _store_pairs(f: Function, halves: Value, to: Value) -> None:
    f.store(f.shuffle(halves, None, _PAIRED), to)


def _add_pairs(f: Function, total: Value, x: Value, y: Value) -> Value:
    """total + the products of both bfloat16 of each lane; `y` may be read from memory by the instruction."""
    if not f.isa.is_portable:
        bfloats = vector(2 * f.lanes, "bfloat")
        return f.intrinsic(_DOT, f.vec, total, *(f.cast("bitcast", z, bfloats) for z in (x, y)), suffix="")
    for left, right in ((x << 16, y << 16), (x & -65536, y & -65536)):
        total = f.fma(f.cast("bitcast", left, f.vec), f.cast("bitcast", right, f.vec), total)
    return total
