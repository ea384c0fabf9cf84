"""One layer of any encoder in float64 numpy, written from the models' papers: what parts are held against."""

from collections.abc import Mapping
from math import erf

import numpy as np

from pliant.models.encoder.encoder_spec import EncoderSpec, LinearSpec, Narrowing, NormSpec

_erf = np.vectorize(erf)
_ACTIVATIONS = {
    "gelu": lambda x: x / 2 * (1 + _erf(x / np.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
}


def run_layer(spec: EncoderSpec, i: int, tensors: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """x [rows, hidden] after layer `i`, in float64."""
    layer, x = spec.layer(i), x.astype(np.float64)

    def linear(x: np.ndarray, one: LinearSpec) -> np.ndarray:
        y = x @ tensors[f"{one.name}.weight"].astype(np.float64).T
        return y + tensors[f"{one.name}.bias"] if one.has_bias else y

    def norm(x: np.ndarray, one: NormSpec) -> np.ndarray:
        weight, bias = (tensors[f"{one.name}.{part}"].astype(np.float64) for part in ("weight", "bias"))
        if one.kind == "affine":
            return x * weight + bias
        centred = x - x.mean(axis=1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + one.eps) * weight + bias

    def narrow(x: np.ndarray, one: Narrowing | None) -> np.ndarray:
        return x if one is None else norm(linear(x, one.linear), one.norm)

    read = norm(x, layer.attention_norm) if layer.is_pre_norm else x
    q = linear(narrow(read, layer.query_in), layer.query)
    k = linear(narrow(read, layer.query_in), layer.key)
    v = linear(narrow(read, layer.value_in), layer.value)
    heads = []
    for h in range(spec.n_heads):
        of = slice(h * spec.head_dim, (h + 1) * spec.head_dim)
        scores = q[:, of] @ k[:, of].T / np.sqrt(spec.head_dim)
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        heads.append(scores / scores.sum(axis=1, keepdims=True) @ v[:, of])
    y = narrow(x, layer.residual_in) + linear(np.concatenate(heads, axis=1), layer.output)
    act = _ACTIVATIONS[spec.activation]
    if layer.is_pre_norm:
        for forward in layer.feed_forwards:
            y = y + linear(act(linear(norm(y, forward.norm), forward.up)), forward.down)
        return y
    y = norm(y, layer.attention_norm)
    for forward in layer.feed_forwards:
        y = norm(y + linear(act(linear(y, forward.up)), forward.down), forward.norm)
    return y if layer.widen is None else norm(linear(y, layer.widen.linear) + x, layer.widen.norm)
