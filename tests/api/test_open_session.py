"""`pliant.open` takes any source and gives the session of its kind."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model
from typer.testing import CliRunner

import pliant
from pliant.api.resolve import resolve
from pliant.cli.app import app
from pliant.errors import InputError, ModelError
from pliant.models.recurrent.recurrent_spec import RecurrentSpec
from tests.recurrent_models import write_recurrent

RELU = parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }')
FED = {"x": np.array([-1, 2], np.float32)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def test_onnx_models_answer_arrays_from_a_path_bytes_or_a_proto(tmp_path: Path, cache: Path) -> None:
    """The same as `pliant.compile` gives."""
    onnx.save(RELU, tmp_path / "relu.onnx")
    for source in (tmp_path / "relu.onnx", RELU.SerializeToString(), RELU):
        with pliant.open(source, threads=1, cache=cache) as session:
            assert session.run(FED)["y"].tolist() == [0.0, 2.0]


def test_what_was_compiled_is_loaded(tmp_path: Path, cache: Path) -> None:
    """The same as `pliant.load` gives."""
    onnx.save(RELU, tmp_path / "relu.onnx")
    words = ["compile", str(tmp_path / "relu.onnx"), "-o", str(tmp_path / "made"), "--threads", "1"]
    assert CliRunner().invoke(app, words, env={"PLIANT_CACHE": str(cache)}).exit_code == 0
    with pliant.open(tmp_path / "made", threads=1) as session:
        assert session.run(FED)["y"].tolist() == [0.0, 2.0]


def test_a_recurrent_model_is_opened_by_its_directory(tmp_path: Path, cache: Path) -> None:
    """One function for all that reads text; nodes know the session by the directory's name and content."""
    directory = write_recurrent(tmp_path / "m", RecurrentSpec("lstm", 10, 6, 8, labels=("bad", "good")))
    with pliant.open(directory, threads=1, cache=cache) as model:
        assert model("a good film").label in ("bad", "good")
        assert (model.name, model.identity) == ("m", resolve(directory).identity)
    with pytest.raises(InputError, match="closed"):
        model("a good film")


def test_without_a_latency_a_text_encoder_answers_with_all_it_has(
    tiny_model: Callable[..., Path], cache: Path
) -> None:
    """Every layer, head and bit: nobody who named no target asked for less."""
    with pliant.open(tiny_model("bert", widths=(2, 4)), threads=1, cache=cache) as session:
        reply = session("a good film")
        assert (reply.target_s, reply.met) == (None, None)
        assert reply.details.submodel == (2, 4)
        assert {bits for row in reply.details.bits for bits in row} == {32}


def test_a_masked_language_model_opens_with_a_warning(
    tiny_model: Callable[..., Path], tmp_path: Path, cache: Path
) -> None:
    """It answers with a vector, where its user may expect words."""
    directory = Path(copytree(tiny_model("bert", is_classifier=False), tmp_path / "lm"))
    config = json.loads((directory / "config.json").read_text()) | {"architectures": ["BertForMaskedLM"]}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "modules.json").unlink(missing_ok=True)
    with (
        pytest.warns(UserWarning, match="BertForMaskedLM, whose head pliant does not run"),
        pliant.open(directory, threads=1, cache=cache) as session,
    ):
        assert session("a good film").vector is not None


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        (
            "imdb-lstm",
            {"latency": "20ms", "preload": "1MB"},
            r"a recurrent model, which has no option latency, preload.*session\(text, latency=",
        ),
        (RELU, {"depths": "any"}, r"an ONNX model, which has no option depths.*pliant\.compile has further"),
        ("imdb-lstm", {"weights": "auto"}, "a recurrent model, which has no option weights"),
        ("sst2", {"weights": 4}, "a text encoder, which has no option weights: the plan chooses"),
        (
            "random:gru-300",
            {"adapt": False},
            "no option adapt: its options are threads, cache, dilation",
        ),
    ],
)
def test_options_of_another_kind_are_refused_by_name(
    source: object, options: dict[str, object], said: str
) -> None:
    """Nothing is ignored: who gives a target to a model that has none would believe it kept."""
    with pytest.raises(InputError, match=said):
        pliant.open(source, **options)


@pytest.mark.parametrize("options", [{"examples": []}, {"upstreams": []}, {"upstreams": set()}])
def test_an_empty_list_is_no_option_given(options: dict[str, Any], cache: Path) -> None:
    """Programs pass on the lists that they have; it was refused as an option that the model lacks."""
    with pliant.open("imdb-lstm", threads=1, cache=cache, **options) as session:
        assert session("a good film").label is not None


def test_a_source_that_is_none_is_refused_beside_upstreams() -> None:
    """It was taken for an option at its default, and a KeyError said so."""
    with pytest.raises(InputError, match="a model is a path, bytes or a ModelProto, not NoneType"):
        pliant.open(None, upstreams=["http://127.0.0.1:1"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"compute": "fp16"}, "compute is 'fp16'; give one of fp32, bf16, int8, auto"),
        ({"examples": ["a"]}, "examples of a text encoder are for compute='auto', not for compute='fp32'"),
        ({"compute": "auto", "examples": "a"}, "examples of a text encoder must be a list of texts"),
        ({"compute": "auto", "examples": {"a": 1}}, "examples of a text encoder must be a list of texts"),
        ({"compute": "auto", "examples": [("a", 1)]}, r"or of pairs as \(text, pair\)"),
        (
            {"compute": "auto", "examples": ["a"], "tolerance": -1.0},
            "a tolerance of -1.0 is not an error bound",
        ),
        ({"compute": "auto"}, r"has no measured accuracy .*: give examples=\[text, ...\]"),
        ({"depths": "some"}, "depths is 'some'; give one of trained, any"),
        ({"baseline": "stdpl"}, "baseline is 'stdpl'; give one of load-exec, stdpl-2"),
        ({"quantizer": "k-means"}, "quantizer is 'k-means'; give one of lloyd, equal-population"),
        ({"dilation": 2.0}, "dilation is of type float; give a Dilation"),
        ({"plan": "paper"}, "plan is of type str; give a PlanOptions"),
        ({"profile": "fast"}, "profile is of type str; give a DeviceProfile"),
    ],
)
def test_values_that_a_text_encoder_does_not_have_are_refused(
    tiny_model: Callable[..., Path], cache: Path, options: dict[str, Any], said: str
) -> None:
    """Misspelt depths were those trained, without a word; the others failed in the depths of a package."""
    with pytest.raises(InputError, match=said):
        pliant.open(tiny_model("bert"), cache=cache, **options)


def test_what_only_a_cluster_runs_is_refused() -> None:
    """The error leads there."""
    with pytest.raises(ModelError, match=r"pliant\.Cluster\(...\)\.open, .*pliant cluster run"):
        pliant.open("random:vit-base")
