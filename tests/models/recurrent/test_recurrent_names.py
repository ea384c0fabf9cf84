"""Which stored tensor is which: other people's modules have other names."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pliant.errors import ModelError
from pliant.models.recurrent.recurrent_source import open_recurrent_source
from pliant.models.recurrent.recurrent_spec import RecurrentSpec
from tests.recurrent_models import write_recurrent

SPEC = RecurrentSpec("gru", 10, 6, 8, 2, is_bidirectional=True, pooling=("max",), labels=("bad", "good"))


def _renamed(folder: Path, names: dict[str, str]) -> dict[str, np.ndarray]:
    """SPEC's directory with other beginnings of names; what it held."""
    write_recurrent(folder, SPEC)
    before = load_file(folder / "model.safetensors")
    after = {}
    for name, w in before.items():
        start = next((s for s in names if name.startswith(s)), "")
        after[names.get(start, "") + name.removeprefix(start)] = w
    save_file(after, folder / "model.safetensors")
    return before


@pytest.mark.parametrize(
    "names",
    [
        {"rnn.": "lstm.", "embedding.": "embed.", "classifier.": "fc."},
        {"rnn.": "model.encoder.", "embedding.": "model.words.", "classifier.": "head.2."},
        {"rnn.": "", "embedding.": "embedding.", "classifier.": "out."},
    ],
)
def test_modules_may_be_called_anything(tmp_path: Path, names: dict[str, str]) -> None:
    """A state_dict is read as it was saved."""
    before = _renamed(tmp_path, names)
    source = open_recurrent_source(tmp_path)
    np.testing.assert_array_equal(source.table, before["embedding.weight"])
    for name, w in source.weights.items():
        np.testing.assert_array_equal(w, before[name], err_msg=name)


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("rnn.weight_ih_l2", (24, 16), r"no place for the tensors rnn\.weight_ih_l2"),
        ("rnn.weight_hr_l0", (4, 8), r"no place for the tensors rnn\.weight_hr_l0"),
        ("dense.weight", (16, 16), r"no place for the tensors dense\.weight"),
        ("decoder.weight_ih_l0", (24, 6), "several recurrent modules"),
    ],
)
def test_tensors_that_would_be_left_out_are_refused(
    tmp_path: Path, name: str, shape: tuple[int, ...], said: str
) -> None:
    """A third layer, a projection, a hidden layer of the head: without it the answer is another model's."""
    write_recurrent(tmp_path, SPEC)
    tensors = load_file(tmp_path / "model.safetensors") | {name: np.zeros(shape, np.float32)}
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=said) as raised:
        open_recurrent_source(tmp_path)
    assert str(tmp_path) in str(raised.value)


def test_a_table_of_another_size_is_named(tmp_path: Path) -> None:
    """No shape fits, so the canonical name says what is wanted."""
    write_recurrent(tmp_path, SPEC)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["embedding.weight"] = tensors["embedding.weight"][:-1].copy()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"embedding\.weight is F32\[9, 6\], not floats of \[10, 6\]"):
        open_recurrent_source(tmp_path)
