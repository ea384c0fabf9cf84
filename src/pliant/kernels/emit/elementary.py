"""Elementary functions of float32 and float64 vectors without a C library.

One formula serves both precisions; the number of terms differs. Functions that transformers do not use are
computed in float64 and rounded. Relative errors are below 1e-13 in float64 and 1e-6 in float32; for sine,
cosine and tangent if |x| < 1e5.
"""

from collections.abc import Callable
from math import factorial, inf, log, nan, pi, tau

from pliant.kernels.emit import vmath
from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.values import Value, like, scalar

Unary = Callable[[Function, Value], Value]

_LN2_HIGH, _LN2_LOW = float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33")
# pi / 2 in three parts; n times one of the first two is exact for |n| < 2**20.
_HALF_PI = (
    float.fromhex("0x1.921fb54400000p+0"),
    float.fromhex("0x1.0b4611a600000p-34"),
    float.fromhex("0x1.3198a2e037073p-69"),
)
_TAN_EIGHTH, _TAN_3_EIGHTHS = 2**0.5 - 1, 2**0.5 + 1  # of pi
# (atan(t) / t - 1) / t**2 for |t| <= tan(pi / 8), in powers of t**2 (Cephes atanf, S. Moshier).
_ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
# ln(erfc(x) e**(x*x) / t) for t = 2 / (2 + x) as Chebyshev series in 2t - 1 (our own fit at 40 digits).
_ERFC = (
    *(-1.3026537197817094342, 0.6419697923564902603, 0.019476473204185836312, -0.0095615147868086316419),
    *(-0.0009465953444820368663, 0.00036683949785276145187, 0.000042523324806907771645),
    *(-0.000020278578112534243154, -1.6242900046470255135e-6, 1.3036558355805232018e-6),
    *(1.5626441722066143178e-8, -8.5238095914926542525e-8, 6.5290544390988514964e-9),
    *(5.0593434955514689418e-9, -9.9136415649303308674e-10, -2.2736512229318358557e-10),
    *(9.646791102015526802e-11, 2.3940380830391147447e-12, -6.8860275264975533984e-12),
    *(8.9448792730907257167e-13, 3.1309213993429580783e-13, -1.1270822361367252366e-13),
    *(3.8109052551892320558e-16, 7.1060976136092369877e-15, -1.5230282014571043042e-15),
)


def in_double(function: Unary) -> Unary:
    """Extend `function`, written for float64, to float32."""

    def wrapped(f: Function, x: Value) -> Value:
        if scalar(x.type) == "double":
            return function(f, x)
        wide = function(f, f.cast("fpext", x, like(x.type, "double")))
        return f.cast("fptrunc", wide, x.type)

    return wrapped


def exp(f: Function, x: Value) -> Value:
    """e**x."""
    if scalar(x.type) == "float":
        return vmath.exp(f, x)
    bounded = clamp(f, x, -800.0, 800.0)
    n = rint(f, bounded * (1 / log(2)))
    r = f.fma(n, f.const(-_LN2_LOW, x.type), f.fma(n, f.const(-_LN2_HIGH, x.type), bounded))
    y = vmath.polynomial(f, r, [1 / factorial(k) for k in range(13, -1, -1)])
    half = f.cast("fptosi", f.select(x.compare("uno", x), f.const(0, x.type), n), like(x.type, "i32"))
    # 2**n in two steps, so that no factor overflows or underflows before the product does.
    low = f.op(f"ashr {half}, {f.const(1, half.type).text}", half.type)
    return y * _power(f, low) * _power(f, half - low)


def expm1(f: Function, x: Value) -> Value:
    """e**x - 1, with full precision for small x too."""
    terms = 15 if scalar(x.type) == "double" else 8
    near = x * vmath.polynomial(f, x, [1 / factorial(k) for k in range(terms, 0, -1)])
    is_near = vmath.magnitude(f, x) < 0.5
    return f.select(is_near, near, exp(f, x) - 1.0)


def ln(f: Function, x: Value) -> Value:
    """The natural logarithm: NaN below 0, -inf at 0."""
    is_double = scalar(x.type) == "double"
    tiny, scale = (2.0**-1022, 54) if is_double else (2.0**-126, 24)
    digits, bias, integer = (52, 1023, like(x.type, "i64")) if is_double else (23, 127, like(x.type, "i32"))
    is_tiny = x < tiny
    word = f.cast("bitcast", f.select(is_tiny, x * 2.0**scale, x), integer)
    # The mantissa lies in [1/sqrt 2, sqrt 2): a larger one carries into the exponent.
    root = 0x6A09E667F3BCD if is_double else 0x3504F3
    carried = word + ((1 << digits) - root)
    exponent = (carried >> digits) - bias
    exponent = f.select(is_tiny, exponent - scale, exponent)
    mantissa = (carried & ((1 << digits) - 1)) + ((bias << digits) - (1 << digits) + root)
    m = f.cast("bitcast", mantissa, x.type)
    e = f.cast("sitofp", f.cast("trunc", exponent, like(x.type, "i32")) if is_double else exponent, x.type)
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    terms = 10 if is_double else 4
    tail = vmath.polynomial(f, square, [2 / (2 * k + 1) for k in range(terms, 0, -1)])
    low, high = (_LN2_LOW, _LN2_HIGH) if is_double else (-2.12194440e-4, 0.693359375)
    y = f.fma(e, f.const(high, x.type), s * 2.0 + f.fma(s * square, tail, e * low))
    y = f.select(x.compare("eq", 0.0), f.const(-inf, x.type), y)
    y = f.select(x.compare("eq", inf) | x.compare("uno", x), x, y)
    return f.select(x < 0.0, f.const(nan, x.type), y)


def log1p(f: Function, x: Value) -> Value:
    """ln(1 + x): the rounding error of 1 + x is corrected by a factor."""
    y = x + 1.0
    lost = y - 1.0
    ratio = x / f.select(lost.compare("eq", 0.0), f.const(1.0, x.type), lost)
    result = ln(f, y) * ratio
    result = f.select(lost.compare("eq", 0.0), x, result)
    return f.select(y.compare("eq", inf), y, result)


def tanh(f: Function, x: Value) -> Value:
    if scalar(x.type) == "float":
        return vmath.tanh(f, x)
    t = expm1(f, clamp(f, vmath.magnitude(f, x), 0.0, 22.0) * 2.0)
    return copy_sign(f, t / (t + 2.0), x)


def sigmoid(f: Function, x: Value) -> Value:
    """1 / (1 + e**-x)."""
    return f.const(1.0, x.type) / (exp(f, -x) + 1.0)


def softplus(f: Function, x: Value) -> Value:
    """ln(1 + e**x) without overflow."""
    return vmath.relu(f, x) + log1p(f, exp(f, -vmath.magnitude(f, x)))


def erf(f: Function, x: Value) -> Value:
    """The error function: a series below 1, beyond it 1 - erfc."""
    size = vmath.magnitude(f, x)
    is_double = scalar(x.type) == "double"
    terms, limit = (14, 0.5) if is_double else (9, 1.0)
    series = [(-1) ** k / (factorial(k) * (2 * k + 1)) * 2 / pi**0.5 for k in range(terms, -1, -1)]
    bounded = clamp(f, size, 0.0, limit)
    near = bounded * vmath.polynomial(f, bounded * bounded, series)
    far = f.const(1.0, x.type) - (_erfc64(f, size) if is_double else _erfc32(f, size))
    return copy_sign(f, f.select(size > limit, far, near), x)


def gelu(f: Function, x: Value) -> Value:
    if scalar(x.type) == "float":
        return vmath.gelu(f, x)
    return x * 0.5 * (erf(f, x * 0.5**0.5) + 1.0)


def gelu_tanh(f: Function, x: Value) -> Value:
    if scalar(x.type) == "float":
        return vmath.gelu_tanh(f, x)
    inner = (x * x * 0.044715 + 1.0) * x * (2 / pi) ** 0.5
    return x * 0.5 * (tanh(f, inner) + 1.0)


@in_double
def sin(f: Function, x: Value) -> Value:
    return _sine(f, x, 0)


@in_double
def cos(f: Function, x: Value) -> Value:
    return _sine(f, x, 1)


@in_double
def tan(f: Function, x: Value) -> Value:
    return _sine(f, x, 0) / _sine(f, x, 1)


def atan(f: Function, x: Value) -> Value:
    return _atan(f, x) if scalar(x.type) == "double" else _atan32(f, x)


@in_double
def asin(f: Function, x: Value) -> Value:
    return _atan(f, x / _sqrt(f, (-x + 1.0) * (x + 1.0)))


@in_double
def acos(f: Function, x: Value) -> Value:
    return _atan(f, _sqrt(f, (-x + 1.0) / (x + 1.0))) * 2.0


@in_double
def sinh(f: Function, x: Value) -> Value:
    size = vmath.magnitude(f, x)
    t = expm1(f, clamp(f, size, 0.0, 20.0))
    half = exp(f, size * 0.5)
    return copy_sign(f, f.select(size > 20.0, half * 0.5 * half, (t + t / (t + 1.0)) * 0.5), x)


@in_double
def cosh(f: Function, x: Value) -> Value:
    half = exp(f, vmath.magnitude(f, x) * 0.5)
    return half * 0.5 * half + f.const(0.5, x.type) / (half * half)


@in_double
def asinh(f: Function, x: Value) -> Value:
    size = vmath.magnitude(f, x)
    square = size * size
    y = log1p(f, size + square / (_sqrt(f, square + 1.0) + 1.0))
    return copy_sign(f, f.select(size > 1e150, ln(f, size) + log(2), y), x)


@in_double
def acosh(f: Function, x: Value) -> Value:
    t = x - 1.0
    y = f.select(x > 1e150, ln(f, x) + log(2), log1p(f, t + _sqrt(f, t * 2.0 + t * t)))
    return f.select(x < 1.0, f.const(nan, x.type), y)


@in_double
def atanh(f: Function, x: Value) -> Value:
    size = vmath.magnitude(f, x)
    return copy_sign(f, log1p(f, size * 2.0 / (-size + 1.0)) * 0.5, x)


def power(f: Function, x: Value, y: Value) -> Value:
    """x**y as in C's pow; a negative base needs an integer exponent."""
    if scalar(x.type) == "float":
        wide = [f.cast("fpext", v, like(v.type, "double")) for v in (x, y)]
        return f.cast("fptrunc", power(f, *wide), x.type)
    size, one = vmath.magnitude(f, x), f.const(1.0, x.type)
    z = exp(f, y * ln(f, size))
    z = f.select(size.compare("eq", 1.0), one, z)
    is_whole = rint(f, y).compare("eq", y)
    is_odd = is_whole & rint(f, y * 0.5).compare("ne", y * 0.5)
    is_negative = f.cast("bitcast", x, like(x.type, "i64")) < 0
    z = f.select(is_negative & is_odd, -z, z)
    z = f.select((x < 0.0) & is_whole.compare("eq", 0) & size.compare("ne", inf), f.const(nan, x.type), z)
    z = f.select(x.compare("uno", y), f.const(nan, x.type), z)
    return f.select(y.compare("eq", 0.0) | x.compare("eq", 1.0), one, z)


def remainder(f: Function, x: Value, y: Value) -> Value:
    """x - y * trunc(x / y) with the sign of x, as C's fmod; exact for float32."""
    if scalar(x.type) == "float":
        wide = [f.cast("fpext", v, like(v.type, "double")) for v in (x, y)]
        return f.cast("fptrunc", remainder(f, *wide), x.type)
    size, by = vmath.magnitude(f, x), vmath.magnitude(f, y)
    with f.repeat([size, f.const(0)]) as loop:
        rest, n = loop.carried
        # A quotient of 24 bits times a float32 divisor is exact in float64.
        ratio = f.cast("bitcast", rest / by, like(x.type, "i64")) & -(1 << 29)
        q = trunc(f, f.cast("bitcast", ratio, x.type))
        rest = f.fma(-q, by, rest)
        is_left = f.select(rest < 0.0, by, f.const(0.0, x.type))
        rest = rest + is_left
        more = rest.compare("ge", by)
        any_more = f.fold(more, lambda a, b: a | b) if more.type.startswith("<") else more
        loop.repeat_if(any_more & (n < 100), [rest, n + 1])
    rest = f.select(by.compare("eq", inf) & (size < inf), size, loop.carried[0])
    rest = f.select(size < by, size, rest)
    rest = f.select(by.compare("eq", 0.0) | size.compare("eq", inf), f.const(nan, x.type), rest)
    return copy_sign(f, rest, x)


def rint(f: Function, x: Value) -> Value:
    """The nearest integer, ties to even."""
    if _has_round(f):
        return f.intrinsic("llvm.rint", x.type, x)
    size = vmath.magnitude(f, x)
    limit = 2.0**52 if scalar(x.type) == "double" else 2.0**23
    return copy_sign(f, f.select(size < limit, size + limit - limit, size), x)


def floor(f: Function, x: Value) -> Value:
    if _has_round(f):
        return f.intrinsic("llvm.floor", x.type, x)
    near = rint(f, x)
    return copy_sign(f, near - f.select(near > x, f.const(1.0, x.type), f.const(0.0, x.type)), x)


def ceil(f: Function, x: Value) -> Value:
    if _has_round(f):
        return f.intrinsic("llvm.ceil", x.type, x)
    return -floor(f, -x)


def trunc(f: Function, x: Value) -> Value:
    if _has_round(f):
        return f.intrinsic("llvm.trunc", x.type, x)
    return copy_sign(f, floor(f, vmath.magnitude(f, x)), x)


def clamp(f: Function, x: Value, low: float, high: float) -> Value:
    """x no less than `low` and no more than `high`; NaN is kept."""
    x = f.select(x > high, f.const(high, x.type), x)
    return f.select(x < low, f.const(low, x.type), x)


def copy_sign(f: Function, size: Value, sign: Value) -> Value:
    """`size` with the sign of `sign`."""
    return f.intrinsic("llvm.copysign", size.type, size, sign)


def _has_round(f: Function) -> bool:
    return f.isa.name != "x86-64"  # SSE4.1's rounding; without it LLVM would call the C library


def _sqrt(f: Function, x: Value) -> Value:
    return f.intrinsic("llvm.sqrt", x.type, x)


def _power(f: Function, n: Value) -> Value:
    """2**n as double, for an i32 n in double's range."""
    wide = like(n.type, "i64")
    word = f.cast("sext", n, wide) + 1023
    return f.cast("bitcast", word << 52, like(n.type, "double"))


def _sine(f: Function, x: Value, quadrant: int) -> Value:
    """sin(x + quadrant * pi / 2) in float64."""
    bounded = f.select(vmath.magnitude(f, x) < 1e9, x, x - x)  # beyond, no digit would be correct
    n = rint(f, bounded * (2 / pi))
    r = bounded
    for part in _HALF_PI:
        r = f.fma(n, f.const(-part, x.type), r)
    square = r * r
    odd = [(-1) ** k / factorial(2 * k + 1) for k in range(8, 0, -1)]
    even = [(-1) ** k / factorial(2 * k) for k in range(9, -1, -1)]
    sine = f.fma(r * square, vmath.polynomial(f, square, odd), r)
    cosine = vmath.polynomial(f, square, even)
    safe = f.select(x.compare("uno", x) | n.compare("uno", n), f.const(0.0, x.type), n)
    turn = f.cast("fptosi", safe, like(x.type, "i32")) + quadrant
    y = f.select((turn & 1).compare("eq", 0), sine, cosine)
    return f.select((turn & 2).compare("eq", 0), y, -y)


def _atan(f: Function, x: Value) -> Value:
    """atan in float64, by two reductions to |t| <= tan(pi / 16)."""
    size = vmath.magnitude(f, x)
    is_large = size > 1.0
    one = f.const(1.0, x.type)
    t = f.select(is_large, one / size, size)
    # atan(t) = 2 atan(t / (1 + sqrt(1 + t*t))), twice
    for _ in range(2):
        t = t / (_sqrt(f, f.fma(t, t, one)) + 1.0)
    square = t * t
    series = [(-1) ** k / (2 * k + 1) for k in range(11, 0, -1)]
    y = f.fma(t * square, vmath.polynomial(f, square, series), t) * 4.0
    return copy_sign(f, f.select(is_large, f.const(tau / 4, x.type) - y, y), x)


def _atan32(f: Function, x: Value) -> Value:
    """atan reduced to |t| <= tan(pi / 8), as in Cephes' atanf."""
    size, one = vmath.magnitude(f, x), f.const(1.0, x.type)
    is_large, is_middle = size > _TAN_3_EIGHTHS, size > _TAN_EIGHTH
    over = f.select(is_large, -one, size - 1.0)
    under = f.select(is_large, size, size + 1.0)
    t = f.select(is_middle, over / under, size)
    base = f.select(is_large, f.const(pi / 2, x.type), f.const(pi / 4, x.type))
    square = t * t
    y = f.fma(t * square, vmath.polynomial(f, square, _ATAN), t)
    return copy_sign(f, f.select(is_middle, base + y, y), x)


def _erfc32(f: Function, size: Value) -> Value:
    base = vmath.polynomial(f, clamp(f, size, 0.0, 12.0), [*_ERFC_POWERS, 1.0])
    for _ in range(4):
        base = base * base
    return f.const(1.0, size.type) / base


# erfc(z) = 1 / (1 + a1 z + ... + a6 z**6)**16 within 3e-7 (Abramowitz and Stegun, 7.1.28).
_ERFC_POWERS = (0.0000430638, 0.0002765672, 0.0001520143, 0.0092705272, 0.0422820123, 0.0705230784)


def _erfc64(f: Function, size: Value) -> Value:
    """erfc of a positive number: Clenshaw's sum of a Chebyshev series."""
    size = clamp(f, size, 0.0, 30.0)
    t = f.const(2.0, size.type) / (size + 2.0)
    twice = t * 4.0 - 2.0
    d = before = f.const(0.0, size.type)
    for c in _ERFC[:0:-1]:
        d, before = f.fma(twice, d, f.const(c, size.type) - before), d
    inner = f.fma(twice * 0.5, d, f.const(_ERFC[0] / 2, size.type) - before)
    return t * exp(f, inner - size * size)
