"""Encoders from directories: what is mapped, what names them, and what is wrong with them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pliant.errors import InputError, ModelError
from pliant.models import identity as hashes
from pliant.models.encoder.encoder_directory import open_directory, read_family, shapes_of
from pliant.models.encoder.encoder_parts import feed_forward_part
from pliant.models.encoder.encoder_random import random_encoder
from pliant.models.encoder.encoder_source import Encoder, EncoderSource
from pliant.models.encoder.part_builder import IndexRange
from pliant.models.hf.config import write_pooling
from pliant.models.spec import Head, Pooling
from tests.models.encoder_runs import run_encoder
from tests.tiny import tiny_spec, write_model

CONFIG = {
    "model_type": "mobilebert",
    "architectures": ["MobileBertModel"],
    "vocab_size": 30,
    "hidden_size": 14,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 9,
    "max_position_embeddings": 12,
    "embedding_size": 5,
    "intra_bottleneck_size": 6,
    "num_feedforward_networks": 2,
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A random MobileBERT's directory."""
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(CONFIG))
    made = random_encoder(directory / "config.json")
    tensors = {made.family.saved_names(name)[0]: made.tensor(name) for name in shapes_of(made.family)}
    save_file(tensors, directory / "model.safetensors")
    return directory


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("is_normalized", [True, False])
def test_mobilebert_pools_as_sentence_transformers_would(
    pooling: Pooling, is_normalized: bool, model: Path, tmp_path: Path
) -> None:
    """The plain mean is another vector than the one that an index of documents was made with."""
    for name, content in write_pooling(Head(pooling, None, None, is_normalized), 14).items():
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text(json.dumps(content))
    source = open_directory(model, tmp_path)
    feeds = {"ids": np.array([4, 9, 2, 17], np.int32)}
    rows = run_encoder(source, feeds, "hidden").astype(np.float64)
    want = rows[0] if pooling == "cls" else rows.mean(axis=0)
    if is_normalized:
        want = want / np.linalg.norm(want)
    # Sums of at most 14 float32 of order 1.
    np.testing.assert_allclose(run_encoder(source, feeds), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("problem_type", "multi_label_classification"),
        ("architectures", ["MobileBertForTokenClassification"]),
        ("architectures", ["ViTForImageClassificationWithTeacher"]),
        ("pruned_heads", {"0": [1]}),
        ("quantization_config", {"bits": 8}),
    ],
)
@pytest.mark.parametrize("kind", ["mobilebert", "vit"])
def test_a_variant_that_is_not_supported_is_refused(
    kind: str, key: str, value: object, tmp_path: Path
) -> None:
    """As for BERT: scores by softmax, or an encoder without its head, would be wrong answers."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind, key: value}))
    with pytest.raises(ModelError, match=rf"config\.json: {key.removesuffix('s')}"):
        read_family(path)


def _change(model: Path, change: Callable[[dict[str, np.ndarray]], Any]) -> None:
    tensors = load_file(model / "model.safetensors")
    change(tensors)
    save_file(tensors, model / "model.safetensors")


def test_an_encoder_is_what_a_split_asks_for(model: Path, tmp_path: Path) -> None:
    """The protocol that the cluster is written against."""
    assert isinstance(open_directory(model, tmp_path), EncoderSource)


def test_tensors_are_views_of_the_mapped_file(model: Path, tmp_path: Path) -> None:
    """A device that holds a small share must not load the model."""
    source = open_directory(model, tmp_path)
    tensor = source.tensor("layers.0.up.weight")
    assert not tensor.flags.owndata
    assert not tensor.flags.writeable
    graph = source.graph(feed_forward_part(source.spec, 3, 1, IndexRange(2, 5)), 0)
    assert np.shares_memory(graph.constants["up.weight[2:5,0:6]"], tensor)


def test_what_was_let_go_of_is_read_again(model: Path, tmp_path: Path) -> None:
    """Pages of weights that were packed need not stay, and may be needed once more."""
    source = open_directory(model, tmp_path)
    before = source.tensor("layers.0.up.weight").copy()
    source.release()
    np.testing.assert_array_equal(source.tensor("layers.0.up.weight"), before)


def test_a_copy_has_the_same_identity_and_another_model_has_not(model: Path, tmp_path: Path) -> None:
    """Devices are matched by it: each loads its own copy."""
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    identity = open_directory(model, tmp_path).identity
    assert open_directory(copy, tmp_path).identity == identity
    _change(copy, lambda tensors: tensors.update(_first_changed(tensors)))
    assert open_directory(copy, tmp_path).identity != identity
    (model / "config.json").write_text(json.dumps(CONFIG | {"hidden_act": "gelu"}))
    assert open_directory(model, tmp_path).identity != identity


def test_the_pooling_of_a_directory_is_part_of_its_identity(model: Path, tmp_path: Path) -> None:
    """Devices whose copies pool in different ways give different vectors; other directories keep theirs."""
    found = []
    for head in (None, Head("cls", None, None), Head("mean", None, None), Head("mean", None, None, True)):
        for name, content in ({} if head is None else write_pooling(head, 14)).items():
            (model / name).parent.mkdir(exist_ok=True)
            (model / name).write_text(json.dumps(content))
        found += [open_directory(model, tmp_path).identity, hashes.directory_identity(model, tmp_path)]
    files = [model / "config.json", model / "model.safetensors"]
    assert found[0] == found[1] == hashes.files_identity(files, tmp_path)
    assert found[0::2] == found[1::2]
    assert len(set(found)) == 4


def _first_changed(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    name = min(tensors)
    return {name: tensors[name] + np.float32(1)}


def test_files_are_hashed_once(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gigabyte takes seconds, and nothing changed since the last start."""
    identity = open_directory(model, tmp_path / "cache").identity

    def refuse(*_: object) -> None:
        raise AssertionError("hashed again")

    monkeypatch.setattr(hashes, "file_digest", refuse)
    assert open_directory(model, tmp_path / "cache").identity == identity
    with pytest.raises(AssertionError, match="hashed again"):
        open_directory(model, tmp_path / "another cache")


def test_a_cache_that_cannot_be_written_costs_time_only(model: Path, tmp_path: Path) -> None:
    """A read-only home is no reason not to run."""
    (tmp_path / "file").write_text("")
    assert open_directory(model, tmp_path / "file").identity == open_directory(model, tmp_path).identity


def test_all_tensors_that_are_missing_are_named_at_once(model: Path, tmp_path: Path) -> None:
    """In the checkpoint's own words."""
    part = "mobilebert.encoder.layer.0.ffn.0.output.LayerNorm"
    _change(model, lambda tensors: [tensors.pop(f"{part}.{kind}") for kind in ("weight", "bias")])
    with pytest.raises(ModelError, match=rf"lacks 2 tensors of this mobilebert: {part}.weight, {part}.bias"):
        open_directory(model, tmp_path)


def test_a_wrong_shape_or_type_is_named_with_the_right_one(model: Path, tmp_path: Path) -> None:
    """Before anything is run."""
    up, key = "intermediate.dense.weight", "attention.self.key.bias"
    prefix = "mobilebert.encoder.layer.0."
    changed = {prefix + up: np.zeros((9, 5), np.float32), prefix + key: np.zeros(6, np.int32)}
    _change(model, lambda tensors: tensors.update(changed))
    with pytest.raises(ModelError, match=rf"{up} is \[9, 5\], not \[9, 6\]") as error:
        open_directory(model, tmp_path)
    assert f"{prefix}{key} is I32, not one of F32, F16, BF16" in str(error.value)


def test_a_value_that_is_not_finite_is_found_where_it_is_read(model: Path, tmp_path: Path) -> None:
    """Devices that do not hold it cannot know; the one that does must not answer with NaN."""
    name = "mobilebert.encoder.layer.0.intermediate.dense.weight"
    _change(model, lambda tensors: tensors[name].__setitem__((7, 1), np.nan))
    source = open_directory(model, tmp_path)
    source.graph(feed_forward_part(source.spec, 3, 1, IndexRange(0, 7)), 0)
    with pytest.raises(ModelError, match=r"layers.0.up.weight holds NaN or infinity among rows 7 to 8"):
        source.graph(feed_forward_part(source.spec, 3, 1, IndexRange(7, 9)), 0)


def test_a_damaged_row_of_the_word_table_is_an_error_for_its_token(model: Path, tmp_path: Path) -> None:
    """Rows are looked up on the primary, outside of any graph."""
    name = "mobilebert.embeddings.word_embeddings.weight"
    _change(model, lambda tensors: tensors[name].__setitem__((3, 1), np.inf))
    source = open_directory(model, tmp_path)
    source.prepare({"ids": np.array([4, 5])})
    with pytest.raises(ModelError, match="NaN or infinity"):
        source.prepare({"ids": np.array([4, 3])})


def test_a_file_that_changed_after_it_was_opened_is_an_error(model: Path, tmp_path: Path) -> None:
    """What is mapped would be neither the old model nor the new."""
    source = open_directory(model, tmp_path)
    source.tensor("layers.0.up.weight")
    with (model / "model.safetensors").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(ModelError, match="was changed after the model was opened"):
        source.tensor("layers.0.down.weight")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "resnet"}, "model_type 'resnet' is not supported"),
        ({"hidden_size": "many"}, r"config.json cannot be used: Expected `int`.*hidden_size"),
        ({"hidden_act": "swish"}, "activation 'swish' is not supported"),
        ({"normalization_type": "batch"}, "normalization_type 'batch' is none of"),
        ({"num_attention_heads": 4}, "6 columns do not divide into 4 heads"),
        ({"num_hidden_layers": 0}, "n_layers is 0"),
    ],
)
def test_a_configuration_that_cannot_be_run_is_refused(
    changes: dict[str, object], message: str, model: Path, tmp_path: Path
) -> None:
    """The key and its value are named."""
    (model / "config.json").write_text(json.dumps(CONFIG | changes))
    with pytest.raises(ModelError, match=message):
        open_directory(model, tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "vit", "image_size": 30}, "an image of 30 x 30 is not whole patches"),
        ({"model_type": "vit", "num_attention_heads": 5}, "768 columns do not divide into 5 heads"),
        ({"model_type": "whisper", "d_model": 0}, "0 columns do not divide"),
        ({"model_type": "whisper", "activation_function": "silu"}, "activation 'silu' is not supported"),
    ],
)
def test_other_families_refuse_theirs(config: dict[str, object], message: str, tmp_path: Path) -> None:
    """Sizes that do not fit would fail much later, in a product."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=message):
        read_family(tmp_path / "config.json")


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_missing_or_cut_file_is_named(is_missing: bool, model: Path, tmp_path: Path) -> None:
    """A download that did not end."""
    file = model / "model.safetensors"
    content = file.read_bytes()
    file.unlink()
    if not is_missing:
        file.write_bytes(content[:-3])
    with pytest.raises(ModelError, match=r"model.safetensors is (missing|truncated)"):
        open_directory(model, tmp_path)


def test_words_kept_in_codes_are_decoded_row_by_row(tmp_path: Path) -> None:
    """What `pliant stretch` writes: the table would be most of the model's bytes in float32."""
    from pliant.models.hf.checkpoint import open_checkpoint, save_checkpoint
    from pliant.models.word_table import QuantizedTable, pack_codes

    spec = tiny_spec("electra")
    plain = open_checkpoint(write_model(tmp_path / "plain", spec))
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 64, (spec.vocab, spec.embedding)).astype(np.uint8)
    table = QuantizedTable(pack_codes(codes), rng.standard_normal(64, np.float32), spec.embedding)
    tensors = {name: plain.tensor(name) for name in plain.stored}
    save_checkpoint(tmp_path / "coded", spec, tensors, "F32", plain.directory, table)
    source = open_directory(tmp_path / "coded", tmp_path)
    ids = np.array([7, 3, 3])
    np.testing.assert_array_equal(source.prepare({"ids": ids}).feeds["word"], table.codebook[codes[ids]])
    np.testing.assert_array_equal(source.tensor("embeddings.word"), table.codebook[codes])


def test_text_becomes_ids_by_the_models_own_tokenizer(tmp_path: Path) -> None:
    """`pliant cluster run MODEL --text`."""
    source = open_directory(write_model(tmp_path / "model", tiny_spec()), tmp_path)
    feeds = source.read("a good film", "it is")
    assert len(feeds["ids"]) == len(feeds["types"]) == 8
    assert source.prepare(feeds).rows == 8


def test_a_model_without_a_tokenizer_reads_no_text(model: Path, tmp_path: Path) -> None:
    """It still runs on ids."""
    with pytest.raises(InputError, match="this mobilebert has no tokenizer"):
        open_directory(model, tmp_path).read("a good film")


def _family(name: str) -> Encoder:
    return random_encoder(name)


@pytest.mark.parametrize(
    ("config", "feeds", "message"),
    [
        ("bert-base", {}, "reads ids and types, but was fed nothing"),
        ("bert-base", {"ids": np.arange(3), "mask": np.ones(3)}, "was fed ids, mask"),
        ("bert-base", {"ids": np.ones(3)}, "ids is float64, but the model reads whole numbers"),
        ("bert-base", {"ids": np.arange(513)}, "reads 1 to 512 tokens"),
        ("bert-base", {"ids": np.arange(0)}, "reads 1 to 512 tokens"),
        ("bert-base", {"ids": np.array([[1]])}, r"ids are \[1, 1\]"),
        (
            "bert-base",
            {"ids": np.array([4, 30522])},
            "id 30522 .* 30522: give 0 to 30521",
        ),
        ("mobilebert", {"ids": np.array([4, -1])}, "id -1 is not one of the model's"),
        (
            "bert-base",
            {"ids": np.arange(3), "types": np.arange(3)},
            "type 2 is not one of the model's 2: give 0 to 1",
        ),
        ("bert-base", {"ids": np.arange(3), "types": np.zeros(2, int)}, r"\[2\] types, but 3 ids"),
        ("distilbert-base", {"ids": np.arange(3), "types": np.arange(3)}, "type 1 is not one of the model's"),
        ("vit-base", {"pixels": np.ones((3, 224, 223))}, r"the model reads \[3, 224, 224\]"),
        ("vit-base", {"pixels": np.full((3, 224, 224), np.nan)}, "pixels holds NaN or infinity"),
        ("whisper-small", {"mel": np.ones((80, 3001))}, r"mel is \[80, 3001\]"),
        ("whisper-small", {"mel": np.ones((80, 3002))}, "an even number of frames up to 3000"),
    ],
)
def test_an_input_the_model_cannot_read_is_refused(
    config: str, feeds: dict[str, np.ndarray], message: str
) -> None:
    """On the primary, before anything is sent."""
    with pytest.raises(InputError, match=message):
        _family(config).prepare(feeds)


@pytest.mark.parametrize(("config", "rows"), [("bert-base", 513), ("vit-base", 196), ("whisper-small", 1501)])
def test_rows_the_model_cannot_have_are_refused(config: str, rows: int) -> None:
    """What is timed must be possible."""
    with pytest.raises(InputError, match="rows"):
        _family(config).sample(rows)


def test_an_answer_the_model_cannot_give_is_refused() -> None:
    """An embedding model has no logits."""
    with pytest.raises(InputError, match="this bert gives no logits; it gives pooled or hidden"):
        _family("bert-base").head(4, "logits")
