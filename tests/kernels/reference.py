"""What every kernel should compute, in plain numpy and float64. The oracle of tests; nothing runs on it.

Inputs of any float type; results are float64. NaN and infinity go where IEEE arithmetic takes them.
"""

from math import erf, pi, sqrt

import numpy as np

from pliant.arrays import Float, Integer

Matrix = Float[np.ndarray, "rows columns"]

_erf = np.vectorize(erf, otypes=[np.float64])


def gemm(
    a: Float[np.ndarray, "m k"],
    b: Float[np.ndarray, "k n"],
    bias: Float[np.ndarray, " n"] | None = None,
    activation_name: str | None = None,
    residual: Float[np.ndarray, "m n"] | None = None,
) -> Float[np.ndarray, "m n"]:
    """activation(a @ b + bias) + residual; each of the three may be missing."""
    c = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    if bias is not None:
        c = c + bias
    if activation_name is not None:
        c = activation(c, activation_name)
    return _array(c if residual is None else c + residual)


def activation(x: Float[np.ndarray, "..."], name: str) -> Float[np.ndarray, "..."]:
    """One of `gelu`, `gelu_tanh`, `relu`, `tanh`; both gelus are 0 at -inf, their limit."""
    x = np.asarray(x, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        if name == "relu":
            return _array(np.where(x < 0, 0.0, x))
        if name == "tanh":
            return _array(np.tanh(x))
        if name == "gelu":
            gate = 1 + _erf(x / sqrt(2))
        elif name == "gelu_tanh":
            gate = 1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))
        else:
            raise ValueError(f"no activation is called {name!r}")
        return _array(np.where(x == -np.inf, 0.0, 0.5 * x * gate))


def layer_norm(
    x: Matrix, weight: Float[np.ndarray, " columns"], bias: Float[np.ndarray, " columns"], eps: float
) -> Matrix:
    """Each row centred, divided by sqrt(variance + eps), times weight, plus bias."""
    x = np.asarray(x, np.float64)
    with np.errstate(invalid="ignore"):
        centred = x - x.mean(axis=1, keepdims=True)
        variance = (centred**2).mean(axis=1, keepdims=True)
        return _array(centred / np.sqrt(variance + eps) * weight + bias)


def softmax(x: Float[np.ndarray, "*rows columns"]) -> Float[np.ndarray, "*rows columns"]:
    """exp(x) over its sum along the last axis, shifted by the maximum."""
    x = np.asarray(x, np.float64)
    with np.errstate(invalid="ignore"):
        y = np.exp(x - x.max(axis=-1, keepdims=True))
        return _array(y / y.sum(axis=-1, keepdims=True))


def mean(x: Matrix) -> Float[np.ndarray, " columns"]:
    """The mean over rows."""
    return _array(np.asarray(x, np.float64).mean(axis=0))


def lstm(
    x: Float[np.ndarray, "steps inputs"],
    w: Float[np.ndarray, "rows inputs"],
    r: Float[np.ndarray, "rows hidden"],
    b: Float[np.ndarray, " rows"],
) -> Float[np.ndarray, "steps hidden"]:
    """One direction from a zero state; gates i, f, g, o in torch's order, `b` the sum of both biases."""
    w, r = np.asarray(w, np.float64), np.asarray(r, np.float64)
    h = c = np.zeros(r.shape[1])
    states = []
    for row in x:
        i, f, g, o = np.split(w @ row + r @ h + b, 4)
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
        h = _sigmoid(o) * np.tanh(c)
        states.append(h)
    return _array(states)


def gru(
    x: Float[np.ndarray, "steps inputs"],
    w: Float[np.ndarray, "rows inputs"],
    r: Float[np.ndarray, "rows hidden"],
    b_input: Float[np.ndarray, " rows"],
    b_hidden: Float[np.ndarray, " rows"],
) -> Float[np.ndarray, "steps hidden"]:
    """One direction from a zero state; gates r, z, n in torch's order, the reset behind the product."""
    w, r = np.asarray(w, np.float64), np.asarray(r, np.float64)
    h = np.zeros(r.shape[1])
    states = []
    for row in x:
        r_x, z_x, n_x = np.split(w @ row + b_input, 3)
        r_h, z_h, n_h = np.split(r @ h + b_hidden, 3)
        z = _sigmoid(z_x + z_h)
        h = (1 - z) * np.tanh(n_x + _sigmoid(r_x + r_h) * n_h) + z * h
        states.append(h)
    return _array(states)


def attention(
    qkv: Float[np.ndarray, "tokens width"], n_heads: int, scale: float
) -> Float[np.ndarray, "tokens out"]:
    """softmax(scale * q k^T) v for each head; the columns of a head are [q | k | v], all of one width."""
    tokens = qkv.shape[0]
    q, k, v = np.asarray(qkv, np.float64).reshape(tokens, n_heads, 3, -1).transpose(2, 1, 0, 3)
    weights = softmax(scale * (q @ k.transpose(0, 2, 1)))
    return _array((weights @ v).transpose(1, 0, 2).reshape(tokens, -1))


def embed(
    ids: Integer[np.ndarray, " tokens"],
    word: Float[np.ndarray, "vocab columns"],
    position: Float[np.ndarray, "positions columns"],
    first_position: int,
    types: Integer[np.ndarray, " tokens"] | None = None,
    type_table: Float[np.ndarray, "types columns"] | None = None,
) -> Float[np.ndarray, "tokens columns"]:
    """word[ids] + position[first_position + t] + type_table[types]; no type table, no types."""
    places = first_position + np.arange(len(ids))
    total = np.asarray(word[ids], np.float64) + position[places]
    if types is None or type_table is None:
        return _array(total)
    return _array(total + type_table[types])


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return _array(0.5 * (1 + np.tanh(0.5 * x)))


def _array(x: object) -> np.ndarray:
    """numpy's arithmetic has no static types of its own."""
    return np.asarray(x, np.float64)
