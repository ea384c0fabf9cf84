"""The recurrent model that ships with pliant."""

from pathlib import Path

import pytest

import pliant
from pliant.api.resolve import resolve
from pliant.errors import InputError
from pliant.models.examples import read_examples


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def test_the_shipped_model_answers_and_stays_within_its_size(cache: Path) -> None:
    """4 MB is what the issue allows, words included."""
    directory = resolve("imdb-lstm").path
    assert sum(file.stat().st_size for file in directory.iterdir()) <= 4_000_000
    model = pliant.open("imdb-lstm", threads=1, cache=cache)
    assert (model.spec.cell, model.spec.n_layers, model.spec.labels) == ("lstm", 1, ("negative", "positive"))
    assert not model.source.is_random
    assert model("A wonderful film, moving from the first scene to the last.").label == "positive"
    assert model("The plot is thin and the acting is dreadful.").label == "negative"


def test_the_card_names_the_file_that_ships() -> None:
    """Its accuracy is that file's and no other's."""
    from hashlib import sha256

    directory = resolve("imdb-lstm").path
    digest = sha256((directory / "model.safetensors").read_bytes()).hexdigest()
    assert digest in (directory / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_cards_accuracy_can_be_measured_again(data: Path, cache: Path) -> None:
    """The first 2,000 reviews of the test set, whole, from the files that ship."""
    model = pliant.open("imdb-lstm", threads=1, cache=cache)
    examples = read_examples(data / "imdb/test.tsv.gz", model.spec.labels or ())[:2000]
    labels = model.spec.labels or ()
    right = sum(model(e.text).label == labels[e.label] for e in examples)
    # Other CPUs round differently: a review on the border may fall to the other side.
    assert right / 2000 == pytest.approx(0.878, abs=0.002)


def test_no_threads_cannot_run_a_model() -> None:
    """Before anything is read."""
    with pytest.raises(InputError, match="at least 1"):
        pliant.open("random:cove-200", threads=0)
