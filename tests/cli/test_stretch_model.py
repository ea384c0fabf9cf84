"""`stretch`, from a tiny model to a tiny elastic one that runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.guards.forms import shape_of


def test_a_stretched_model_runs_under_a_target(
    as_json: Callable[..., Any], model: Path, tmp_path: Path
) -> None:
    """The verb's output is the other verbs' input."""
    pytest.importorskip("torch", reason="stretching needs torch")
    (tmp_path / "t.tsv").write_text("sentence\tlabel\n" + "a good film\t1\nthe plot is bad\t0\n" * 8)
    made = as_json(
        "stretch", model, "--train", tmp_path / "t.tsv", "--dev", tmp_path / "t.tsv", "-o", tmp_path / "out",
        "--labels", "no,yes", "--widths", "2,4", "--batch", "4", "--tune-epochs", "1", "--distil-epochs", "1",
        "--final-epochs", "0", "--max-tokens", "16", "--compact", "--plot", tmp_path / "grid.svg",
    )  # fmt: skip
    assert made["dev"]["widths"] == [2, 4]
    dev = {"widths": ["int"], "n_examples": "int", "accuracy": [["float"]]}
    assert shape_of(made) == {"out": "str", "teacher_accuracy": "float", "dev": dev}
    assert "accuracy on t.tsv" in (tmp_path / "grid.svg").read_text()
    reply = as_json("run", tmp_path / "out", "--latency", "5s", "--text", "a good film")
    assert reply["label"] in ("no", "yes")


@pytest.mark.parametrize(
    ("name", "reason"), [("grid.txt", "ends in .svg"), ("no/grid.svg", "does not exist")]
)
def test_a_picture_that_cannot_be_drawn_is_refused_before_training(
    cli: Callable[..., Any], model: Path, tmp_path: Path, name: str, reason: str
) -> None:
    """Hours of training must not end in a spelling mistake."""
    files = ("--train", tmp_path / "t.tsv", "--dev", tmp_path / "t.tsv", "-o", tmp_path / "out")
    result = cli("stretch", model, *files, "--plot", tmp_path / name)
    assert result.exit_code == 1
    assert reason in result.stderr
