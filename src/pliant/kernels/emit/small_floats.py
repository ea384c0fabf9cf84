"""Convert floats of 8 and 4 bits, one per byte in memory, to float32 and back.

Layouts are those of ml_dtypes and of ONNX's float8 types (OCP formats and their FNUZ variants).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.values import Value, vector

_NAN = 0x7FC00000


@dataclass(frozen=True, slots=True)
class SmallFloat:
    """Sign, `exponent` and `mantissa` bits; codes without sign: the `largest` number, `overflow` (the code
    after it), and `nan`.

    `has_zero_sign` is False for FNUZ types, whose only NaN has the code of -0.
    """

    exponent: int
    mantissa: int
    bias: int
    largest: int
    overflow: int
    nan: int
    has_zero_sign: bool = True

    @property
    def sign(self) -> int:
        return 1 << (self.exponent + self.mantissa)

    @property
    def highest(self) -> float:
        """The largest number."""
        exponent, mantissa = self.largest >> self.mantissa, self.largest & ((1 << self.mantissa) - 1)
        return 2.0 ** (exponent - self.bias) * (1 + mantissa / (1 << self.mantissa))


SMALL_FLOATS: Mapping[str, SmallFloat] = {
    "float8_e4m3fn": SmallFloat(4, 3, 7, 0x7E, 0x7F, 0x7F),
    "float8_e4m3fnuz": SmallFloat(4, 3, 8, 0x7F, 0x80, 0x80, has_zero_sign=False),
    "float8_e5m2": SmallFloat(5, 2, 15, 0x7B, 0x7C, 0x7E),
    "float8_e5m2fnuz": SmallFloat(5, 2, 16, 0x7F, 0x80, 0x80, has_zero_sign=False),
    "float4_e2m1fn": SmallFloat(2, 1, 1, 7, 7, 8),
}
"""The types by ml_dtypes' name. float4 has no NaN: it becomes -0, as in ml_dtypes."""

POWERS = "float8_e8m0fnu"
"""Powers of two: an exponent without sign or mantissa."""


def encode(f: Function, value: Value, kind: SmallFloat) -> Value:
    """float32 as bytes, rounded to nearest even."""
    wide = _like(value.type, "i32")
    word = f.cast("bitcast", value, wide)
    size, shift = word & 0x7FFFFFFF, 23 - kind.mantissa
    rounding = ((size >> shift) & 1) + ((1 << (shift - 1)) - 1)
    normal = (size + rounding - ((127 - kind.bias) << 23)) >> shift
    # Below the normal numbers, adding a float whose last digit is theirs lets the FPU round.
    digit = 2.0 ** (24 - kind.bias - kind.mantissa)
    magic = f.cast("bitcast", f.const(digit, value.type), wide)
    tiny = f.cast("bitcast", f.cast("bitcast", size, value.type) + digit, wide) - magic
    code = f.select(size < ((128 - kind.bias) << 23), tiny, normal)
    code = f.select(code > kind.largest, f.const(kind.overflow, wide), code)
    sign = f.select(word < 0, f.const(kind.sign, wide), f.const(0, wide))
    if not kind.has_zero_sign:
        sign = f.select(code.compare("eq", 0), f.const(0, wide), sign)
    is_nan = size > 0x7F800000
    sign = f.select(is_nan, f.const(0, wide), sign) if kind.nan == kind.sign else sign
    code = f.select(is_nan, f.const(kind.nan, wide), code)
    return f.cast("trunc", code | sign, _like(value.type, "i8"))


def decode(f: Function, code: Value, kind: SmallFloat) -> Value:
    """Bytes as float32, exactly."""
    wide, result = _like(code.type, "i32"), _like(code.type, "float")
    word = f.cast("zext", code, wide)
    size = word & (kind.sign - 1)
    scaled = f.cast("bitcast", size << (23 - kind.mantissa), result) * 2.0 ** (127 - kind.bias)
    bits = f.cast("bitcast", scaled, wide)
    if kind.overflow < kind.nan:  # infinity, and above it NaN
        special = (size << (23 - kind.mantissa)) | 0x7F800000
        bits = f.select(size > kind.largest, special, bits)
    elif kind.overflow == kind.nan and kind.has_zero_sign:
        bits = f.select(size.compare("eq", kind.nan), f.const(_NAN, wide), bits)
    sign = (word & kind.sign) << (31 - kind.exponent - kind.mantissa)
    if not kind.has_zero_sign:
        bits = f.select(word.compare("eq", kind.nan), f.const(_NAN, wide), bits)
    return f.cast("bitcast", bits | sign, result)


def encode_power(f: Function, value: Value) -> Value:
    """The exponent of a float32, which is already rounded to a power of two, as a byte."""
    word = f.cast("bitcast", value, _like(value.type, "i32"))
    return f.cast("trunc", word >> 23, _like(value.type, "i8"))


def decode_power(f: Function, code: Value) -> Value:
    """2**(byte - 127); 255 is NaN."""
    wide = _like(code.type, "i32")
    word = f.cast("zext", code, wide)
    bits = f.select(word.compare("eq", 0), f.const(0x00400000, wide), word << 23)
    bits = f.select(word.compare("eq", 255), f.const(_NAN, wide), bits)
    return f.cast("bitcast", bits, _like(code.type, "float"))


def to_power(f: Function, value: Value, how: str, saturates: bool) -> Value:
    """The magnitude of a float32 as a power of two, rounded `up`, `down` or to `nearest`; NaN (2**128) if too
    large.
    """
    wide = _like(value.type, "i32")
    size = f.cast("bitcast", value, wide) & 0x7FFFFFFF
    exponent = size & 0x7F800000
    step = {"up": 0x7FFFFF, "nearest": 0x400000, "down": 0}[how]
    rounded = (size + step) & 0x7F800000
    if how == "nearest":  # half of the smallest power rounds down
        is_half = size.compare("eq", 0x400000)
        rounded = f.select(is_half, exponent, rounded)
    if saturates:
        rounded = f.select(exponent.compare("eq", 0x7F000000), exponent, rounded)
    rounded = f.select(exponent.compare("eq", 0x7F800000), exponent, rounded)
    return f.cast("bitcast", rounded, value.type)


def _like(type_: str, element: str) -> str:
    return vector(int(type_[1:].split(" ")[0]), element) if type_.startswith("<") else element
