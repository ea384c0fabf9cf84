"""A checkpoint's tensors as a store keeps them, by the quantizer alone."""

import numpy as np

from pliant.models.hf.checkpoint import Checkpoint
from pliant.models.spec import tensor_shapes
from pliant.store.coding.cut_slices import cut, join
from pliant.store.coding.quantize import fit

LINEARS = ("query", "key", "value", "output", "up", "down")


def tensors_of(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """All tensors by name."""
    return {name: checkpoint.tensor(name) for name, _ in tensor_shapes(checkpoint.spec)}


def quantized(checkpoint: Checkpoint, bits: np.ndarray) -> dict[str, np.ndarray]:
    """All tensors, the layers' matrices as `bits` [N, M] would have them."""
    tensors = tensors_of(checkpoint)
    spec = checkpoint.spec
    for layer in range(spec.n_layers):
        names = {n: f"layers.{layer}.{n}.weight" for n in LINEARS}
        slices, is_padding = cut(spec, {n: tensors[name] for n, name in names.items()})
        weights = slices[:, ~is_padding]
        fitted = fit(weights.ravel(), "lloyd")
        codes = fitted.codes.reshape(weights.shape)
        kept = fitted.is_outlier.reshape(weights.shape)
        for s, k in enumerate(bits[layer]):
            if 1 <= k <= 6:
                values = fitted.code.codebooks[int(k)][codes[s] >> (6 - k)]
                weights[s] = np.where(kept[s], weights[s], values)
        slices[:, ~is_padding] = weights
        tensors |= {names[n]: matrix for n, matrix in join(spec, slices).items()}
    return tensors
