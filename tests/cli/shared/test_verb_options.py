"""`--compute auto` of `run`, `plan` and `eval`: by measured accuracy, or else by the command's own inputs."""

import json
from collections.abc import Callable
from itertools import product as pairs_of
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import pliant
from pliant.cli.app import app
from pliant.cli.shared.verb_options import SessionArguments
from pliant.plan.precision import PrecisionChoice, PrecisionForm
from tests.cli.conftest import Cli
from tests.graded_store import graded_store as graded_store
from tests.rows import FORMS

TSV = "sentence\tlabel\na good film\t1\nthe plot is bad\t0\nnot a good story\t0\n"
AUTO = ("--compute", "auto", "--threads", "1")
NO_EXAMPLES = "name the arithmetic with --compute fp32, bf16 or int8"


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX model of one matrix, large enough for codes."""
    path = tmp_path_factory.mktemp("onnx") / "product.onnx"
    weights = (np.random.default_rng(0).standard_normal((64, 96)) / 8).astype(np.float32)
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", n])
        for name, n in (("x", 64), ("y", 96))
    )
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "product", [x], [y], [numpy_helper.from_array(weights, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def model(tiny_model: Callable[..., Path]) -> Path:
    """That of the graded store, without its accuracy."""
    return tiny_model("bert", n_layers=4, widths=(2, 4))


@pytest.fixture(scope="module")
def profiled(cache: Path, graded_store: Path) -> None:
    """The device is measured in each arithmetic beforehand, in little time."""
    for compute in FORMS:
        words = ["profile", str(graded_store), "--compute", compute, "--threads", "1", "--seconds", "0.1"]
        done = CliRunner().invoke(app, [*words, "--lengths", "8,16"], env={"PLIANT_CACHE": str(cache)})
        assert done.exit_code == 0, done.output


def test_run_compares_the_answers_to_its_arrays(
    cli: Cli, as_json: Callable[..., Any], product: Path, tmp_path: Path
) -> None:
    """It was offered and always failed, with the name of an argument of Python."""
    x = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    words = ("run", product, "--input", tmp_path / "x.npz", *AUTO, "--weights", "6")
    reply = as_json(*words, "--tolerance", "0.5")
    assert [form["compute"] for form in reply["precision"]["forms"]] == ["fp32", "bf16", "int8"]
    chosen = reply["precision"]["chosen"]["compute"]
    with pliant.open(product, threads=1, weights=6, compute=chosen) as session:
        np.testing.assert_array_equal(np.float32(reply["outputs"]["y"]), session.run({"x": x})["y"])
    shown = cli(*words, "--tolerance", "0").stdout
    assert shown.startswith("compute auto: fp32 from 6 bits is the fastest form within a tolerance of 0 (")
    assert "rms of the answer, 1 example)" in shown
    assert "precision" not in as_json(*words[:4], "--threads", "1")


def test_eval_compares_the_answers_to_its_first_examples(
    cli: Cli, as_json: Callable[..., Any], product: Path, tmp_path: Path
) -> None:
    """Few of them, as each is answered in each arithmetic; they are those that --limit leaves."""
    x = np.random.default_rng(1).standard_normal((6, 64)).astype(np.float32)
    with pliant.open(product, threads=1) as session:
        labels = session.run({"x": x})["y"].argmax(1)
    np.savez(tmp_path / "dev.npz", x=x, labels=labels)
    words = ("eval", product, tmp_path / "dev.npz", *AUTO, "--tolerance", "0.5")
    assert as_json(*words)["precision"]["measure"].endswith(", 4 examples")
    shown = cli(*words, "--limit", "2").stdout
    assert "of 2 examples\ncompute auto: " in shown
    assert "rms of the answer, 2 examples)" in shown


@pytest.mark.usefixtures("profiled")
def test_a_text_encoder_without_measured_accuracy_compares_texts(
    cli: Cli, as_json: Callable[..., Any], model: Path, cache: Path, tmp_path: Path
) -> None:
    """Of the command line, of a file and of a pipe, which is read once; long ones as they are answered."""
    shown = cli("run", model, "--text", "a good film", *AUTO, "--tolerance", "0.5").stdout
    assert shown.startswith("compute auto: ")
    assert "1 example)" in shown
    pair = as_json("run", model, "--text", "a good film", "--pair", "the plot", *AUTO, "--tolerance", "0")
    assert pair["precision"]["chosen"]["compute"] == "fp32"
    words = ["eval", str(model), "-", *AUTO, "--tolerance", "0", "--json"]
    done = CliRunner().invoke(app, words, input=TSV, env={"PLIANT_CACHE": str(cache)})
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["n"], report["precision"]["measure"].endswith(", 3 examples")) == (3, True)
    (tmp_path / "texts").write_text("a good film\n" + "good " * 60 + "\n")
    long = ("run", model, "--input", tmp_path / "texts", *AUTO, "--tolerance", "0")
    assert "texts, line 2: " in cli(*long).stderr
    assert "2 examples)" in cli(*long, "--truncate").stdout


@pytest.mark.usefixtures("profiled")
@pytest.mark.parametrize("words", [("run", "--text", "a good film"), ("plan",)], ids=["run", "plan"])
def test_measured_accuracy_precedes_the_inputs(cli: Cli, graded_store: Path, words: tuple[str, ...]) -> None:
    """It is that of hundreds of examples."""
    verb, *rest = words
    shown = cli(verb, graded_store, *rest, *AUTO, "--tolerance", "1").stdout
    assert "by the store's grid)" in shown


def test_a_command_without_inputs_names_its_own_options(cli: Cli, product: Path, model: Path) -> None:
    """Nothing is measured on random inputs, whose errors say little."""
    for source, verb in pairs_of((product, model), ("plan", "node")):
        result = cli(verb, source, *AUTO)
        assert (result.exit_code, result.stdout) == (1, "")
        assert NO_EXAMPLES in result.stderr
        assert "examples=" not in result.stderr


def test_other_processes_run_what_was_chosen() -> None:
    """`eval --on ray`: each actor would choose by its own times, and be given no examples."""
    given = SessionArguments("model", compute="auto", weights="auto")
    form = PrecisionForm("int8", 6, 0.001, 0.01)
    chosen = given.with_choice(PrecisionChoice(form, (form,), 0.01, "error"))
    assert (chosen.compute, chosen.weights) == ("int8", "6")
    planned = PrecisionForm("bf16", error=0.001, seconds=0.01)
    chosen = SessionArguments("model", compute="auto").with_choice(
        PrecisionChoice(planned, (planned,), 0.01, "error")
    )
    assert (chosen.compute, chosen.weights) == ("bf16", None)
    assert given.with_choice(None) is given
