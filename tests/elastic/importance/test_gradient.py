"""The first-order score against finite differences of an independent float64 model, shard by shard."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pliant.elastic.evaluate.labelled_inputs import LabelledInput
from pliant.elastic.importance import ablate, first_order
from pliant.errors import InputError, StoreError
from pliant.ir.bitwidths import FULL_BITS, LOWEST_BITS
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.models.spec import Family, ModelSpec
from pliant.models.tokenizer import TokenizedInput
from pliant.run.submodel.engine import Engine
from pliant.store.build import build
from pliant.store.coding.cut_slices import LINEARS
from pliant.store.layers import layer_weights
from pliant.store.read import Store, open_store
from research.importance_tables import rank_correlation
from tests.reference_model import run_model
from tests.tiny import FAMILIES, random_ids, random_tensors


@pytest.fixture(scope="module")
def packed(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`packed(family)` is the store of a random classifier of that family."""
    made: dict[str, Path] = {}

    def store(family: Family = "bert", is_classifier: bool = True) -> Path:
        key = f"{family}-{is_classifier}"
        if key not in made:
            checkpoint = open_checkpoint(tiny_model(family, is_classifier))
            made[key] = build(checkpoint, tmp_path_factory.mktemp("gradient") / key)
        return made[key]

    return store


def _examples(spec: ModelSpec, n: int = 5) -> tuple[LabelledInput, ...]:
    rng = np.random.default_rng(8)
    inputs = [random_ids(spec, int(rng.integers(1, 12)), seed) for seed in range(n)]
    return tuple(LabelledInput(TokenizedInput(ids, types), i % 2) for i, (ids, types) in enumerate(inputs))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_score_is_the_slope_of_the_mean_likelihood(packed: Callable[..., Path], family: Family) -> None:
    """What it promises: how likelihood rises as one shard moves from 2 bits towards full fidelity."""
    with open_store(packed(family)) as store:
        spec, examples = store.spec, _examples(store.spec)
        found = first_order(store, examples)
        low, full = (_tensors(store, bits) for bits in (LOWEST_BITS, FULL_BITS))
        h = 1e-4
        for layer, s in np.ndindex(found.shape):
            up, down = (
                _likelihood(spec, _moved(spec, low, full, layer, s, step), examples) for step in (h, -h)
            )
            # The oracle's own error is h^2 ~ 1e-8; float32 sums of some thousand products of order 1e-3.
            assert found[layer, s] == pytest.approx((up - down) / (2 * h), abs=2e-5)


def test_the_score_orders_shards_as_the_ablation_does(packed: Callable[..., Path], tmp_path: Path) -> None:
    """It stands in for the ablation's likelihood: a sign turned round would still be a fine derivative."""
    with open_store(packed()) as store, Engine(store, n_threads=1, cache=tmp_path) as engine:
        examples = _examples(store.spec, 40)
        exact = ablate(engine, examples).log_likelihood
        assert rank_correlation(first_order(store, examples), exact) > 0.7


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_weights_are_what_the_store_holds(packed: Callable[..., Path], family: Family) -> None:
    """Full fidelity is the checkpoint; fewer bits keep outliers and have as many values as centroids."""
    with open_store(packed(family)) as store:
        given = random_tensors(store.spec)
        full = _tensors(store, FULL_BITS)
        for name in (n for n in given if n.startswith("layers.")):
            np.testing.assert_array_equal(full[name], given[name])
        two = _tensors(store, LOWEST_BITS)
        codebook = store.resident(0).codebooks[LOWEST_BITS]
        for name in LINEARS:
            values, exact = (t[f"layers.0.{name}.weight"] for t in (two, full))
            assert np.all(np.isin(values, codebook) | (values == exact))


def test_forward_is_the_engine_at_two_bits(packed: Callable[..., Path], tmp_path: Path) -> None:
    """The derivative must be taken at the model that runs."""
    with open_store(packed()) as store, Engine(store, n_threads=1, cache=tmp_path) as engine:
        spec = store.spec
        engine.hold(np.full((spec.n_layers, spec.n_heads), LOWEST_BITS, np.int64))
        tensors = _tensors(store, LOWEST_BITS)
        for example in _examples(spec):
            e = example.encoded
            logits = engine.answer(e, tuple(range(spec.n_layers)), spec.n_heads)
            np.testing.assert_allclose(logits, run_model(spec, tensors, e.ids, e.types), atol=1e-4)


def test_progress_ends_with_the_last_example(packed: Callable[..., Path]) -> None:
    """A bar that stops at 16 of 20 looks like a crash."""
    seen: list[tuple[int, int]] = []
    with open_store(packed()) as store:
        first_order(store, _examples(store.spec, 20), on_examples=lambda done, of: seen.append((done, of)))
    assert seen == [(16, 20), (20, 20)]


def test_without_labels_or_fidelities_it_is_an_error(
    packed: Callable[..., Path], tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    """A mean over nothing is no importance, and a step needs both its ends."""
    with open_store(packed()) as store:
        examples = _examples(store.spec)
        with pytest.raises(InputError, match="at least one labelled example"):
            first_order(store, ())
    with open_store(packed("bert", False)) as store, pytest.raises(InputError, match="needs a classifier"):
        first_order(store, examples)
    partial = build(open_checkpoint(tiny_model("bert", True)), tmp_path / "partial", bits=(2, 6))
    with open_store(partial) as store, pytest.raises(StoreError):
        first_order(store, examples)


def _tensors(store: Store, bits: int) -> dict[str, np.ndarray]:
    """The canonical tensors, the six matrices of every layer at `bits`."""
    tensors = random_tensors(store.spec)
    for layer in range(store.spec.n_layers):
        weights = layer_weights(store, layer, bits)
        for name in LINEARS:
            linear = getattr(weights, name)
            tensors[f"layers.{layer}.{name}.weight"] = linear.weight
            tensors[f"layers.{layer}.{name}.bias"] = linear.bias
        for name in ("attention_norm", "output_norm"):
            weight, bias = getattr(weights, name)
            tensors[f"layers.{layer}.{name}.weight"], tensors[f"layers.{layer}.{name}.bias"] = weight, bias
    return tensors


def _moved(
    spec: ModelSpec,
    low: dict[str, np.ndarray],
    full: dict[str, np.ndarray],
    layer: int,
    s: int,
    step: float,
) -> dict[str, np.ndarray]:
    """Shard (layer, s) moved by `step` of its way from low to full."""
    head = slice(s * spec.head_dim, (s + 1) * spec.head_dim)
    neurons = slice(s * spec.slice_ffn, (s + 1) * spec.slice_ffn)
    moved = dict(low)
    for name in LINEARS:
        key = f"layers.{layer}.{name}.weight"
        own = neurons if name in ("up", "down") else head
        where = (slice(None), own) if name in ("output", "down") else (own, slice(None))
        matrix = low[key].astype(np.float64)
        matrix[where] += step * (full[key][where].astype(np.float64) - matrix[where])
        moved[key] = matrix
    return moved


def _likelihood(
    spec: ModelSpec, tensors: dict[str, np.ndarray], examples: tuple[LabelledInput, ...]
) -> float:
    total = 0.0
    for e in examples:
        z = run_model(spec, tensors, e.encoded.ids, e.encoded.types)
        total += float(z[e.label] - z.max() - np.log(np.exp(z - z.max()).sum()))
    return total / len(examples)
