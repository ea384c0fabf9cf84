"""First-order gain of each shard at full fidelity: one forward and one backward pass for all shards."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pliant.arrays import Float
from pliant.elastic.evaluate.labelled_inputs import LabelledInput
from pliant.elastic.importance.backward import TokenRows, backward, embed, forward, loss_gradient
from pliant.errors import InputError
from pliant.ir.bitwidths import FULL_BITS, LOWEST_BITS
from pliant.store.coding.cut_slices import LINEARS
from pliant.store.layers import LayerWeights, layer_weights
from pliant.store.read import Store

BATCH = 16  # inputs at a time: enough rows for BLAS, few enough for small activations

OnExamples = Callable[[int, int], None]  # (examples done, total)


def first_order(
    store: Store, examples: Sequence[LabelledInput], *, on_examples: OnExamples = lambda done, total: None
) -> Float[np.ndarray, "N M"]:
    """Return each shard's gain of likelihood alone at full fidelity, to first order: nats, [N, M].

    s(l, s) = -sum over the shard's weights of dL/dw * (w at 32 bits - w at 2 bits), with L the mean
    cross-entropy over `examples` with every shard at 2 bits: the first Taylor term of the result of `ablate`.
    Molchanov et al. (2019, "Importance estimation for neural network pruning", section 3) rank filters by
    such a term. Raises InputError without examples or labels, and StoreError if a shard is damaged or one of
    the two fidelities is not offered.
    """
    spec = store.spec
    if not examples or spec.head.labels is None:
        raise InputError("a first-order score needs a classifier and at least one labelled example.")
    low = [layer_weights(store, layer, LOWEST_BITS) for layer in range(spec.n_layers)]
    steps = [_steps(w, layer_weights(store, layer, FULL_BITS)) for layer, w in enumerate(low)]
    rise = np.zeros((spec.n_layers, spec.n_heads))
    for start in range(0, len(examples), BATCH):
        some = examples[start : start + BATCH]
        x, bounds = embed(spec, store.embeddings, [e.encoded for e in some])
        tapes = []
        for w in low:
            x, tape = forward(spec, w, x, bounds)
            tapes.append(tape)
        _, dy = loss_gradient(spec.head, store.head, x, bounds, np.array([e.label for e in some]))
        for layer in reversed(range(spec.n_layers)):
            dy, outputs = backward(spec, low[layer], tapes[layer], bounds, dy)
            for name, d in outputs.items():
                rise[layer] += _along(name, tapes[layer].inputs[name], d, steps[layer][name], spec.n_heads)
        on_examples(start + len(some), len(examples))
    return -rise / len(examples)


def _steps(low: LayerWeights, full: LayerWeights) -> Mapping[str, Float[np.ndarray, "out in"]]:
    """Return the change from the lowest bits to full fidelity, for each linear."""
    return {name: getattr(full, name).weight - getattr(low, name).weight for name in LINEARS}


def _along(
    name: str, x: TokenRows, dy: TokenRows, step: Float[np.ndarray, "out in"], n_slices: int
) -> Float[np.ndarray, " M"]:
    """Return the sum of dL/dW * step over each slice's weights, without computing dL/dW = dy^T x.

    A slice owns columns of `output` and `down` and rows of the other linears (STI Table 1).
    """
    product = x * (dy @ step) if name in ("output", "down") else dy * (x @ step.T)
    total: np.ndarray = product.sum(axis=0, dtype=np.float64).reshape(n_slices, -1).sum(axis=1)
    return total
