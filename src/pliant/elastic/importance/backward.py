"""The encoder and its derivative in numpy float32, for several inputs at a time.

The inputs of a batch are concatenated, [tokens of all, hidden]. Only attention, pooling and normalisation
involve more or less than one token, so no padding is needed. BLAS does the work.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pliant.arrays import Float32, Int
from pliant.errors import InputError
from pliant.models.spec import Activation, Head, ModelSpec
from pliant.models.tokenizer import TokenizedInput
from pliant.store.layers import LayerWeights, Norm
from pliant.store.store_files import Embeddings, HeadWeights, LinearWeights

TokenRows = Float32[np.ndarray, "tokens _"]  # one row per token, tokens of all inputs
Bounds = Sequence[tuple[int, int]]  # first token and end of each input

# erfc(z) = 1 / (1 + a1 z + ... + a6 z**6)**16 within 3e-7 (Abramowitz and Stegun, 7.1.28); highest first.
_ERFC = (0.0000430638, 0.0002765672, 0.0001520143, 0.0092705272, 0.0422820123, 0.0705230784, 1.0)
_TANH_GELU = math.sqrt(2 / math.pi), 0.044715


@dataclass(frozen=True, slots=True)
class Tape:
    """Values of a layer's forward pass that its backward pass needs: the input of every linear, and more."""

    inputs: Mapping[str, TokenRows]
    qkv: tuple[TokenRows, TokenRows, TokenRows]
    probabilities: tuple[Float32[np.ndarray, "heads _ _"], ...]  # one per input
    before_activation: TokenRows
    normal: tuple[TokenRows, TokenRows]  # each layer norm's output before weight and bias
    scale: tuple[TokenRows, TokenRows]  # 1 / standard deviation of each token, [tokens, 1]


def embed(spec: ModelSpec, weights: Embeddings, inputs: Sequence[TokenizedInput]) -> tuple[TokenRows, Bounds]:
    """The first layer's input, and the bounds of each of `inputs`. Raises StoreError on damaged rows."""
    ids = np.concatenate([e.ids for e in inputs])
    weights.check(ids)
    ends = np.cumsum([e.n_tokens for e in inputs]).tolist()
    bounds = tuple(zip([0, *ends[:-1]], ends, strict=True))
    places = np.concatenate([np.arange(e.n_tokens) for e in inputs]) + spec.position_offset
    x = weights.word.decode(ids) + weights.position[places]
    if weights.types is not None:
        x = x + weights.types[np.concatenate([e.types for e in inputs])]
    x, _, _ = _layer_norm(x, weights.norm, spec.norm_eps)
    return x if weights.project is None else _linear(x, weights.project), bounds


def forward(spec: ModelSpec, w: LayerWeights, x: TokenRows, bounds: Bounds) -> tuple[TokenRows, Tape]:
    """Run one post-norm layer at full width."""
    q, k, v = (_linear(x, part) for part in (w.query, w.key, w.value))
    context = np.empty_like(x)
    probabilities = []
    for start, end in bounds:
        heads = [_heads(part[start:end], spec.n_heads) for part in (q, k, v)]
        p = _softmax(heads[0] @ heads[1].transpose(0, 2, 1) * np.float32(spec.head_dim**-0.5))
        context[start:end] = _joined(p @ heads[2])
        probabilities.append(p)
    middle, normal1, scale1 = _layer_norm(x + _linear(context, w.output), w.attention_norm, spec.norm_eps)
    before = _linear(middle, w.up)
    after = activate(spec.activation, before)
    y, normal2, scale2 = _layer_norm(middle + _linear(after, w.down), w.output_norm, spec.norm_eps)
    inputs = {"query": x, "key": x, "value": x, "output": context, "up": middle, "down": after}
    tape = Tape(inputs, (q, k, v), tuple(probabilities), before, (normal1, normal2), (scale1, scale2))
    return y, tape


def backward(
    spec: ModelSpec, w: LayerWeights, tape: Tape, bounds: Bounds, dy: TokenRows
) -> tuple[TokenRows, dict[str, TokenRows]]:
    """Return the loss's derivatives by the layer's input and by each linear's output, given `dy`.

    `dy` is the derivative by the layer's output. The derivative by a linear's weight [out, in] is
    `outputs[name].T @ tape.inputs[name]`.
    """
    outputs: dict[str, TokenRows] = {}
    outputs["down"] = d2 = _layer_norm_backward(dy, w.output_norm, tape.normal[1], tape.scale[1])
    outputs["up"] = (d2 @ w.down.weight) * slope(spec.activation, tape.before_activation)
    middle = d2 + outputs["up"] @ w.up.weight
    outputs["output"] = d1 = _layer_norm_backward(middle, w.attention_norm, tape.normal[0], tape.scale[0])
    context = d1 @ w.output.weight
    dq, dk, dv = (np.empty_like(context) for _ in range(3))
    for (start, end), p in zip(bounds, tape.probabilities, strict=True):
        q, k, v = (_heads(part[start:end], spec.n_heads) for part in tape.qkv)
        dc = _heads(context[start:end], spec.n_heads)
        dp = dc @ v.transpose(0, 2, 1)
        ds = p * (dp - (dp * p).sum(axis=2, keepdims=True)) * np.float32(spec.head_dim**-0.5)
        dq[start:end], dk[start:end] = _joined(ds @ k), _joined(ds.transpose(0, 2, 1) @ q)
        dv[start:end] = _joined(p.transpose(0, 2, 1) @ dc)
    outputs |= {"query": dq, "key": dk, "value": dv}
    dx = d1 + dq @ w.query.weight + dk @ w.key.weight + dv @ w.value.weight
    return dx, outputs


def loss_gradient(
    head: Head, w: HeadWeights, x: TokenRows, bounds: Bounds, labels: Int[np.ndarray, " inputs"]
) -> tuple[Float32[np.ndarray, " inputs"], TokenRows]:
    """Return each input's cross-entropy, in nats, and its derivative by the last layer's output.

    Raises InputError if the head is not a classifier.
    """
    if w.classifier is None:
        raise InputError("a loss needs a classifier; this model's head gives vectors.")
    is_mean = head.pooling == "mean"
    pooled = np.stack([x[a:b].mean(axis=0) if is_mean else x[a] for a, b in bounds])
    before = pooled if w.dense is None else _linear(pooled, w.dense)
    features = before if head.dense is None else activate(head.dense, before)
    probabilities = _softmax(_linear(features, w.classifier))
    rows = np.arange(len(labels))
    loss = -np.log(np.maximum(probabilities[rows, labels], np.float32(1e-30)))
    probabilities[rows, labels] -= 1
    d = probabilities @ w.classifier.weight
    if w.dense is not None and head.dense is not None:
        d = (d * slope(head.dense, before)) @ w.dense.weight
    dx = np.zeros_like(x)
    for row, (a, b) in enumerate(bounds):
        if is_mean:
            dx[a:b] = d[row] / np.float32(b - a)
        else:
            dx[a] = d[row]
    return loss, dx


def activate(kind: Activation, x: TokenRows) -> TokenRows:
    """Apply the activation elementwise."""
    match kind:
        case "gelu":
            return _array(x * _normal_cdf(x))
        case "gelu_tanh":
            c, cube = _TANH_GELU
            return _array(0.5 * x * (1 + np.tanh(c * (x + cube * x * x * x))))
        case "relu":
            return _array(np.maximum(x, 0))
        case "tanh":
            return _array(np.tanh(x))


def slope(kind: Activation, x: TokenRows) -> TokenRows:
    """Return the activation's derivative at `x`; 0 for relu at 0."""
    match kind:
        case "gelu":
            return _array(_normal_cdf(x) + x * np.exp(-0.5 * x * x) * np.float32(1 / math.sqrt(2 * math.pi)))
        case "gelu_tanh":
            c, cube = _TANH_GELU
            t = np.tanh(c * (x + cube * x * x * x))
            return _array(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * cube * x * x))
        case "relu":
            return _array((x > 0).astype(np.float32))
        case "tanh":
            t = np.tanh(x)
            return _array(1 - t * t)


def _normal_cdf(x: TokenRows) -> TokenRows:
    z = np.minimum(np.abs(x), np.float32(12)) * np.float32(math.sqrt(0.5))
    polynomial = np.full_like(z, _ERFC[0])
    for coefficient in _ERFC[1:]:
        polynomial = polynomial * z + np.float32(coefficient)
    tail = 0.5 / polynomial**16
    return _array(np.where(x < 0, tail, 1 - tail))


def _linear(x: TokenRows, w: LinearWeights) -> TokenRows:
    return _array(x @ w.weight.T + w.bias)


def _layer_norm(x: TokenRows, norm: Norm, eps: float) -> tuple[TokenRows, TokenRows, TokenRows]:
    """Return the result, the normalised input and 1 / standard deviation."""
    centred = x - x.mean(axis=1, keepdims=True)
    scale = 1 / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + np.float32(eps))
    normal = centred * scale
    return normal * norm[0] + norm[1], normal, scale


def _layer_norm_backward(dy: TokenRows, norm: Norm, normal: TokenRows, scale: TokenRows) -> TokenRows:
    d = dy * norm[0]
    along = (d * normal).mean(axis=1, keepdims=True)
    return _array((d - d.mean(axis=1, keepdims=True) - normal * along) * scale)


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return _array(e / e.sum(axis=-1, keepdims=True))


def _heads(x: TokenRows, n_heads: int) -> Float32[np.ndarray, "heads tokens _"]:
    return x.reshape(len(x), n_heads, -1).transpose(1, 0, 2)


def _joined(x: Float32[np.ndarray, "heads tokens _"]) -> TokenRows:
    return x.transpose(1, 0, 2).reshape(x.shape[1], -1)


def _array(x: object) -> Float32[np.ndarray, "..."]:
    """Give a static type to the result of numpy arithmetic."""
    return np.asarray(x, np.float32)
