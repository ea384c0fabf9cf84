"""Vector mathematics as IR: exp, tanh, the activations, half floats.

Every function takes vectors (or scalars) of floats and keeps NaN; bounds are absolute unless called relative,
hold for all finite float32, and are tested against float64.
"""

from collections.abc import Callable, Sequence
from math import e as euler
from math import log2, pi, sqrt

from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.values import Value, like

# (e**r - 1 - r) / r**2 for |r| <= 0.35, minimax (Cephes expf, S. Moshier).
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
# 2**r - 1 for |r| <= 0.5 in powers of r: our own minimax fit, within 2e-9.
_EXP2 = (1.53533612e-4, 1.33988747e-3, 9.61843736e-3, 5.55033247e-2, 2.40226479e-1, 6.93147203e-1, 1.0)
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
# Adding 1.5 * 2**23 + 127 leaves the nearest integer, with float32's exponent bias, in the low bits.
_ROUNDER = 12582912.0 + 127.0
_SMALLEST, _LARGEST_POWER = -87.336544, 127.0
# erfc(z) = 1 / (1 + a1 z + ... + a6 z**6)**16 within 3e-7 (Abramowitz and Stegun, 7.1.28).
_ERFC = (0.0000430638, 0.0002765672, 0.0001520143, 0.0092705272, 0.0422820123, 0.0705230784)
# tanh(x) = x P(x*x) / Q(x*x) on |x| <= 8.6: our own rational minimax fit, within 7e-10.
_TANH_P = (-1.2961575e-11, 3.1566767e-08, 2.8403709e-05, 0.0038876447, 0.1369525, 1.0)
_TANH_Q = (1.3154241e-06, 0.00039729138, 0.027316274, 0.47028583, 1.0)
_TANH_LIMIT = 8.6
_GELU_LIMIT = 15.0  # gelu(x) and relu(x) are equal floats from here on


def exp(f: Function, x: Value) -> Value:
    """e**x within 1.5e-7 relative, 3e-7 in the last half power of 2 before overflow.

    Results below the normal floats are 0, above them inf.
    """
    n = x * log2(euler) + _ROUNDER
    return _scaled_exp(f, x, _least(f, n, _ROUNDER + _LARGEST_POWER))


def exp_nonpositive(f: Function, x: Value) -> Value:
    """As `exp`, for x <= 0 only: as in softmax, two instructions shorter."""
    return _scaled_exp(f, x, f.fma(x, f.const(log2(euler), x.type), f.const(_ROUNDER, x.type)))


def exp2_nonpositive(f: Function, x: Value) -> Value:
    """2**x within 1.5e-7 relative for x <= 0; 0 below -126."""
    shifted = x + _ROUNDER
    y = polynomial(f, x - (shifted - _ROUNDER), _EXP2)
    return f.select(x < -126.0, f.const(0.0, x.type), y * _power(f, shifted))


def one_and_exp2(f: Function, x: Value) -> Value:
    """1 + 2**x within 2e-7 relative for -126 <= x <= 126."""
    shifted = x + _ROUNDER
    y = polynomial(f, x - (shifted - _ROUNDER), _EXP2)
    return f.fma(y, _power(f, shifted), f.const(1.0, x.type))


def tanh(f: Function, x: Value) -> Value:
    """tanh(x) within 4e-7, relative for small x; never beyond 1."""
    x = _clamp(f, x, _TANH_LIMIT)
    u = x * x
    return _clamp(f, x * polynomial(f, u, _TANH_P) / polynomial(f, u, _TANH_Q), 1.0)


def gelu(f: Function, x: Value) -> Value:
    """x * Phi(x) by erf, within 1e-6; -inf gives 0, the limit.

    Written as relu(x) - |x| erfc(|x| / sqrt 2) / 2, which is exact where gelu meets relu.
    """
    size = _least(f, magnitude(f, x), _GELU_LIMIT)
    coefficients = [a * sqrt(0.5) ** power for a, power in zip(_ERFC, range(6, 0, -1), strict=True)]
    base = polynomial(f, size, [*coefficients, 1.0])
    for _ in range(4):
        base = base * base
    return relu(f, x) - size * 0.5 / base


def gelu_tanh(f: Function, x: Value) -> Value:
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3))) / 2, within 1e-6; -inf gives 0, the limit."""
    size = _least(f, magnitude(f, x), _GELU_LIMIT)
    inner = f.fma(size * size, f.const(0.044715, x.type), f.const(1.0, x.type)) * size
    return relu(f, x) - size / (exp(f, inner * (2 * sqrt(2 / pi))) + 1.0)


def relu(f: Function, x: Value) -> Value:
    """max(x, 0); NaN is kept."""
    return f.select(x < 0.0, f.const(0.0, x.type), x)


ACTIVATIONS: dict[str, Callable[[Function, Value], Value]] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": relu,
    "tanh": tanh,
}
"""By the names of `ModelSpec.activation`."""


def polynomial(f: Function, x: Value, coefficients: Sequence[float]) -> Value:
    """Horner's rule, highest power first."""
    result = f.const(coefficients[0], x.type)
    for c in coefficients[1:]:
        result = f.fma(result, x, f.const(c, x.type))
    return result


def magnitude(f: Function, x: Value) -> Value:
    return f.intrinsic("llvm.fabs", x.type, x)


def largest(f: Function, a: Value, b: Value) -> Value:
    """The larger of two; b if either is NaN."""
    return f.select(a > b, a, b)


def half_to_float(f: Function, bits: Value) -> Value:
    """IEEE half floats, as i16, exactly; with integer operations if the CPU has no conversion."""
    wide = like(bits.type, "i32")
    if f.isa.has_f16c:
        return f.cast("fpext", f.cast("bitcast", bits, like(bits.type, "half")), like(bits.type, "float"))
    # Exponent and mantissa moved to float32's places are the value times 2**-112: one exact product.
    word = f.cast("zext", bits, wide)
    scaled = f.cast("bitcast", (word & 0x7FFF) << 13, like(bits.type, "float")) * 2.0**112
    is_special = (word & 0x7C00).compare("eq", 0x7C00)
    finite = f.cast("bitcast", scaled, wide)
    special = ((word & 0x7FFF) << 13) | 0x7F800000
    sign = (word & 0x8000) << 16
    return f.cast("bitcast", f.select(is_special, special, finite) | sign, like(bits.type, "float"))


def bfloat_to_float(f: Function, bits: Value) -> Value:
    """bfloat16, as i16, exactly."""
    word = f.cast("zext", bits, like(bits.type, "i32")) << 16
    return f.cast("bitcast", word, like(bits.type, "float"))


def _scaled_exp(f: Function, x: Value, shifted: Value) -> Value:
    """exp(x), given round(x / ln 2) + _ROUNDER."""
    n = shifted - _ROUNDER
    r = f.fma(n, f.const(-_LN2_HIGH, x.type), x)
    r = f.fma(n, f.const(-_LN2_LOW, x.type), r)
    y = f.fma(polynomial(f, r, _EXP), r * r, r) + 1.0
    return f.select(x < _SMALLEST, f.const(0.0, x.type), y * _power(f, shifted))


def _power(f: Function, shifted: Value) -> Value:
    """2**n, given n + _ROUNDER."""
    exponent = f.cast("bitcast", shifted, like(shifted.type, "i32")) << 23
    return f.cast("bitcast", exponent, shifted.type)


def _least(f: Function, x: Value, limit: float) -> Value:
    return f.select(x > limit, f.const(limit, x.type), x)


def _clamp(f: Function, x: Value, limit: float) -> Value:
    x = _least(f, x, limit)
    return f.select(x < -limit, f.const(-limit, x.type), x)
