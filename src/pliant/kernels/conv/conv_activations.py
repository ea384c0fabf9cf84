"""The activations in a convolution's epilogue."""

from collections.abc import Callable
from math import inf

from pliant.kernels.emit import vmath
from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.values import Value

Activation = Callable[[Function, Value, Value, Value], Value]
"""(function, x, low, high) -> y, the parameters in every lane."""


def _clip(f: Function, x: Value, low: Value, high: Value) -> Value:
    return f.select(f.select(x < low, low, x) > high, high, f.select(x < low, low, x))


def _leaky(f: Function, x: Value, low: Value, high: Value) -> Value:
    return f.select(x < 0.0, x * low, x)


def _hard_sigmoid(f: Function, x: Value, low: Value, high: Value) -> Value:
    """max(0, min(1, low * x + high)); NaN stays."""
    y = f.fma(x, low, high)
    y = f.select(y < 0.0, f.const(0.0, x.type), y)
    return f.select(y > 1.0, f.const(1.0, x.type), y)


def sigmoid(f: Function, x: Value) -> Value:
    """1 / (1 + e**-x) within 2e-7 relative to 1; NaN stays."""
    return f.const(1.0, x.type) / (vmath.exp(f, -x) + 1.0)


def _silu(f: Function, x: Value, low: Value, high: Value) -> Value:
    # -inf * sigmoid(-inf) is -inf * 0: the limit is 0.
    safe = f.select(x.compare("eq", -inf), f.const(0.0, x.type), x)
    return safe * sigmoid(f, safe)


ACTIVATIONS: dict[str, Activation] = {
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
