"""The torch forward pass against the numpy oracle."""

import numpy as np
import pytest
import torch

from pliant.elastic.network import embed, forward
from pliant.elastic.training_batches import Sample, collate
from pliant.models.spec import Family, Head, picked_layers
from pliant.models.tokenizer import TokenizedInput
from tests.reference_model import run_model
from tests.tiny import FAMILIES, random_ids, random_tensors, tiny_spec


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 3), (3, 4)])
def test_a_submodel_equals_the_oracle_with_sliced_weights(family: Family, n: int, m: int) -> None:
    """What is trained must be what runs: padded batches in torch against single inputs in numpy float64."""
    spec = tiny_spec(family, n_layers=3, head=Head("mean", None, ("a", "b", "c")))
    tensors = random_tensors(spec)
    inputs = [random_ids(spec, length, seed) for seed, length in enumerate((3, 9, 5))]
    batch = collate([Sample(TokenizedInput(ids, types), 0) for ids, types in inputs])
    weights = {name: torch.from_numpy(value) for name, value in tensors.items()}
    with torch.no_grad():
        x = embed(spec, weights, batch)
        logits = forward(spec, weights, batch, x, picked_layers(3, n), m).logits.numpy()
    expected = [run_model(spec, tensors, ids, types, n, m) for ids, types in inputs]
    # float32 over three layers of 32 channels: about 1e-6 relative per layer, logits of order 1.
    np.testing.assert_allclose(logits, np.array(expected), atol=2e-5)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "tanh"])
def test_every_activation_is_the_oracles(activation: str) -> None:
    """A model directory may name any of them."""
    spec = tiny_spec(activation=activation, head=Head("mean", None, ("a", "b")))
    tensors = random_tensors(spec)
    ids, types = random_ids(spec, 6)
    weights = {name: torch.from_numpy(value) for name, value in tensors.items()}
    batch = collate([Sample(TokenizedInput(ids, types), 0)])
    logits = forward(spec, weights, batch, embed(spec, weights, batch), range(2), 4).logits[0].numpy()
    np.testing.assert_allclose(logits, run_model(spec, tensors, ids, types), atol=2e-5)
