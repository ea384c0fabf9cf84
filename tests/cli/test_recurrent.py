"""`run` and `eval` on recurrent models."""

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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "--text", "a", "--pair", "b"), "one text"),
        (("run", "--text", "a", "--compute", "int8"), "fp32"),
        (("run", "--text", "a", "--dilate-compute", "2"), "dilated"),
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
