"""`run`, `eval`, `plan`, `profile` and `bench` on recurrent models."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pliant.models.recurrent.recurrent_spec import RecurrentSpec
from tests.cli.conftest import Cli
from tests.recurrent_models import write_recurrent


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    return write_recurrent(tmp_path / "model", RecurrentSpec("lstm", 10, 6, 8, labels=("bad", "good")))


def test_run_answers_with_the_names_that_other_models_reply_with(
    as_json: Callable[..., Any], classifier: Path
) -> None:
    """A script that reads one kind of reply reads both."""
    reply = as_json("run", classifier, "--latency", "60s", "--text", "a good film")
    assert reply["label"] in ("bad", "good")
    assert 0.5 <= reply["score"] <= 1
    assert (reply["met"], reply["target_s"], reply["n_tokens"]) == (True, 60.0, 3)
    assert not reply["has_random_weights"]
    assert min(reply["seconds"], reply["resident_weight_bytes"], reply["peak_rss_bytes"]) > 0


def test_run_prints_three_lines_as_of_every_model(cli: Cli, classifier: Path) -> None:
    """The answer, its time, what it is worth; a target is no must."""
    answer, times, worth = cli("run", classifier, "--text", "a good film").stdout.splitlines()
    assert re.fullmatch(r"(bad|good) \(0\.\d{3}\)  <- a good film", answer)
    assert re.fullmatch(r"  [\d.]+ .?s; 3 words", times)
    assert re.fullmatch(r"  accuracy not measured; weights [\d.]+ KB", worth)
    late = cli("run", classifier, "--text", "a good film", "--latency", "1us").stdout
    assert "of 1 µs (MISSED); 3 words" in late
    assert cli("run", classifier, "--text", "film").stdout.splitlines()[1].endswith("; 1 word")


def test_run_shows_where_the_time_of_its_answer_went(cli: Cli, classifier: Path, tmp_path: Path) -> None:
    """As of every model: the kernel calls of that run as a table, and a trace that opens in a browser."""
    trace = tmp_path / "trace.json"
    asked = cli("run", classifier, "--text", "a good film", "--timeline", "--trace", trace)
    assert asked.exit_code == 0, asked.output
    assert "lstm" in asked.stdout
    assert "of 1 runs" in asked.stdout
    names = [event["name"] for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert names[0] == "recurrent"
    assert len(names) > 2


def test_random_weights_are_labelled_so(cli: Cli, as_json: Callable[..., Any]) -> None:
    """Nobody shall take such an answer for one."""
    asked = ("run", "random:cove-200", "--latency", "5s", "--text", "a good film")
    assert "random weights" in cli(*asked).stdout
    reply = as_json(*asked)
    assert reply["has_random_weights"]
    assert (reply["label"], len(reply["vector"])) == (None, 400)


def test_eval_counts_right_answers(as_json: Callable[..., Any], classifier: Path, tmp_path: Path) -> None:
    """The shipped model's card quotes it."""
    data = tmp_path / "data.tsv"
    data.write_text("sentence\tlabel\na good film\tgood\na good film\tbad\nnot good\tgood\nnot good\tbad\n")
    report = as_json("eval", classifier, data, "--latency", "60s")
    assert (report["accuracy"], report["n"], report["met_fraction"]) == (0.5, 4, 1.0)


def test_plan_profile_and_bench_take_it(
    cli: Cli, as_json: Callable[..., Any], classifier: Path, tmp_path: Path
) -> None:
    """What runs, where its time goes, and how long it takes are questions about any model."""
    assert "kernel calls" in cli("plan", classifier, "--length", "5").stdout
    profiled = cli("profile", classifier, "--lengths", "3,5", "--seconds", "0.1").stdout
    for said in ("length 3:", "length 5:", "fastest of", "lstm"):
        assert said in profiled
    assert as_json("profile", classifier, "--seconds", "0.1")["profile"]["steps"]
    (row,) = as_json("bench", classifier, "--runs", "3", "--length", "7")
    assert (row["runtime"], row["ratio"], row["difference"]) == ("pliant", 1.0, None)
    trace = tmp_path / "trace.json"
    assert (
        "fastest of 3 runs" in cli("bench", classifier, "--runs", "3", "--profile", "--trace", trace).stdout
    )
    assert json.loads(trace.read_text())["traceEvents"]
    refused = cli("bench", classifier, "--against", "onnxruntime")
    assert refused.exit_code == 1
    assert "onnxruntime cannot read it" in refused.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "--text", "a", "--pair", "b"), "one text"),
        (("run", "--text", "a", "--compute", "int8"), "no option --compute int8"),
        (("run", "--text", "a", "--dilate-io", "2"), "no option --dilate-io 2"),
        (("run", "--text", "a", "--preload", "1MB", "--no-adapt"), "no option --preload 1MB, --no-adapt"),
        (("run", "--text", "  "), "empty"),
    ],
)
def test_what_a_recurrent_model_cannot_do_is_said(
    cli: Cli, classifier: Path, words: tuple[str, ...], said: str
) -> None:
    """Options that other models take are refused, never ignored."""
    verb, *rest = words
    result = cli(verb, classifier, "--latency", "1s", *rest)
    assert result.exit_code != 0
    assert said in result.output
