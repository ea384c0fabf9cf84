"""The differentiable forward pass of any submodel in torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from pliant.models.spec import ModelSpec

TensorMap = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Token ids and types [B, T], tokens per row [B] and labels [B]; `is_padded` if some rows are short."""

    ids: torch.Tensor
    types: torch.Tensor
    lengths: torch.Tensor
    labels: torch.Tensor
    is_padded: bool


@dataclass(frozen=True, slots=True)
class Gates:
    """A factor for every head [N, M] and every FFN neuron [N, ffn]; its gradient at 1 is their importance."""

    heads: torch.Tensor
    neurons: torch.Tensor


@dataclass(frozen=True, slots=True)
class SubmodelOutput:
    """Logits [B, labels] and, for every layer that ran, its output [B, T, hidden]."""

    logits: torch.Tensor
    hidden: Sequence[torch.Tensor]


class Dropout:
    """Dropout with its own generator, so that threads neither share nor reorder their randomness."""

    def __init__(self, rate: float, seed: int) -> None:
        self._keep = 1.0 - rate
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._keep == 1.0:
            return x
        mask = torch.empty_like(x).bernoulli_(self._keep, generator=self._generator)
        return x * mask.div_(self._keep)


def embed(spec: ModelSpec, weights: TensorMap, batch: TokenBatch, is_sparse: bool = False) -> torch.Tensor:
    """Return the first layer's input [B, T, hidden]; `is_sparse` makes the word table's gradient sparse."""
    n_tokens = batch.ids.shape[1]
    x = functional.embedding(batch.ids, weights["embeddings.word"], sparse=is_sparse)
    first = spec.position_offset
    x = x + weights["embeddings.position"][first : first + n_tokens]
    if spec.n_types:
        x = x + weights["embeddings.type"][batch.types]
    x = _norm(spec, weights, "embeddings.norm", x)
    if spec.embedding != spec.hidden:
        x = functional.linear(x, weights["embeddings.project.weight"], weights["embeddings.project.bias"])
    return x


def forward(
    spec: ModelSpec,
    weights: TensorMap,
    batch: TokenBatch,
    x: torch.Tensor,
    layers: Sequence[int],
    width: int,
    gates: Gates | None = None,
    dropout: Dropout | None = None,
) -> SubmodelOutput:
    """Run `layers` at `width` slices on embedded input `x`, mean over tokens, classify."""
    mask = _token_mask(batch, x.dtype)
    bias = None if mask is None else ((mask - 1.0) * 1e9)[:, None, None, :]
    hidden = []
    for layer in layers:
        x = _layer(spec, weights, layer, width, x, bias, gates, dropout)
        hidden.append(x)
    pooled = x.mean(1) if mask is None else (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    logits = functional.linear(pooled, weights["head.classifier.weight"], weights["head.classifier.bias"])
    return SubmodelOutput(logits, hidden)


def token_weights(batch: TokenBatch) -> torch.Tensor:
    """1 for real tokens, 0 for padding, [B, T] float32."""
    at = torch.arange(batch.ids.shape[1])
    return (at < batch.lengths[:, None]).float()


def _token_mask(batch: TokenBatch, dtype: torch.dtype) -> torch.Tensor | None:
    return token_weights(batch).to(dtype) if batch.is_padded else None


def _layer(
    spec: ModelSpec,
    weights: TensorMap,
    layer: int,
    width: int,
    x: torch.Tensor,
    bias: torch.Tensor | None,
    gates: Gates | None,
    dropout: Dropout | None,
) -> torch.Tensor:
    prefix = f"layers.{layer}."
    y = _attention(spec, weights, prefix, width, x, bias, None if gates is None else gates.heads[layer])
    x = _norm(spec, weights, prefix + "attention_norm", x + (dropout(y) if dropout else y))
    n = width * spec.slice_ffn
    y = functional.linear(x, weights[prefix + "up.weight"][:n], weights[prefix + "up.bias"][:n])
    y = _activate(spec, y)
    if gates is not None:
        y = y * gates.neurons[layer, :n]
    y = functional.linear(y, weights[prefix + "down.weight"][:, :n], weights[prefix + "down.bias"])
    return _norm(spec, weights, prefix + "output_norm", x + (dropout(y) if dropout else y))


def _attention(
    spec: ModelSpec,
    weights: TensorMap,
    prefix: str,
    width: int,
    x: torch.Tensor,
    bias: torch.Tensor | None,
    gate: torch.Tensor | None,
) -> torch.Tensor:
    B, T, _ = x.shape
    n = width * spec.head_dim
    q, k, v = (
        functional.linear(x, weights[f"{prefix}{part}.weight"][:n], weights[f"{prefix}{part}.bias"][:n])
        .view(B, T, width, spec.head_dim)
        .transpose(1, 2)
        for part in ("query", "key", "value")
    )
    y = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1 / math.sqrt(spec.head_dim))
    if gate is not None:
        y = y * gate[:width, None, None]
    y = y.transpose(1, 2).reshape(B, T, n)
    return functional.linear(y, weights[prefix + "output.weight"][:, :n], weights[prefix + "output.bias"])


def _activate(spec: ModelSpec, x: torch.Tensor) -> torch.Tensor:
    match spec.activation:
        case "gelu":
            return functional.gelu(x)
        case "gelu_tanh":
            return functional.gelu(x, approximate="tanh")
        case "relu":
            return functional.relu(x)
        case "tanh":
            return torch.tanh(x)


def _norm(spec: ModelSpec, weights: TensorMap, name: str, x: torch.Tensor) -> torch.Tensor:
    scale, shift = weights[name + ".weight"], weights[name + ".bias"]
    return functional.layer_norm(x, scale.shape, scale, shift, spec.norm_eps)
