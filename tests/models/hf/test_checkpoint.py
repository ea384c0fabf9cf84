"""What is wrong with a model directory is said by file and tensor; a written one reads back bit by bit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pliant.errors import ModelError
from pliant.models.hf.checkpoint import open_checkpoint, save_checkpoint
from pliant.models.spec import Family, Head, tensor_shapes
from pliant.models.word_table import QuantizedTable, pack_codes
from tests.tiny import FAMILIES, random_tensors, tiny_spec, write_model, write_tokenizer

Weights = dict[str, np.ndarray]


def edit_weights(directory: Path, change: Callable[[Weights], object]) -> Path:
    """Apply `change` to the named arrays of a directory's model.safetensors."""
    weights = load_file(directory / "model.safetensors")
    change(weights)
    save_file(weights, directory / "model.safetensors")
    return directory


def edit_config(directory: Path, **changes: Any) -> Path:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    return directory


@pytest.fixture
def model(tiny_model: Callable[..., Path], tmp_path: Path) -> Path:
    """A copy of the tiny BERT classifier that may be damaged."""
    return Path(shutil.copytree(tiny_model("bert"), tmp_path / "model"))


@pytest.mark.parametrize("is_classifier", [True, False])
@pytest.mark.parametrize("precision", ["F32", "F16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_reads_back_bit_by_bit(
    family: Family, precision: Any, is_classifier: bool, tmp_path: Path
) -> None:
    """Stretch writes and pack reads: what lies between them must change nothing."""
    spec = tiny_spec(family, is_classifier, precision=precision, widths=(1, 3, 4), activation="gelu_tanh")
    tensors = random_tensors(spec)
    save_checkpoint(tmp_path / "m", spec, tensors, precision, write_tokenizer(tmp_path / "t", family))
    checkpoint = open_checkpoint(tmp_path / "m")
    assert checkpoint.spec == spec
    half = np.float16 if precision == "F16" else np.float32
    for name, _ in tensor_shapes(spec):
        assert np.array_equal(checkpoint.tensor(name), tensors[name].astype(half).astype(np.float32))
    assert (tmp_path / "m" / "tokenizer.json").read_bytes() == (
        tmp_path / "t" / "tokenizer.json"
    ).read_bytes()


@pytest.mark.parametrize(
    "head", [Head("cls", None, None), Head("mean", None, None), Head("cls", None, None, True)]
)
def test_an_embedding_head_keeps_its_pooling(head: Head, tmp_path: Path) -> None:
    """Pooling lies in sentence-transformers' files, not in config.json; both directions must agree."""
    spec = tiny_spec(is_classifier=False, head=head)
    assert open_checkpoint(write_model(tmp_path / "m", spec)).spec.head == head


def test_quantized_embeddings_read_back_as_the_values_they_stand_for(tmp_path: Path) -> None:
    """The shipped model keeps its words in 6 bits; `tensor` must not show the difference."""
    spec = tiny_spec("electra")
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 64, (spec.vocab, spec.embedding)).astype(np.uint8)
    codebook = np.sort(rng.standard_normal(64)).astype(np.float32)
    table = QuantizedTable(pack_codes(codes), codebook, spec.embedding)
    tensors = random_tensors(spec)
    del tensors["embeddings.word"]
    save_checkpoint(tmp_path / "m", spec, tensors, "F16", write_tokenizer(tmp_path / "t"), table)
    checkpoint = open_checkpoint(tmp_path / "m")
    read = checkpoint.embedding_codes()
    assert read is not None
    assert np.array_equal(read.codes, table.codes)
    assert np.array_equal(checkpoint.tensor("embeddings.word"), codebook[codes])


def test_all_missing_tensors_are_named_at_once(model: Path) -> None:
    """One at a time would be a download per error."""
    edit_weights(
        model, lambda w: (w.pop("bert.pooler.dense.bias"), w.pop("bert.encoder.layer.1.output.dense.weight"))
    )
    with pytest.raises(
        ModelError, match=r"lacks 2 tensors.*layer\.1\.output\.dense\.weight, bert\.pooler\.dense"
    ):
        open_checkpoint(model)


def test_tensors_of_wrong_shape_or_type_are_named(model: Path) -> None:
    """A transposed matrix would otherwise be a wrong answer."""

    def change(w: Weights) -> None:
        name = "bert.encoder.layer.0.intermediate.dense.weight"
        w[name] = np.ascontiguousarray(w[name].T)
        w["bert.encoder.layer.1.output.dense.bias"] = np.zeros(32, np.float64)

    edit_weights(model, change)
    with pytest.raises(
        ModelError, match=r"intermediate\.dense\.weight is \[32, 64\], not \[64, 32\]; .* is F64"
    ):
        open_checkpoint(model)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_no_number_is_named_by_file_tensor_and_place(model: Path, value: float) -> None:
    """One NaN makes every answer NaN, or worse, a label."""
    name = "bert.encoder.layer.1.attention.self.query.weight"
    edit_weights(model, lambda w: w[name].__setitem__((3, 5), value))
    checkpoint = open_checkpoint(model)
    with pytest.raises(ModelError, match=rf"{name} of .*model\.safetensors holds 1 values.*\[3, 5\]"):
        checkpoint.tensor("layers.1.query.weight")


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_truncated_file_is_refused_by_name(model: Path, kept: int) -> None:
    """An interrupted download."""
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"model\.safetensors is truncated or damaged"):
        open_checkpoint(model)


def test_a_file_cut_after_opening_is_refused(model: Path) -> None:
    """Reading is lazy, so the file can change in between; zeros would be a wrong answer."""
    checkpoint = open_checkpoint(model)
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"embeddings\.weight.*truncated"):
        checkpoint.tensor("embeddings.word")


def test_a_pickle_is_refused_with_the_way_out(model: Path) -> None:
    """Opening a pickle runs its code."""
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    with pytest.raises(ModelError, match="convert it"):
        open_checkpoint(model)


@pytest.mark.parametrize("graph", ["model.onnx", "onnx/model_quantized.onnx"])
def test_a_directory_of_an_exporter_leads_to_its_onnx_model(model: Path, graph: str) -> None:
    """Optimum writes the graph beside config.json, and no safetensors."""
    (model / "model.safetensors").unlink()
    (model / graph).parent.mkdir(exist_ok=True)
    (model / graph).write_bytes(b"")
    with pytest.raises(ModelError, match=f"but an ONNX model: name that file, {model / graph}"):
        open_checkpoint(model)


@pytest.mark.parametrize("gone", ["model.safetensors", "config.json"])
def test_a_missing_file_is_named(model: Path, gone: str) -> None:
    """The three files of a model directory are easy to copy by halves."""
    (model / gone).unlink()
    with pytest.raises(ModelError, match=rf"{gone} is missing"):
        open_checkpoint(model)


def test_a_missing_shard_is_named(model: Path) -> None:
    """The index outlives its files when a disk is cleaned by size."""
    (model / "model.safetensors").rename(model / "a.safetensors")
    index = model / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}), encoding="utf-8"
    )
    with pytest.raises(ModelError, match=r"b\.safetensors is missing"):
        open_checkpoint(model)


@pytest.mark.parametrize("text", ["[]", "{", '{"weight_map": ["a"]}', '{"weight_map": {"x": "../../other"}}'])
def test_a_damaged_index_is_refused(model: Path, text: str) -> None:
    """An index is a list of paths written by others."""
    (model / "model.safetensors").unlink()
    (model / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=r"index\.json"):
        open_checkpoint(model)


def test_a_wrong_number_of_labels_is_refused(model: Path) -> None:
    """Labels and rows that do not pair up name the wrong class."""
    edit_config(model, id2label={"0": "a", "1": "b", "2": "c"})
    with pytest.raises(ModelError, match=r"classifier\.weight has 2 rows, but id2label names 3 labels"):
        open_checkpoint(model)


def test_weights_with_more_layers_than_the_configuration_are_refused(model: Path) -> None:
    """A wrong layer count runs, and answers something else."""
    edit_config(model, num_hidden_layers=1)
    with pytest.raises(ModelError, match=r"says 1 layers, but the weights contain bert\.encoder\.layer\.1"):
        open_checkpoint(model)


def test_tensorflow_names_of_layer_norms_are_understood(model: Path) -> None:
    """The original BERT checkpoints call them gamma and beta, and transformers still reads those."""
    before = open_checkpoint(model).tensor("layers.0.output_norm.weight")

    def rename(w: Weights) -> None:
        for name in [n for n in w if "LayerNorm" in n]:
            w[
                name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                    "LayerNorm.bias", "LayerNorm.beta"
                )
            ] = w.pop(name)

    edit_weights(model, rename)
    assert np.array_equal(open_checkpoint(model).tensor("layers.0.output_norm.weight"), before)


def test_a_taken_name_is_not_written_over(model: Path, tmp_path: Path) -> None:
    """A training run of hours may lie there."""
    spec = tiny_spec()
    before = (model / "model.safetensors").read_bytes()
    with pytest.raises(ModelError, match="already exists"):
        save_checkpoint(model, spec, random_tensors(spec, 1), "F32", write_tokenizer(tmp_path / "t"))
    assert (model / "model.safetensors").read_bytes() == before


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk must not leave half a model that opens."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pliant.models.hf.checkpoint.save_file", full)
    spec = tiny_spec()
    with pytest.raises(ModelError, match="No space left"):
        save_checkpoint(
            tmp_path / "out" / "m", spec, random_tensors(spec), "F32", write_tokenizer(tmp_path / "t")
        )
    assert list((tmp_path / "out").iterdir()) == []


def test_values_that_half_precision_cannot_hold_are_refused(tmp_path: Path) -> None:
    """Overflow to infinity would only be noticed when the model is opened again."""
    spec = tiny_spec()
    tensors = random_tensors(spec)
    tensors["layers.0.up.weight"][0, 0] = 1e6
    with pytest.raises(ModelError, match=r"layers\.0\.up\.weight.*float16"):
        save_checkpoint(tmp_path / "m", spec, tensors, "F16", write_tokenizer(tmp_path / "t"))


def test_a_missing_or_misshapen_tensor_is_not_written(tmp_path: Path) -> None:
    """Better now than when the model is opened on the device."""
    spec = tiny_spec()
    tokenizer = write_tokenizer(tmp_path / "t")
    tensors = random_tensors(spec)
    tensors["layers.0.up.bias"] = np.zeros(3, np.float32)
    with pytest.raises(ModelError, match=r"up\.bias is \[3\]"):
        save_checkpoint(tmp_path / "m", spec, tensors, "F32", tokenizer)
    del tensors["layers.0.up.bias"]
    with pytest.raises(ModelError, match=r"up\.bias is missing"):
        save_checkpoint(tmp_path / "m", spec, tensors, "F32", tokenizer)
    assert not (tmp_path / "m").exists()
