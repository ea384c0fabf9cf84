"""config.json decides what a model computes: what we cannot compute is refused by its key."""

import json
from pathlib import Path
from typing import Any

import pytest

from pliant.errors import ModelError
from pliant.models.hf.config import ignored_head, read_config, write_config, write_pooling
from pliant.models.spec import Head
from tests.tiny import FAMILIES, tiny_spec


def write(directory: Path, base: dict[str, Any], **changes: Any) -> Path:
    """`base` with `changes` as the directory's config.json; a change to ... removes the key."""
    config = {k: v for k, v in (base | changes).items() if v is not ...}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


BERT = write_config(tiny_spec(), "float32")


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_written_is_read(family: Any, tmp_path: Path) -> None:
    """The two directions are one contract."""
    for depths in (None, (2,), (1, 2)):
        spec = tiny_spec(family, widths=(2, 4), depths=depths)
        assert read_config(write(tmp_path, write_config(spec, "float32")), ()) == spec


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "modernbert"),
        ("position_embedding_type", "relative_key"),
        ("is_decoder", True),
        ("add_cross_attention", True),
        ("pruned_heads", {"0": [1]}),
        ("problem_type", "multi_label_classification"),
        ("quantization_config", {"bits": 8}),
        ("hidden_act", "swish"),
        ("classifier_pooling", "max"),
        ("pliant_dense", "swish"),
        ("architectures", ["BertForTokenClassification"]),
        ("pliant_widths", [3, 9]),
        ("pliant_widths", []),
        ("pliant_depths", [1]),
        ("pliant_depths", [2, 1]),
        ("num_labels", 5),
        ("id2label", {"0": "a", "2": "b"}),
        ("id2label", {}),
        ("hidden_size", 30),
        ("hidden_size", "32"),
        ("hidden_size", 0),
        ("num_attention_heads", ...),
        ("layer_norm_eps", None),
    ],
)
def test_what_is_not_supported_is_refused_by_name(key: str, value: Any, tmp_path: Path) -> None:
    """Ignoring a key that changes the arithmetic is a wrong answer."""
    named = {
        "hidden_size": "hidden",
        "hidden_act": "activation",
        "architectures": "architecture",
        "pliant_widths": "widths",
        "pliant_depths": "depths",
    }.get(key, key)
    with pytest.raises(ModelError, match=rf"(?s)config\.json.*{named}"):
        read_config(write(tmp_path, BERT, **{key: value}), ())


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"model_type": 3}', "\xff"])
def test_a_file_that_is_no_configuration_is_named(text: str, tmp_path: Path) -> None:
    """Half a download, an error page, a list."""
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError, match=r"config\.json cannot be used"):
        read_config(tmp_path, ())


def test_absent_labels_are_the_two_that_transformers_assumes(tmp_path: Path) -> None:
    """transformers leaves out what equals its default; num_labels is 2."""
    directory = write(tmp_path, BERT, id2label=..., label2id=...)
    assert read_config(directory, ()).head.labels == ("LABEL_0", "LABEL_1")


def test_absent_widths_are_the_full_width_only(tmp_path: Path) -> None:
    """A model nobody stretched was trained to run whole."""
    assert read_config(write(tmp_path, BERT, pliant_widths=...), ()).widths == (4,)


def test_depths_are_those_recorded_else_all_of_a_stretched_model_and_the_whole_of_any_other(
    tmp_path: Path,
) -> None:
    """A model that nobody made elastic answers wrong without some of its layers; models stretched before
    depths were recorded have trained widths."""
    for widths, depths, trained in (
        (..., ..., (2,)),
        ([4], ..., (2,)),
        ([2, 4], ..., (1, 2)),
        ([4], [1, 2], (1, 2)),
        ([2, 4], [2], (2,)),
    ):
        directory = write(tmp_path, BERT, pliant_widths=widths, pliant_depths=depths)
        assert read_config(directory, ()).trained_depths == trained


def test_without_an_architecture_the_weights_decide_the_head(tmp_path: Path) -> None:
    """Hand-made directories leave the class out."""
    directory = write(tmp_path, BERT, architectures=...)
    assert read_config(directory, {"classifier.weight"}).head.labels == ("negative", "positive")
    assert read_config(directory, ()).head.labels is None


@pytest.mark.parametrize("name", ["BertModel", "BertForMaskedLM", "BertForPreTraining"])
def test_pretrained_encoders_open_as_embedders(name: str, tmp_path: Path) -> None:
    """They are where `stretch` starts from."""
    assert read_config(write(tmp_path, BERT, architectures=[name]), ()).head == Head("mean", None, None)


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        (["BertModel"], None),
        (["BertForMaskedLM"], "BertForMaskedLM"),
        (["BertLMHeadModel"], "BertLMHeadModel"),
        (..., None),
    ],
)
def test_a_language_models_head_is_named(classes: Any, expected: str | None, tmp_path: Path) -> None:
    """Who opens one may expect words; a directory of sentence-transformers says what it is for."""
    directory = write(tmp_path, BERT, architectures=classes)
    assert ignored_head(directory) == expected
    (directory / "modules.json").write_text("[]")
    assert ignored_head(directory) is None


def test_xlm_roberta_is_a_roberta(tmp_path: Path) -> None:
    """The multilingual one differs in its vocabulary only."""
    spec = tiny_spec("roberta")
    directory = write(tmp_path, write_config(spec, "float32"), model_type="xlm-roberta")
    assert read_config(directory, ()) == spec


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode": "mean", "embedding_dimension": 32}, "mean"),
    ],
)
def test_both_spellings_of_pooling_are_read(pooling: dict[str, Any], expected: str, tmp_path: Path) -> None:
    """sentence-transformers changed from a flag per mode to one key."""
    write(tmp_path, BERT, architectures=["BertModel"])
    files = write_pooling(Head("mean", None, None, True), 32)
    (tmp_path / "modules.json").write_text(json.dumps(files["modules.json"]), encoding="utf-8")
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")
    head = read_config(tmp_path, ()).head
    assert (head.pooling, head.is_normalized) == (expected, True)


@pytest.mark.parametrize(
    ("kinds", "pooling", "message"),
    [
        (["Transformer", "Pooling", "Dense"], {"pooling_mode_mean_tokens": True}, "Dense"),
        (["Transformer", "WordWeights"], {}, "WordWeights"),
        (["Transformer", "Pooling"], {"pooling_mode_max_tokens": True}, "max"),
        (
            ["Transformer", "Pooling"],
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            r"cls \+ mean",
        ),
        (["Transformer", "Pooling"], {}, "nothing"),
    ],
)
def test_pipelines_we_do_not_run_are_refused(
    kinds: list[str], pooling: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """Leaving out a module gives a vector of the right size and the wrong direction."""
    write(tmp_path, BERT, architectures=["BertModel"])
    modules = [{"type": f"sentence_transformers.models.{k}", "path": f"{i}_{k}"} for i, k in enumerate(kinds)]
    (tmp_path / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")
    with pytest.raises(ModelError, match=message):
        read_config(tmp_path, ())
