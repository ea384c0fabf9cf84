"""Recurrent models from directories and from a seed."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pliant.errors import InputError, ModelError
from pliant.models.recurrent.recurrent_source import known_recurrent, open_recurrent_source, random_recurrent
from pliant.models.recurrent.recurrent_spec import RecurrentSpec
from tests.recurrent_models import write_recurrent

SPEC = RecurrentSpec("lstm", 10, 6, 8, pooling=("max",), labels=("bad", "good"))


def test_a_directory_gives_float32_weights_and_keeps_the_table_as_it_is_stored(tmp_path: Path) -> None:
    """Words' vectors are most of a model: half floats stay half."""
    source = open_recurrent_source(write_recurrent(tmp_path, SPEC, dtype="float16"))
    stored = load_file(tmp_path / "model.safetensors")
    assert source.table.dtype == np.float16
    for name, w in source.weights.items():
        assert w.dtype == np.float32
        np.testing.assert_array_equal(w, stored[name].astype(np.float32))
    np.testing.assert_array_equal(
        source.look_up(np.array([3, 3, 0])), source.table[[3, 3, 0]].astype(np.float32)
    )
    assert not source.is_random


def test_words_are_numbered_by_the_directorys_tokenizer(tmp_path: Path) -> None:
    """Unknown words are one; a text without any is refused."""
    source = open_recurrent_source(write_recurrent(tmp_path, SPEC))
    assert source.encode("A very GOOD zebra.").ids.tolist() == [2, 6, 4, 1, 9]
    with pytest.raises(InputError, match="empty"):
        source.encode("   ")


@pytest.mark.parametrize("ids", [[], [10], [-1, 3], [0] * 16_385])
def test_words_that_do_not_exist_are_refused(tmp_path: Path, ids: list[int]) -> None:
    """An id past the table would read foreign memory."""
    source = open_recurrent_source(write_recurrent(tmp_path, SPEC))
    with pytest.raises(InputError):
        source.look_up(np.array(ids, np.int32))


def test_missing_and_misshapen_tensors_are_named_at_once(tmp_path: Path) -> None:
    """A checkpoint of another size must not be read as this one."""
    write_recurrent(tmp_path, SPEC)
    tensors = load_file(tmp_path / "model.safetensors")
    kept = {name: w for name, w in tensors.items() if "bias" not in name}
    save_file(kept, tmp_path / "model.safetensors")
    with pytest.raises(
        ModelError, match=r"lacks 3 tensors: classifier\.bias, rnn\.bias_hh_l0, rnn\.bias_ih_l0"
    ):
        open_recurrent_source(tmp_path)
    tensors["rnn.weight_hh_l0"] = tensors["rnn.weight_hh_l0"][:-1].copy()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"rnn\.weight_hh_l0 is F32\[31, 8\]"):
        open_recurrent_source(tmp_path)


def test_identity_changes_with_any_weight_and_with_the_words(tmp_path: Path) -> None:
    """Devices compare it before they answer for one another."""
    first = open_recurrent_source(write_recurrent(tmp_path / "a", SPEC)).identity
    assert open_recurrent_source(write_recurrent(tmp_path / "b", SPEC)).identity == first
    assert open_recurrent_source(write_recurrent(tmp_path / "c", SPEC, seed=1)).identity != first


def test_random_models_are_the_same_wherever_they_are_made() -> None:
    """A configuration and a seed are the model, and it says that it was never trained."""
    one, two, other = (random_recurrent("cove-200", *seed) for seed in ((), (0,), (1,)))
    assert one.is_random
    assert one.identity == two.identity != other.identity
    np.testing.assert_array_equal(
        one.weights["rnn.weight_hh_l1_reverse"], two.weights["rnn.weight_hh_l1_reverse"]
    )
    assert one.encode("a film, a FILM").ids.tolist() == two.encode("A film, a film").ids.tolist()
    assert one.encode("a film, a film").n_tokens == 5


def test_covers_the_shapes_of_cove() -> None:
    """2 layers, both directions, 300 units, and the variant of 200 (CRIME, Figure 10c)."""
    assert {"cove-200", "cove-300"} <= set(known_recurrent())
    for units in (200, 300):
        spec = random_recurrent(f"cove-{units}").spec
        assert (spec.inputs, spec.hidden, spec.n_layers, spec.is_bidirectional) == (300, units, 2, True)


def test_an_unknown_configuration_is_refused_with_those_there_are() -> None:
    """A mistyped name is the usual cause."""
    with pytest.raises(ModelError, match="cove-200, cove-300"):
        random_recurrent("cove-400")
