"""Text for ONNX models: fed as transformers' tokenizers feed it, where a tokenizer lies beside the file."""

import json
from pathlib import Path

import numpy as np
import pytest

from pliant.errors import InputError, ModelError
from pliant.ir.port import Port
from pliant.models.onnx.onnx_text import open_onnx_text
from tests.tiny import tiny_spec, write_model

IDS, MASK, TYPES = (
    Port(name, "int64", ("batch", "length")) for name in ("input_ids", "attention_mask", "token_type_ids")
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier's config.json and tokenizer.json, as an exporter leaves them beside `model.onnx`."""
    return write_model(tmp_path_factory.mktemp("text") / "bert", tiny_spec("bert"))


@pytest.mark.parametrize("ports", [(IDS,), (IDS, MASK), (IDS, MASK, TYPES)])
def test_texts_become_the_inputs_that_transformers_feeds(folder: Path, ports: tuple[Port, ...]) -> None:
    """Ids, mask and types of a pair are those of AutoTokenizer, for whichever inputs the model has."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    text = open_onnx_text(folder / "model.onnx", ports)
    assert text is not None
    assert text.labels == ("negative", "positive")
    for words in (("a good film", None), ("a good film", "it is bad")):
        wanted = theirs(*words, return_tensors="np", return_token_type_ids=True)
        feeds = text.feeds(*words)
        assert list(feeds) == [port.name for port in ports]
        for name, array in feeds.items():
            assert (array.dtype, array.tolist()) == (np.int64, wanted[name].tolist())


def test_inputs_have_the_types_of_the_model(folder: Path) -> None:
    """Models converted from TensorFlow take int32; others, such as floats, are no ids."""
    ports = (Port("input_ids", "int32", (None, None)), MASK)
    text = open_onnx_text(folder / "model.onnx", ports)
    assert text is not None
    assert [array.dtype for array in text.feeds("a film").values()] == [np.int32, np.int64]
    assert open_onnx_text(folder / "model.onnx", (IDS, Port("attention_mask", "float32", (1, 8)))) is None


def test_a_model_of_one_length_is_fed_padded_and_masked(folder: Path) -> None:
    """Exporters that know no dynamic shapes write one length into the file."""
    ports = [Port(port.name, "int64", (1, 8)) for port in (IDS, MASK)]
    text = open_onnx_text(folder / "model.onnx", ports)
    assert text is not None
    feeds = text.feeds("a good film")
    assert feeds["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 0, 0, 0]]
    assert feeds["input_ids"][0, 5:].tolist() == [0, 0, 0]
    with pytest.raises(InputError, match="reads at most 8"):
        text.feeds("good " * 9)
    with pytest.raises(ModelError, match="cannot be marked"):
        open_onnx_text(folder / "model.onnx", ports[:1])


def test_the_folder_above_counts_for_files_in_a_folder_called_onnx(folder: Path) -> None:
    """That is where the hub keeps them."""
    assert open_onnx_text(folder / "onnx" / "model.onnx", (IDS,)) is not None
    assert open_onnx_text(folder / "other" / "model.onnx", (IDS,)) is None


def test_what_reads_no_text_has_none(folder: Path, tmp_path: Path) -> None:
    """Pixels, or states of a decoder, are no text, whatever lies beside the file."""
    pixels = Port("pixel_values", "float32", ("batch", 3, 8, 8))
    for ports in ((pixels,), (IDS, pixels), (MASK,), (Port("input_ids", "int64", (4,)),)):
        assert open_onnx_text(folder / "model.onnx", ports) is None
    assert open_onnx_text(tmp_path / "model.onnx", (IDS,)) is None


@pytest.mark.parametrize(
    "kind",
    [
        *("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "longformer", "luke", "xmod"),
        *("data2vec-text", "ibert", "roberta-prelayernorm"),
    ],
)
def test_positions_up_to_padding_are_none_of_a_text(folder: Path, tmp_path: Path, kind: str) -> None:
    """A text truncated to 514 tokens asked such a model for the positions 514 and 515, which it lacks."""
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    config = {"model_type": kind, "vocab_size": 64, "max_position_embeddings": 514, "pad_token_id": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    text = open_onnx_text(tmp_path / "model.onnx", (IDS, MASK))
    assert text is not None
    assert text.tokenizer.spec.max_tokens == 512
    kept, _ = text.tokenizer.truncate("good " * 600)
    assert text.feeds(kept)["input_ids"].shape == (1, 512)


def test_a_tokenizer_without_a_configuration_is_an_error(folder: Path, tmp_path: Path) -> None:
    """Without it nobody knows how many tokens the model reads."""
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    with pytest.raises(ModelError, match=r"config\.json"):
        open_onnx_text(tmp_path / "model.onnx", (IDS,))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deberta-v2", "vocab_size": 64}))
    text = open_onnx_text(tmp_path / "model.onnx", (IDS,))
    assert text is not None
    assert text.labels is None
