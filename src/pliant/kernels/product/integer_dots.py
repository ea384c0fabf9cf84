"""Lanes of int16 pairs or of four bytes, multiplied and added in int32: by the CPU's instruction for it.

Every sum is exact modulo 2**32.
"""

from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value, vector

_PAIRS = {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}
_BYTES = {8: "llvm.x86.avx512.vpdpbusd.256", 16: "llvm.x86.avx512.vpdpbusd.512"}


def left_is_signed(isa: Isa) -> bool:
    """Whether the left bytes of `add_quads` are signed: Arm's are, those of VNNI are not."""
    return isa.name == "neon"


def splat_word(f: Function, word: Value) -> Value:
    """An i32 word of A in every lane, for `add_pairs` and `add_quads`."""
    lanes = f.splat(word)
    # Opaque, else LLVM keeps both halves of each vector of B in registers; SMULL2 reads the upper one.
    return f.black_box(lanes) if f.isa.name == "neon" else lanes


def add_pairs(f: Function, total: Value, x: Value, y: Value) -> Value:
    """total + x's int16 times y's, two to an i32 lane."""
    halves, whole = vector(2 * f.lanes, "i16"), vector(f.lanes, "i32")
    x, y = f.cast("bitcast", x, halves), f.cast("bitcast", y, halves)
    if f.isa.name != "neon" and not f.isa.is_portable:
        return total + f.intrinsic(_PAIRS[f.lanes], whole, x, y, suffix="")
    if f.isa.name == "neon" and not f.isa.is_portable:
        low, high = (_halves(f, x, y, first) for first in (0, f.lanes))
        return total + f.intrinsic("llvm.aarch64.neon.addp", whole, low, high)
    wide = vector(2 * f.lanes, "i32")
    products = f.cast("sext", x, wide) * f.cast("sext", y, wide)
    even, odd = (f.shuffle(products, None, range(i, 2 * f.lanes, 2)) for i in (0, 1))
    return total + (even + odd)


def _halves(f: Function, x: Value, y: Value, first: int) -> Value:
    """Products of `lanes` int16 of x and y from `first` on, in int32."""
    x, y = (f.shuffle(z, None, range(first, first + f.lanes)) for z in (x, y))
    return f.intrinsic("llvm.aarch64.neon.smull", vector(f.lanes, "i32"), x, y)


def add_quads(f: Function, total: Value, x: Value, y: Value) -> Value:
    """total + x's bytes times y's signed bytes, four to an i32 lane; on rows with `has_dot`."""
    assert f.isa.has_dot, f.isa.name
    if f.isa.is_portable:
        return add_quads_portably(f, total, x, y)
    if f.isa.name == "neon":
        x, y = (f.cast("bitcast", z, vector(4 * f.lanes, "i8")) for z in (x, y))
        return f.intrinsic("llvm.aarch64.neon.sdot", total.type, total, x, y, suffix=".v4i32.v16i8")
    return f.intrinsic(_BYTES[f.lanes], total.type, total, x, y, suffix="")


def add_quads_portably(f: Function, total: Value, x: Value, y: Value) -> Value:
    """The same in plain arithmetic, on any row."""
    wide = vector(4 * f.lanes, "i32")
    x, y = (f.cast("bitcast", z, vector(4 * f.lanes, "i8")) for z in (x, y))
    left = f.cast("sext" if left_is_signed(f.isa) else "zext", x, wide)
    products = left * f.cast("sext", y, wide)
    for i in range(4):
        total = total + f.shuffle(products, None, range(i, 4 * f.lanes, 4))
    return total
