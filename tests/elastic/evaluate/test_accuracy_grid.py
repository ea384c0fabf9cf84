"""The accuracy grid against whole runs of every submodel, one by one."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pliant.elastic.evaluate.accuracy_grid import measure_grid
from pliant.elastic.evaluate.labelled_inputs import LabelledInput, log_likelihood, pick_evenly
from pliant.errors import InputError
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.models.spec import picked_layers
from pliant.run.submodel.engine import Engine
from pliant.store.build import build
from pliant.store.read import open_store
from tests.elastic.random_examples import random_examples


@pytest.fixture(scope="module")
def engine(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A random classifier of four layers and two widths, packed without 3 bits."""
    model = tiny_model("bert", True, n_layers=4, widths=(2, 4))
    store = build(open_checkpoint(model), tmp_path_factory.mktemp("grid") / "store", bits=(2, 4, 6, 32))
    with (
        open_store(store) as opened,
        Engine(opened, n_threads=1, cache=tmp_path_factory.mktemp("kernels")) as engine,
    ):
        yield engine


@pytest.fixture(scope="module")
def examples(engine: Engine) -> tuple[LabelledInput, ...]:
    return random_examples(engine.spec.vocab, (3, 7, 5, 9, 4))


def test_every_entry_is_what_whole_runs_of_that_submodel_give(
    engine: Engine, examples: tuple[LabelledInput, ...]
) -> None:
    """Shared first layers are an optimisation: sharing one too many would measure another submodel."""
    table = measure_grid(engine, examples, bits=(2, 3, 32))
    assert table.n_examples == len(examples)
    places = [(e.n, e.m, e.bits) for e in table.entries]
    assert places == [(n, m, b) for b in (2, 32) for m in (2, 4) for n in (1, 2, 3, 4)]
    assert [fold.n_examples for fold in table.folds] == [1] * len(examples)  # as many as folds: one each
    for i, entry in enumerate(table.entries):
        engine.hold(np.full((4, 4), entry.bits))
        layers = picked_layers(4, entry.n)
        logits = [engine.answer(x.encoded, layers, entry.m) for x in examples]
        right = [int(np.argmax(z)) == x.label for z, x in zip(logits, examples, strict=True)]
        # The same kernels on the same values in the same order: equal to the last bit.
        assert entry.accuracy == np.mean(right)
        assert [fold.accuracy[i] for fold in table.folds] == right
        likelihood = [log_likelihood(z, x.label) for z, x in zip(logits, examples, strict=True)]
        assert entry.log_likelihood == pytest.approx(np.mean(likelihood), rel=1e-12)
        assert [fold.log_likelihood[i] for fold in table.folds] == pytest.approx(likelihood, rel=1e-12)


def test_progress_ends_at_its_total(engine: Engine, examples: tuple[LabelledInput, ...]) -> None:
    """Measuring takes minutes on a real model: a bar that stops early looks like a hang."""
    seen: list[tuple[int, int]] = []
    measure_grid(engine, examples[:1], bits=(2, 4), on_cell=lambda *x: seen.append(x))
    assert seen[-1] == (16, 16)


def test_nothing_to_measure_on_or_at_is_an_error(engine: Engine, examples: tuple[LabelledInput, ...]) -> None:
    """A grid of no examples would be all nan, and every plan made from it nonsense."""
    for some, bits in (((), (2,)), (examples, (3, 5))):
        with pytest.raises(InputError, match="2,4,6,32"):
            measure_grid(engine, some, bits=bits)


def test_a_likelihood_is_the_logarithm_of_a_softmax() -> None:
    """Large logits must not overflow into nan."""
    assert log_likelihood(np.array([1e4, 0.0], np.float32), 0) == 0
    assert log_likelihood(np.array([0.0, np.log(3)], np.float32), 1) == pytest.approx(np.log(0.75), rel=1e-6)


def test_examples_are_picked_evenly_and_all_when_few() -> None:
    """The first so many of a sorted file would all have one label."""
    assert pick_evenly(range(10), 3) == (0, 3, 6)
    picked = pick_evenly(range(872), 500)
    assert len(set(picked)) == 500
    assert picked[-1] >= 870
    assert pick_evenly(range(4), 9) == pick_evenly(range(4), None) == (0, 1, 2, 3)
