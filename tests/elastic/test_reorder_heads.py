"""Importance and the order it gives."""

import torch

from pliant.elastic.network import Gates, TensorMap, TokenBatch, embed, forward
from pliant.elastic.reorder_heads import measure_importance, reorder
from pliant.elastic.training_batches import Sample, collate
from pliant.models.spec import Head, ModelSpec
from pliant.models.tokenizer import TokenizedInput
from tests.tiny import random_ids, random_tensors, tiny_spec


def model() -> tuple[ModelSpec, TensorMap, TokenBatch]:
    spec = tiny_spec(head=Head("mean", None, ("a", "b")))
    weights = {name: torch.from_numpy(value) for name, value in random_tensors(spec).items()}
    inputs = [random_ids(spec, length, length) for length in (4, 7, 7, 11)]
    return spec, weights, collate([Sample(TokenizedInput(*pair), i % 2) for i, pair in enumerate(inputs)])


def logits(spec: ModelSpec, weights: TensorMap, batch: TokenBatch, width: int) -> torch.Tensor:
    x = embed(spec, weights, batch)
    return forward(spec, weights, batch, x, range(spec.n_layers), width).logits.detach()


def test_reordering_leaves_the_full_model_unchanged() -> None:
    """Moving heads and neurons together is a renaming; only the order of float32 sums differs."""
    spec, weights, batch = model()
    moved = reorder(spec, weights, measure_importance(spec, weights, [batch]))
    assert not torch.equal(moved["layers.0.query.weight"], weights["layers.0.query.weight"])
    torch.testing.assert_close(
        logits(spec, moved, batch, 4), logits(spec, weights, batch, 4), atol=1e-5, rtol=0
    )


def test_slices_lead_in_order_of_importance() -> None:
    """A head that is all that matters must be in every submodel, wherever it stood before."""
    spec, weights, _ = model()
    heads, neurons = torch.zeros(2, 4), torch.zeros(2, 64)
    heads[:, 2], neurons[:, 50] = 1.0, 1.0
    moved = reorder(spec, weights, Gates(heads, neurons))
    for part in ("query", "key", "value"):
        name = f"layers.1.{part}.weight"
        assert torch.equal(moved[name][:8], weights[name][16:24])
    assert torch.equal(moved["layers.1.output.weight"][:, :8], weights["layers.1.output.weight"][:, 16:24])
    assert torch.equal(moved["layers.0.up.bias"][0], weights["layers.0.up.bias"][50])
    assert torch.equal(moved["layers.0.down.weight"][:, 0], weights["layers.0.down.weight"][:, 50])


def test_a_dead_head_has_no_importance() -> None:
    """A head whose output is multiplied by zero cannot change the loss, so its gradient is zero."""
    spec, weights, batch = model()
    dead = dict(weights)
    dead["layers.0.output.weight"] = weights["layers.0.output.weight"].clone()
    dead["layers.0.output.weight"][:, 8:16] = 0.0
    importance = measure_importance(spec, dead, [batch])
    assert float(importance.heads[0, 1]) == 0.0
    assert float(importance.heads[0, 0]) > 0.0
    assert int((importance.neurons > 0).sum()) == 2 * 64
