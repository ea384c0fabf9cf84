"""A recurrent model's configuration: what it says, and what is refused."""

import json
from pathlib import Path

import pytest

from pliant.errors import ModelError
from pliant.models.recurrent.recurrent_spec import RecurrentSpec, read_recurrent

CONFIG = {
    "model_type": "recurrent",
    "cell": "lstm",
    "vocab_size": 30,
    "embedding_size": 5,
    "hidden_size": 7,
    "num_layers": 2,
    "bidirectional": True,
    "pooling": ["max", "mean"],
    "id2label": {"0": "bad", "1": "good"},
}


def _write(folder: Path, **changes: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(CONFIG | changes))
    return path


def test_tensors_have_the_names_and_shapes_that_torch_gives_them(tmp_path: Path) -> None:
    """A state_dict is loaded as it is: a second layer reads both directions of the first."""
    torch = pytest.importorskip("torch")
    spec = read_recurrent(_write(tmp_path))
    theirs = torch.nn.LSTM(5, 7, num_layers=2, bidirectional=True).state_dict()
    mine = {name.removeprefix("rnn."): s for name, s in spec.tensors().items() if name.startswith("rnn.")}
    assert mine == {name: tuple(w.shape) for name, w in theirs.items()}
    assert spec.tensors()["classifier.weight"] == (2, 28)
    assert spec.labels == ("bad", "good")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "bert"}, "'bert'"),
        ({"cell": "rnn"}, "cell"),
        ({"hidden_size": 0}, "hidden is 0"),
        ({"pooling": []}, "pooling"),
        ({"pooling": ["max", "max"]}, "each once"),
        ({"pooling": ["sum"]}, "pooling"),
        ({"id2label": {"0": "one"}}, "id2label has 1"),
        ({"id2label": {"1": "a", "2": "b"}}, "count from 0"),
        ({"vocab_size": "many"}, "vocab_size"),
    ],
)
def test_a_configuration_that_makes_no_model_is_refused_by_file_and_key(
    tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    """Whoever wrote it must know what to change."""
    with pytest.raises(ModelError) as raised:
        read_recurrent(_write(tmp_path, **changes))
    assert said in str(raised.value)
    assert "config.json" in str(raised.value)


def test_features_are_all_poolings_of_both_directions() -> None:
    """The classifier's columns follow from it."""
    spec = RecurrentSpec("gru", 9, 3, 4, is_bidirectional=True, pooling=("last", "max", "mean"))
    assert (spec.width, spec.features) == (8, 24)
