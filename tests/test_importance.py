"""Importance: the ablation with kept activations against the plain one, and the score beside it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pliant.errors import InputError
from pliant.importance import (
    Ablation,
    Labelled,
    ablate,
    draw_importance,
    importance_text,
    layer_change,
    rank_correlation,
)
from pliant.models.checkpoint import open_checkpoint
from pliant.models.tokenizer import Encoded
from pliant.run.engine import Engine
from pliant.store.build import build
from pliant.store.read import open_store


@pytest.fixture(scope="module")
def engine(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A random classifier, packed and ready."""
    store = build(open_checkpoint(tiny_model("bert", True)), tmp_path_factory.mktemp("importance") / "store")
    with (
        open_store(store) as opened,
        Engine(opened, n_threads=1, cache=tmp_path_factory.mktemp("kernels")) as engine,
    ):
        yield engine


@pytest.fixture(scope="module")
def examples(engine: Engine) -> tuple[Labelled, ...]:
    """Random inputs of several lengths with random labels."""
    rng = np.random.default_rng(3)
    return tuple(
        Labelled(
            Encoded(
                rng.integers(5, engine.spec.vocab, n).astype(np.int32),
                np.zeros(n, np.int32),
            ),
            int(rng.integers(0, 2)),
        )
        for n in (3, 7, 5, 9)
    )


def test_the_ablation_equals_one_that_keeps_nothing(engine: Engine, examples: tuple[Labelled, ...]) -> None:
    """Kept activations are an optimisation: every cell must be what whole runs at those bits give."""
    found = ablate(engine, examples)
    N, M = engine.spec.n_layers, engine.spec.n_heads
    for layer, s in np.ndindex(N, M):
        bits = np.full((N, M), 2, np.int64)
        bits[layer, s] = 32
        accuracy, likelihood = _whole_runs(engine, examples, bits)
        assert found.accuracy[layer, s] == accuracy
        assert found.log_likelihood[layer, s] == pytest.approx(likelihood, abs=1e-5)
    accuracy, likelihood = _whole_runs(engine, examples, np.full((N, M), 2, np.int64))
    assert found.floor_accuracy == accuracy
    assert found.floor_log_likelihood == pytest.approx(likelihood, abs=1e-5)


def test_likelihood_only_breaks_ties() -> None:
    """The paper orders by accuracy: a shard with one more right answer must stay ahead."""
    accuracy = np.array([[0.5, 0.75], [0.5, 0.5]])
    likelihood = np.array([[-0.1, -0.9], [-0.3, -0.2]])
    order = np.argsort(-Ablation(4, accuracy, likelihood, 0.5, -1.0).importance, axis=None)
    assert order.tolist() == [1, 0, 3, 2]


def test_layer_change_is_positive_and_sees_every_shard(
    engine: Engine, examples: tuple[Labelled, ...]
) -> None:
    """A shard whose fidelity moved nothing would never be bought, so a zero would be a wiring mistake."""
    change = layer_change(engine, [e.encoded for e in examples])
    assert change.shape == (engine.spec.n_layers, engine.spec.n_heads)
    assert np.all(change > 0)
    assert np.all(change < 1)


def test_rank_correlation_is_spearmans() -> None:
    """Checked by hand: ties share their mean rank, order alone counts."""
    a = np.array([1.0, 2.0, 3.0, 4.0])
    assert rank_correlation(a, np.exp(a)) == pytest.approx(1)
    assert rank_correlation(a, -a) == pytest.approx(-1)
    # Ranks 1.5 1.5 3 4 against 1 2 3 4: sums of squares 4.5 and 5, product 4.5.
    assert rank_correlation(np.array([5.0, 5.0, 6.0, 7.0]), a) == pytest.approx(4.5 / np.sqrt(4.5 * 5))
    assert np.isnan(rank_correlation(np.ones(4), a))


def test_no_examples_are_an_error(engine: Engine) -> None:
    """A mean over nothing is no importance."""
    with pytest.raises(InputError, match="at least one"):
        ablate(engine, ())
    with pytest.raises(InputError, match="at least one"):
        layer_change(engine, ())


def test_the_map_is_drawn_in_characters_and_as_a_picture(tmp_path: Path) -> None:
    """Figure 5 for a terminal and for a page."""
    table = np.array([[0.0, 0.5], [0.9, 1.0]])
    assert importance_text(table) == "layer  0  0 5\nlayer  1  9 9\n"
    pytest.importorskip("matplotlib")
    assert draw_importance(table, tmp_path / "map.png", "a map").stat().st_size > 1000


def _whole_runs(engine: Engine, examples: tuple[Labelled, ...], bits: np.ndarray) -> tuple[float, float]:
    engine.hold(bits)
    layers = tuple(range(engine.spec.n_layers))
    logits = np.array([engine.answer(e.encoded, layers, engine.spec.n_heads) for e in examples], np.float64)
    labels = np.array([e.label for e in examples])
    shares = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    right = logits.argmax(axis=1) == labels
    return float(right.mean()), float(shares[np.arange(len(labels)), labels].mean())
