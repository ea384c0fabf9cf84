"""The activations in a convolution's epilogue."""

from collections.abc import Callable
from math import e as euler
from math import log2

from pliant.kernels.emit import vmath
from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.values import Value

_LIMIT = 87.0
"""e**_LIMIT is a normal float, and so is its reciprocal."""

ConvActivation = Callable[[Function, Value, Value, Value], Value]
"""(function, x, low, high) -> y, the parameters in every lane."""


def _clip(f: Function, x: Value, low: Value, high: Value) -> Value:
    return f.select(f.select(x < low, low, x) > high, high, f.select(x < low, low, x))


def _leaky(f: Function, x: Value, low: Value, high: Value) -> Value:
    return f.select(x < 0.0, x * low, x)


def _hard_sigmoid(f: Function, x: Value, low: Value, high: Value) -> Value:
    """max(0, min(1, low * x + high)); NaN is kept."""
    y = f.fma(x, low, high)
    y = f.select(y < 0.0, f.const(0.0, x.type), y)
    return f.select(y > 1.0, f.const(1.0, x.type), y)


def sigmoid(f: Function, x: Value) -> Value:
    """1 / (1 + e**-x) within 2e-7 relative to 1; NaN is kept."""
    return f.const(1.0, x.type) / _one_and_exp_of_minus(f, x)


def _silu(f: Function, x: Value, low: Value, high: Value) -> Value:
    """x / (1 + e**-x); below the limit it is practically 0, and -inf gives 0 instead of NaN."""
    return _at_least(f, x, -_LIMIT) / _one_and_exp_of_minus(f, x)


def _one_and_exp_of_minus(f: Function, x: Value) -> Value:
    x = _at_least(f, x, -_LIMIT)
    x = f.select(x > _LIMIT, f.const(_LIMIT, x.type), x)
    return vmath.one_and_exp2(f, x * -log2(euler))


def _at_least(f: Function, x: Value, limit: float) -> Value:
    return f.select(x < limit, f.const(limit, x.type), x)


ACTIVATIONS: dict[str, ConvActivation] = {
    "": lambda f, x, low, high: x,
    "relu": lambda f, x, low, high: vmath.relu(f, x),
    "clip": _clip,
    "leaky": _leaky,
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": lambda f, x, low, high: x * _hard_sigmoid(f, x, low, high),
    "sigmoid": lambda f, x, low, high: sigmoid(f, x),
    "silu": _silu,
    "tanh": lambda f, x, low, high: vmath.tanh(f, x),
    "gelu": lambda f, x, low, high: vmath.gelu(f, x),
}
"""By the name in ConvForm; clip is [low, high], leaky has slope low, hard ones are low * x + high."""
