"""The cells of LSTM, GRU and RNN: from a step's sums to its state."""

from collections.abc import Callable, Sequence

from pliant.kernels.emit import elementary, vmath
from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.values import Value

Activation = Callable[[Function, Value, Value, Value], Value]
"""(function, x, alpha, beta) -> y, the parameters in every lane."""


def _thresholded(f: Function, x: Value, alpha: Value, beta: Value) -> Value:
    return f.select(x <= alpha, f.const(0.0, x.type), x)


def _hard_sigmoid(f: Function, x: Value, alpha: Value, beta: Value) -> Value:
    y = x * alpha + beta
    y = f.select(y < 0.0, f.const(0.0, x.type), y)
    return f.select(y > 1.0, f.const(1.0, x.type), y)


def _elu(f: Function, x: Value, alpha: Value, beta: Value) -> Value:
    return f.select(x < 0.0, alpha * elementary.expm1(f, x), x)


ACTIVATIONS: dict[str, tuple[Activation, float, float]] = {
    "relu": (lambda f, x, a, b: vmath.relu(f, x), 0.0, 0.0),
    "tanh": (lambda f, x, a, b: vmath.tanh(f, x), 0.0, 0.0),
    "sigmoid": (lambda f, x, a, b: elementary.sigmoid(f, x), 0.0, 0.0),
    "affine": (lambda f, x, a, b: x * a + b, 1.0, 0.0),
    "leakyrelu": (lambda f, x, a, b: f.select(x < 0.0, x * a, x), 0.01, 0.0),
    "thresholdedrelu": (_thresholded, 1.0, 0.0),
    "scaledtanh": (lambda f, x, a, b: a * vmath.tanh(f, x * b), 1.0, 1.0),
    "hardsigmoid": (_hard_sigmoid, 0.2, 0.5),
    "elu": (_elu, 1.0, 0.0),
    "softsign": (lambda f, x, a, b: x / (vmath.magnitude(f, x) + 1.0), 0.0, 0.0),
    "softplus": (lambda f, x, a, b: elementary.softplus(f, x), 0.0, 0.0),
}
"""ONNX's names in small letters: the function, and the parameters it has unless told."""

Applied = Callable[[Value], Value]
"""An activation with its parameters, after clipping."""


def lstm(
    f: Function,
    sums: Sequence[Value],
    c: Value,
    peepholes: Sequence[Value],
    couples_gates: Value,
    activations: Sequence[Applied],
) -> tuple[Value, Value]:
    """(h, c) of sums in ONNX's order i, o, f, c; peepholes i, o, f are zero where there are none."""
    gate, cell, hidden = activations
    i = gate(f.fma(peepholes[0], c, sums[0]))
    forget = gate(f.fma(peepholes[2], c, sums[2]))
    forget = f.select(couples_gates.compare("ne", 0), f.const(1.0, i.type) - i, forget)
    new = f.fma(forget, c, i * cell(sums[3]))
    return gate(f.fma(peepholes[1], new, sums[1])) * hidden(new), new


def gru(f: Function, update: Value, candidate: Value, h: Value) -> Value:
    """(1 - z) * candidate + z * h."""
    return f.fma(update, h - candidate, candidate)
