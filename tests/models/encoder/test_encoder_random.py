"""Random encoders: the same everywhere, of a sane scale, made piece by piece."""

import json
from pathlib import Path

import numpy as np
import pytest

from pliant.errors import ModelError
from pliant.models.encoder.encoder_directory import shapes_of
from pliant.models.encoder.encoder_random import known_configs, random_encoder
from tests.models.encoder_runs import run_encoder

BERT = {
    "model_type": "bert",
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 24,
    "num_attention_heads": 3,
    "intermediate_size": 48,
    "max_position_embeddings": 16,
}
MOBILEBERT = {
    "model_type": "mobilebert",
    "vocab_size": 50,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
    "embedding_size": 8,
    "intra_bottleneck_size": 16,
}
VIT = {
    "model_type": "vit",
    "hidden_size": 24,
    "num_hidden_layers": 24,
    "num_attention_heads": 3,
    "intermediate_size": 48,
    "image_size": 16,
    "patch_size": 4,
}
WHISPER = {
    "model_type": "whisper",
    "num_mel_bins": 6,
    "d_model": 24,
    "encoder_layers": 24,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 48,
    "max_source_positions": 17,
}


def _write(directory: Path, config: dict[str, object]) -> Path:
    path = directory / "config.json"
    path.write_text(json.dumps(config))
    return path


def test_the_numbers_never_change() -> None:
    """Devices with other versions of numpy, or another byte order, hold the same model."""
    values = random_encoder("bert-base", 7).tensor("layers.3.query.weight")[0, :3]
    wanted = ("-0x1.fb09b8p-6", "0x1.91fb40p-8", "-0x1.ad6098p-6")
    assert [float(value) for value in values] == [float.fromhex(digits) for digits in wanted]


def test_equal_configurations_and_seeds_are_one_model(tmp_path: Path) -> None:
    """However the file is written; another seed or size is another model."""
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(json.dumps(BERT, indent=3))
    b.write_text(json.dumps(dict(reversed(BERT.items()))))
    first, same, other = random_encoder(a, 1), random_encoder(b, 1), random_encoder(a, 2)
    assert first.identity == same.identity != other.identity
    name = "layers.2.down.weight"
    np.testing.assert_array_equal(first.tensor(name), same.tensor(name))
    assert not np.array_equal(first.tensor(name), other.tensor(name))
    assert first.identity != random_encoder(_write(tmp_path, BERT | {"vocab_size": 51}), 1).identity


def test_no_two_tensors_are_alike(tmp_path: Path) -> None:
    """Swapped layers or projections would go unseen."""
    source = random_encoder(_write(tmp_path, BERT))
    starts = {name: source.tensor(name).reshape(-1)[:20].tobytes() for name in shapes_of(source.family)}
    assert len(set(starts.values())) == len(starts)


def test_rows_of_a_table_are_made_alone(tmp_path: Path) -> None:
    """A text of 20 words needs 20 rows of 30,000; columns that fill no whole step of the stream included."""
    source = random_encoder(_write(tmp_path, MOBILEBERT | {"embedding_size": 13}))
    table = source.tensor("embeddings.word")
    ids = np.array([49, 0, 7, 8, 7])
    np.testing.assert_array_equal(source.weights.rows("embeddings.word", ids), table[ids])


@pytest.mark.parametrize("config", [BERT, MOBILEBERT, VIT, WHISPER], ids=lambda c: c["model_type"])
def test_activations_stay_of_order_one_through_24_layers(config: dict[str, object], tmp_path: Path) -> None:
    """Sums that vanish or grow would hide an error of a split, or drown it in rounding."""
    source = random_encoder(_write(tmp_path, config))
    answer = run_encoder(source, source.sample(source.spec.max_rows), "hidden")
    assert source.spec.n_layers == 24
    assert 0.3 < float(answer.std()) < 8


@pytest.mark.parametrize("name", known_configs())
def test_every_configuration_that_is_brought_along_opens(name: str) -> None:
    """Benches name them."""
    source = random_encoder(name)
    assert source.tensor(f"layers.{source.spec.n_layers - 1}.output.weight").shape == (
        source.spec.inner,
        source.spec.attended,
    )


def test_rows_past_the_first_chunk_are_those_of_the_table() -> None:
    """Numbers are made 32768 at a time: row 256 of 128 columns begins the second chunk."""
    source = random_encoder("mobilebert")
    ids = np.array([255, 256, 30521])
    rows = source.weights.rows("embeddings.word", ids)
    np.testing.assert_array_equal(rows, source.tensor("embeddings.word")[ids])


def test_a_name_that_is_none_is_answered_with_those_there_are() -> None:
    """And with nothing downloaded."""
    with pytest.raises(ModelError, match=r"bert-huge is not a configuration file.*bert-base, bert-large"):
        random_encoder("bert-huge")


def test_a_tensor_the_model_lacks_is_an_error() -> None:
    """Names come from other devices."""
    with pytest.raises(ModelError, match=r"no tensor 'layers.99.up.weight'"):
        random_encoder("bert-base").tensor("layers.99.up.weight")
