"""`run`, `eval`, `plan`, `profile` and `bench` on models that answer arrays: ONNX files and compiled ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from pliant.cli.app import app
from tests.cli.conftest import Cli
from tests.models.onnx_models import parse
from tests.tiny import VOCAB, tiny_spec, write_model

SOFTMAX = parse("g (float[batch,3] x) => (float[batch,3] y) { y = Softmax(x) }")
X = np.array([[1.0, 2.0, 4.0]], np.float32)
Y = np.exp(X) / np.exp(X).sum()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "softmax.onnx"
    onnx.save(SOFTMAX, path)
    return path


@pytest.fixture(scope="module")
def compiled(model: Path, cache: Path) -> Path:
    directory = model.parent / "compiled"
    words = ["compile", str(model), "--dim", "batch=1", "-o", str(directory), "--threads", "1"]
    assert CliRunner().invoke(app, words, env={"PLIANT_CACHE": str(cache)}).exit_code == 0
    return directory


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX text classifier with tokenizer and labels beside it: a weight for each word, summed by mask."""
    folder = write_model(tmp_path_factory.mktemp("text") / "bert", tiny_spec("bert"))
    weights = np.random.default_rng(0).standard_normal((VOCAB, 2)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["w", "input_ids"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["kept"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["kept", "last"], ["mask"]),
        helper.make_node("Mul", ["rows", "mask"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "middle"], ["logits"], keepdims=0),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
        for name in ("input_ids", "attention_mask")
    ]
    graph = helper.make_graph(
        nodes,
        "reader",
        inputs,
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2])],
        [
            numpy_helper.from_array(weights, "w"),
            numpy_helper.from_array(np.int64([2]), "last"),
            numpy_helper.from_array(np.int64([1]), "middle"),
        ],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.parametrize("kind", ["npz", "json"])
@pytest.mark.parametrize("source", ["model", "compiled"])
def test_run_answers_the_arrays_of_a_file(
    as_json: Callable[..., Any], source: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """By name, as onnxruntime's users have them; with the names of other models' replies."""
    file = tmp_path / f"feeds.{kind}"
    if kind == "npz":
        np.savez(file, x=X)
    else:
        file.write_text(json.dumps({"x": X.tolist()}))
    reply = as_json("run", request.getfixturevalue(source), "--input", file, "--latency", "60s")
    np.testing.assert_allclose(reply["outputs"]["y"], Y, rtol=1e-5)
    assert (reply["label"], reply["met"], reply["target_s"]) == (None, True, 60.0)
    assert min(reply["seconds"], reply["resident_weight_bytes"] + 1, reply["peak_rss_bytes"]) > 0


def test_run_prints_three_lines(cli: Cli, model: Path, tmp_path: Path) -> None:
    """The outputs, their time, what they are worth."""
    np.savez(tmp_path / "feeds.npz", x=X)
    result = cli("run", model, "--input", tmp_path / "feeds.npz")
    assert result.exit_code == 0, result.output
    answer, times, worth = result.stdout.splitlines()
    assert answer == "y float32[1,3]: [0.0420, 0.1142, 0.8438]  <- x"
    assert times.endswith("s; length 1")
    assert worth.startswith("  accuracy not measured; weights ")


@pytest.mark.parametrize("source", ["model", "compiled"])
def test_run_shows_where_the_time_of_its_answer_went(
    cli: Cli, source: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """As of every model: the kernel calls of that run as a table, and a trace that opens in a browser."""
    np.savez(tmp_path / "feeds.npz", x=X)
    trace = tmp_path / "trace.json"
    words = ("--input", tmp_path / "feeds.npz", "--timeline", "--trace", trace)
    result = cli("run", request.getfixturevalue(source), *words)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("y float32[1,3]: [0.0420, 0.1142, 0.8438]  <- x\n")
    assert "of 1 runs, 1 steps" in result.stdout
    names = [event["name"] for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert names[0] == "graph"
    assert len(names) == 2


def test_a_dash_reads_the_arrays_of_a_pipe(model: Path, cache: Path) -> None:
    """Another program writes them."""
    words = ["run", str(model), "--input", "-", "--json"]
    result = CliRunner().invoke(
        app, words, input=json.dumps({"x": X.tolist()}), env={"PLIANT_CACHE": str(cache)}
    )
    np.testing.assert_allclose(json.loads(result.stdout)["outputs"]["y"], Y, rtol=1e-5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--text", "a good film"), "reads arrays, x: float32[batch,3]: give them as --input FILE.npz"),
        (("--input", "gone.npz"), "gone.npz cannot be read"),
        (("--input", "feeds.json"), "'x' is missing; there is no input 'z'"),
        (("--input", "feeds.json", "--preload", "1MB"), "an ONNX model, which has no option --preload"),
        (("--input", "feeds.json", "--truncate"), "feeds.json holds arrays, but --truncate is for texts"),
    ],
)
def test_what_cannot_be_fed_is_said(
    cli: Cli,
    model: Path,
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One message, with what to give instead."""
    monkeypatch.chdir(tmp_path)
    Path("feeds.json").write_text('{"z": [1]}')
    result = cli("run", model, *words)
    assert (result.exit_code, result.stdout) == (1, "")
    assert said in result.stderr


def test_text_is_read_where_a_tokenizer_lies_beside_the_file(
    cli: Cli, as_json: Callable[..., Any], reader: Path, tmp_path: Path
) -> None:
    """As an exporter leaves it: the label is that of config.json, and a TSV is scored."""
    reply = as_json("run", reader, "--text", "a good film")
    assert reply["label"] in ("negative", "positive")
    best = int(np.argmax(reply["outputs"]["logits"]))
    assert reply["label"] == ("negative", "positive")[best]
    assert reply["score"] == pytest.approx(float(_softmax(reply["outputs"]["logits"][0])[best]))
    other = as_json("run", reader, "--text", "the plot is bad")
    (tmp_path / "dev.tsv").write_text(
        f"sentence\tlabel\na good film\t{reply['label']}\nthe plot is bad\t{other['label']}\n"
        f"a good film\t{'negative' if best else 'positive'}\n"
    )
    report = as_json("eval", reader, tmp_path / "dev.tsv", "--latency", "60s")
    assert (report["accuracy"], report["n"], report["met_fraction"]) == (pytest.approx(2 / 3), 3, 1.0)
    assert "accuracy 66.67 %" in cli("eval", reader, tmp_path / "dev.tsv").stdout


def test_texts_choose_the_arithmetic_of_an_onnx_model(cli: Cli, reader: Path, tmp_path: Path) -> None:
    """`--compute auto` compares answers to them, as the model's feeds."""
    shown = cli("run", reader, "--text", "a good film", "--compute", "auto").stdout
    assert shown.startswith("compute auto: fp32 is the fastest form")
    assert "rms of the answer, 1 example)" in shown
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\na good film\t1\nthe plot is bad\t0\n")
    assert (
        "rms of the answer, 2 examples)"
        in cli("eval", reader, tmp_path / "dev.tsv", "--compute", "auto").stdout
    )


def _softmax(logits: list[float]) -> np.ndarray:
    shares = np.exp(np.array(logits))
    return np.asarray(shares / shares.sum())


def test_eval_scores_the_rows_of_an_npz(
    cli: Cli, as_json: Callable[..., Any], model: Path, compiled: Path, tmp_path: Path
) -> None:
    """A classifier of images, or of anything: the largest output is its answer."""
    rows = np.eye(3, dtype=np.float32)[[0, 1, 2, 1]]
    np.savez(tmp_path / "dev.npz", x=rows, labels=np.array([0, 1, 2, 0]))
    for one in (model, compiled):
        report = as_json("eval", one, tmp_path / "dev.npz")
        assert (report["accuracy"], report["n"], report["target_s"]) == (0.75, 4, None)
    assert as_json("eval", model, tmp_path / "dev.npz", "--limit", "3")["accuracy"] == 1.0
    np.savez(tmp_path / "few.npz", x=rows)
    uncut = cli("eval", model, tmp_path / "dev.npz", "--truncate")
    assert (uncut.exit_code, uncut.stdout) == (1, "")
    assert "--truncate is for texts" in uncut.stderr
    refused = cli("eval", model, tmp_path / "few.npz")
    assert refused.exit_code == 1
    assert "needs 'labels'" in refused.stderr


def test_plan_profile_and_bench_take_them(
    cli: Cli, as_json: Callable[..., Any], model: Path, compiled: Path
) -> None:
    """What runs, where its time goes, and how long it takes are questions about any model."""
    for one in (model, compiled):
        assert "kernel calls" in cli("plan", one).stdout
        assert as_json("plan", one)["images"]
        profiled = as_json("profile", one, "--seconds", "0.1", "--lengths", "1")
        assert (profiled["length"], len(profiled["profile"]["steps"])) == (1, 1)
        (row,) = as_json(
            "bench", one, "--runs", "3", "--against", "", *(("--dim", "batch=1") if one is model else ())
        )
        assert row["runtime"] == "pliant"
