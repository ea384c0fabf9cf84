"""The ablation with kept activations against the plain one."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pliant.elastic.importance import Ablation, LabelledInput, ablate
from pliant.errors import InputError
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.run.submodel.engine import Engine
from pliant.store.build import build
from pliant.store.read import open_store
from tests.elastic.random_examples import random_examples


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
def examples(engine: Engine) -> tuple[LabelledInput, ...]:
    return random_examples(engine.spec.vocab, (3, 7, 5, 9))


def test_the_ablation_equals_one_that_keeps_nothing(
    engine: Engine, examples: tuple[LabelledInput, ...]
) -> None:
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


def test_no_examples_are_an_error(engine: Engine) -> None:
    """A mean over nothing is no importance."""
    with pytest.raises(InputError, match="at least one"):
        ablate(engine, ())


def _whole_runs(engine: Engine, examples: tuple[LabelledInput, ...], bits: np.ndarray) -> tuple[float, float]:
    engine.hold(bits)
    layers = tuple(range(engine.spec.n_layers))
    logits = np.array([engine.answer(e.encoded, layers, engine.spec.n_heads) for e in examples], np.float64)
    labels = np.array([e.label for e in examples])
    shares = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    right = logits.argmax(axis=1) == labels
    return float(right.mean()), float(shares[np.arange(len(labels)), labels].mean())
