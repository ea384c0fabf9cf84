"""Order heads and FFN neurons so that leading slices are the most important.

DynaBERT (Hou et al. 2020), section 2.1: the importance of a head or neuron is the magnitude of the loss's
first-order change when it is removed, that is |dL/dg| of a factor g = 1 on its output.
"""

from collections.abc import Iterable

import torch
from torch.nn import functional

from pliant.elastic.network import Gates, TensorMap, TokenBatch, embed, forward
from pliant.models.spec import ModelSpec


def measure_importance(spec: ModelSpec, weights: TensorMap, batches: Iterable[TokenBatch]) -> Gates:
    """The summed |dL/dg| of every head [N, M] and neuron [N, ffn] over labelled batches (at least one)."""
    gates = Gates(
        torch.ones(spec.n_layers, spec.n_heads, requires_grad=True),
        torch.ones(spec.n_layers, spec.ffn, requires_grad=True),
    )
    total = Gates(torch.zeros(spec.n_layers, spec.n_heads), torch.zeros(spec.n_layers, spec.ffn))
    frozen = {name: w.detach() for name, w in weights.items()}
    for batch in batches:
        x = embed(spec, frozen, batch)
        answer = forward(spec, frozen, batch, x, range(spec.n_layers), spec.n_heads, gates)
        loss = functional.cross_entropy(answer.logits, batch.labels)
        of_heads, of_neurons = torch.autograd.grad(loss, (gates.heads, gates.neurons))
        total.heads.add_(of_heads.abs())
        total.neurons.add_(of_neurons.abs())
    return total


def reorder(spec: ModelSpec, weights: TensorMap, importance: Gates) -> dict[str, torch.Tensor]:
    """Return the same model with its heads and neurons sorted by importance, most important first.

    Rows of query, key, value and up, and columns of output and down, move together, so the full model
    computes the same function up to rounding.
    """
    moved = dict(weights)
    within = torch.arange(spec.head_dim)
    for layer in range(spec.n_layers):
        prefix = f"layers.{layer}."
        heads = importance.heads[layer].argsort(descending=True, stable=True)
        neurons = importance.neurons[layer].argsort(descending=True, stable=True)
        rows = (heads[:, None] * spec.head_dim + within).flatten()
        for part, order in (("query", rows), ("key", rows), ("value", rows), ("up", neurons)):
            for kind in (".weight", ".bias"):
                moved[prefix + part + kind] = weights[prefix + part + kind][order]
        for part, order in (("output", rows), ("down", neurons)):
            moved[prefix + part + ".weight"] = weights[prefix + part + ".weight"][:, order]
    return {name: w.detach().clone() for name, w in moved.items()}
