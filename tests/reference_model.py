"""A whole encoder in numpy float64, from the papers' equations: an oracle sharing no code with the engine.

Only `ModelSpec` and the canonical tensor names are common ground.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from pliant.models.spec import Activation, ModelSpec, picked_layers

_erf = np.frompyfunc(math.erf, 1, 1)


def activate(kind: Activation, x: np.ndarray) -> np.ndarray:
    match kind:
        case "gelu":
            return 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)).astype(np.float64))
        case "gelu_tanh":
            return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
        case "relu":
            return np.maximum(x, 0.0)
        case "tanh":
            return np.tanh(x)


def encode(
    spec: ModelSpec,
    tensors: Mapping[str, np.ndarray],
    ids: np.ndarray,
    types: np.ndarray,
    n: int | None = None,
    m: int | None = None,
    layers: Sequence[int] | None = None,
) -> np.ndarray:
    """Hidden states [T, hidden] after the picked layers of the submodel `n` x `m` (leading slices)."""
    w = {name: np.asarray(value, np.float64) for name, value in tensors.items()}
    x = embed(spec, w, ids, types)
    if layers is None:
        layers = picked_layers(spec.n_layers, spec.n_layers if n is None else n)
    for layer in layers:
        x = run_layer(spec, w, layer, x, spec.n_heads if m is None else m)
    return x


def embed(spec: ModelSpec, w: Mapping[str, np.ndarray], ids: np.ndarray, types: np.ndarray) -> np.ndarray:
    """Embedding sum, norm, and ELECTRA's projection: [T, hidden]."""
    positions = np.arange(len(ids)) + spec.position_offset
    x = w["embeddings.word"][ids] + w["embeddings.position"][positions]
    if spec.n_types:
        x = x + w["embeddings.type"][types]
    x = layer_norm(x, w, "embeddings.norm", spec.norm_eps)
    if spec.embedding != spec.hidden:
        x = linear(x, w, "embeddings.project")
    return x


def run_layer(spec: ModelSpec, w: Mapping[str, np.ndarray], layer: int, x: np.ndarray, m: int) -> np.ndarray:
    """One transformer layer with its leading `m` slices (heads and FFN neurons), post-norm."""
    p, dh = f"layers.{layer}.", spec.head_dim
    context = np.zeros((len(x), m * dh))
    for head in range(m):
        rows = slice(head * dh, (head + 1) * dh)
        q, k, v = (
            x @ w[f"{p}{part}.weight"][rows].T + w[f"{p}{part}.bias"][rows]
            for part in ("query", "key", "value")
        )
        context[:, rows] = softmax(q @ k.T / math.sqrt(dh)) @ v
    attended = context @ w[p + "output.weight"][:, : m * dh].T + w[p + "output.bias"]
    x = layer_norm(x + attended, w, p + "attention_norm", spec.norm_eps)
    f = m * spec.slice_ffn
    inner = activate(spec.activation, x @ w[p + "up.weight"][:f].T + w[p + "up.bias"][:f])
    outer = inner @ w[p + "down.weight"][:, :f].T + w[p + "down.bias"]
    return layer_norm(x + outer, w, p + "output_norm", spec.norm_eps)


def answer(spec: ModelSpec, tensors: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """What the head makes of the last hidden states: logits [labels], or the embedding [hidden]."""
    w = {name: np.asarray(value, np.float64) for name, value in tensors.items() if name.startswith("head.")}
    pooled = x.mean(0) if spec.head.pooling == "mean" else x[0]
    if spec.head.dense is not None:
        pooled = activate(spec.head.dense, linear(pooled, w, "head.dense"))
    if spec.head.labels is not None:
        return linear(pooled, w, "head.classifier")
    return pooled / np.linalg.norm(pooled) if spec.head.is_normalized else pooled


def run_model(
    spec: ModelSpec,
    tensors: Mapping[str, np.ndarray],
    ids: np.ndarray,
    types: np.ndarray,
    n: int | None = None,
    m: int | None = None,
) -> np.ndarray:
    """Logits [labels] or the sentence embedding [hidden] of one input, by the submodel `n` x `m`."""
    return answer(spec, tensors, encode(spec, tensors, ids, types, n, m))


def linear(x: np.ndarray, w: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    return x @ w[name + ".weight"].T + w[name + ".bias"]


def layer_norm(x: np.ndarray, w: Mapping[str, np.ndarray], name: str, eps: float) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    return scaled * w[name + ".weight"] + w[name + ".bias"]


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
