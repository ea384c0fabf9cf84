"""The representation of element types in memory and in registers, and conversions between them.

Floats of 16 bits and fewer are computed in float32 and rounded once, when they are stored. Integers of 4 and
2 bits take a byte each, as in ml_dtypes; a bool is a byte in memory and a bit in registers.
"""

from dataclasses import dataclass
from typing import Literal

from pliant.kernels.emit import vmath
from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.small_floats import (
    POWERS,
    SMALL_FLOATS,
    decode,
    decode_power,
    encode,
    encode_power,
)
from pliant.kernels.emit.values import ConstantNumber, Value, like

NumberKind = Literal["float", "int", "uint", "bool"]


@dataclass(frozen=True, slots=True)
class Dtype:
    """An element type, with LLVM's types for memory and for computation."""

    name: str
    kind: NumberKind
    bits: int
    memory: str
    register: str

    @property
    def itemsize(self) -> int:
        return max(self.bits // 8, 1)

    @property
    def is_packed(self) -> bool:
        """Whether an integer has fewer bits than its byte."""
        return self.kind != "bool" and self.kind != "float" and self.bits < 8

    @property
    def lowest(self) -> ConstantNumber:
        """The smallest value, -inf of floats."""
        return float("-inf") if self.kind == "float" else -(1 << (self.bits - 1)) if self.kind == "int" else 0

    @property
    def highest(self) -> ConstantNumber:
        """The largest value, inf of floats."""
        if self.kind == "float":
            return float("inf")
        return (1 << (self.bits - 1)) - 1 if self.kind == "int" else (1 << self.bits) - 1


DTYPES = {
    row.name: row
    for row in (
        Dtype("float16", "float", 16, "i16", "float"),
        Dtype("bfloat16", "float", 16, "i16", "float"),
        Dtype("float32", "float", 32, "float", "float"),
        Dtype("float64", "float", 64, "double", "double"),
        Dtype("bool", "bool", 1, "i8", "i1"),
        *(Dtype(f"int{n}", "int", n, f"i{n}", f"i{n}") for n in (8, 16, 32, 64)),
        *(Dtype(f"uint{n}", "uint", n, f"i{n}", f"i{n}") for n in (8, 16, 32, 64)),
        *(Dtype(f"int{n}", "int", n, "i8", "i8") for n in (2, 4)),
        *(Dtype(f"uint{n}", "uint", n, "i8", "i8") for n in (2, 4)),
        *(Dtype(name, "float", 8, "i8", "float") for name in (*SMALL_FLOATS, POWERS)),
    )
}
"""By numpy's name."""


def widen(f: Function, raw: Value, dtype: Dtype) -> Value:
    """Convert a loaded value to its computation type."""
    if dtype.name == "float16":
        return vmath.half_to_float(f, raw)
    if dtype.name == "bfloat16":
        return vmath.bfloat_to_float(f, raw)
    if dtype.name in SMALL_FLOATS:
        return decode(f, raw, SMALL_FLOATS[dtype.name])
    if dtype.name == POWERS:
        return decode_power(f, raw)
    if dtype.is_packed:
        return wrap(f, raw, dtype)
    return raw.compare("ne", 0) if dtype.kind == "bool" else raw


def narrow(f: Function, value: Value, dtype: Dtype) -> Value:
    """Convert a computed value to its memory type; half floats are rounded to nearest even."""
    if dtype.name == "float16":
        return float_to_half(f, value)
    if dtype.name == "bfloat16":
        return float_to_bfloat(f, value)
    if dtype.name in SMALL_FLOATS:
        return encode(f, value, SMALL_FLOATS[dtype.name])
    if dtype.name == POWERS:
        return encode_power(f, value)
    if dtype.is_packed:
        return value & ((1 << dtype.bits) - 1)
    return f.cast("zext", value, like(value.type, "i8")) if dtype.kind == "bool" else value


def wrap(f: Function, value: Value, dtype: Dtype) -> Value:
    """An i8 wrapped to an integer of fewer bits: the upper bits are copies of the sign, or 0."""
    if dtype.kind == "uint":
        return value & ((1 << dtype.bits) - 1)
    shift = f.const(8 - dtype.bits, value.type)
    return f.op(f"ashr {value << (8 - dtype.bits)}, {shift.text}", value.type)


def convert(f: Function, value: Value, source: Dtype, target: Dtype) -> Value:
    """Convert a register of `source` to `target`, with rounding.

    Floats are truncated to integers; values out of range become the nearest integer in range, NaN becomes 0.
    Integers wrap around.
    """
    if source.name == target.name:
        return value
    if target.kind == "bool":
        return value.compare("ne", 0)
    if target.kind == "float":
        return _to_float(f, value, source, target)
    if target.is_packed:
        return wrap(f, _to_integer(f, value, source, DTYPES["int8"]), target)
    return _to_integer(f, value, source, target)


def _to_integer(f: Function, value: Value, source: Dtype, target: Dtype) -> Value:
    to = like(value.type, target.register)
    if source.kind == "float" and target.bits <= 16 and value.type.startswith("<"):
        return f.cast("trunc", _to_limits(f, value, target), to)
    if source.kind == "float":
        how = "llvm.fptosi.sat" if target.kind == "int" else "llvm.fptoui.sat"
        return f.intrinsic(how, to, value, suffix=_suffix(to) + _suffix(value.type))
    if value.type == to:
        return value
    if source.bits > target.bits:
        return f.cast("trunc", value, to)
    return f.cast("sext" if source.kind == "int" else "zext", value, to)


def _to_limits(f: Function, value: Value, target: Dtype) -> Value:
    """A vector of floats as i32 within `target`'s limits, NaN as 0.

    A select by one comparison is one instruction; LLVM's saturation to bytes needs many.
    """
    low, high = (f.const(limit, value.type) for limit in (target.lowest, target.highest))
    number = f.select(value.compare("uno", value), f.const(0.0, value.type), value)
    number = f.select(number > low, number, low)
    number = f.select(number < high, number, high)
    return f.cast("fptosi", number, like(value.type, "i32"))


def _to_float(f: Function, value: Value, source: Dtype, target: Dtype) -> Value:
    to = like(value.type, target.register)
    if source.kind != "float":
        value = f.cast("sitofp" if source.kind == "int" else "uitofp", value, to)
    elif source.register == "double" and target.bits <= 16:
        value = _round_to_odd(f, value)  # rounded to odd, so that rounding again rounds once
    elif source.register != target.register:
        value = f.cast("fpext" if target.register == "double" else "fptrunc", value, to)
    if target.bits <= 16 and source.bits != 1:
        value = widen(f, narrow(f, value, target), target)
    return value


def float_to_half(f: Function, value: Value) -> Value:
    """float32 as IEEE half bits (i16), rounded to nearest even."""
    to, wide = like(value.type, "i16"), like(value.type, "i32")
    if f.isa.has_f16c:
        return f.cast("bitcast", f.cast("fptrunc", value, like(value.type, "half")), to)
    word = f.cast("bitcast", value, wide)
    size = word & 0x7FFFFFFF
    # Rounding carries into the exponent, which moves from bias 127 to 15.
    normal = (size + 0xFFF + ((size >> 13) & 1) - (112 << 23)) >> 13
    # Below the normal halves, adding 0.5 lets the FPU round to multiples of 2**-24.
    tiny = f.cast("bitcast", f.cast("bitcast", size, value.type) + 0.5, wide) - (126 << 23)
    half = f.select(size < 0x38800000, tiny, normal)
    half = f.select(size > 0x477FEFFF, f.const(0x7C00, wide), half)
    half = f.select(size > 0x7F800000, f.const(0x7E00, wide), half)
    return f.cast("trunc", half | ((word >> 16) & 0x8000), to)


def float_to_bfloat(f: Function, value: Value) -> Value:
    """float32 as bfloat16 bits (i16), rounded to nearest even."""
    word = f.cast("bitcast", value, like(value.type, "i32"))
    rounded = (word + 0x7FFF + ((word >> 16) & 1)) >> 16
    nan = (word >> 16) | 0x40
    return f.cast("trunc", f.select(value.compare("uno", value), nan, rounded), like(value.type, "i16"))


def _round_to_odd(f: Function, value: Value) -> Value:
    """Round double to float32: to the odd one of the two neighbours unless it is exact."""
    near = f.cast("fptrunc", value, like(value.type, "float"))
    back = f.cast("fpext", near, value.type)
    word = f.cast("bitcast", near, like(value.type, "i32"))
    is_beyond = vmath.magnitude(f, back) > vmath.magnitude(f, value)
    down = f.select(is_beyond, word - 1, word)  # toward zero
    keep = back.compare("eq", value) | value.compare("uno", value)
    return f.cast("bitcast", f.select(keep, word, down | 1), near.type)


def _suffix(type_: str) -> str:
    short = {"float": "f32", "double": "f64"}
    if not type_.startswith("<"):
        return "." + short.get(type_, type_)
    lanes, _, element = type_[1:-1].split(" ")
    return f".v{lanes}{short.get(element, element)}"
