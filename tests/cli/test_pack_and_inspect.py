"""`pack` and `inspect`."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.cli.conftest import Cli
from tests.models.onnx_models import parse


def test_a_packed_model_can_be_inspected_and_verified(
    cli: Cli, as_json: Callable[..., Any], model: Path, tmp_path: Path
) -> None:
    """The two verbs tell the same of the same store."""
    made = as_json("pack", model, "-o", tmp_path / "s", "--bits", "2,6", "--quantizer", "equal-population")
    assert made["bits"] == [2, 6]
    assert made["quantizer"] == "equal-population"
    seen = as_json("inspect", tmp_path / "s", "--verify")
    assert seen == made | {"verified": True}
    assert "files are unchanged" in cli("inspect", tmp_path / "s", "--verify").stdout


def test_a_store_of_some_bits_runs_and_one_of_a_bit_is_refused(
    cli: Cli, as_json: Callable[..., Any], model: Path, tmp_path: Path
) -> None:
    """What `pack --bits` wrote, `run` reads: it used to plan full fidelity, whatever was stored."""
    as_json("pack", model, "-o", tmp_path / "s", "--bits", "2,4")
    assert as_json("run", tmp_path / "s", "--text", "a good film")["bits"] == [[4] * 4] * 2
    assert as_json("plan", tmp_path / "s")["bits"] == [[4] * 4] * 2
    as_json("pack", model, "-o", tmp_path / "one", "--bits", "1")
    refused = cli("plan", tmp_path / "one")
    assert refused.exit_code == 1
    assert "--bits 2 or more" in refused.stderr


def test_a_flipped_bit_is_found_and_its_file_named(cli: Cli, model: Path, tmp_path: Path) -> None:
    """`inspect` alone reads no weights; --verify reads every byte."""
    cli("pack", model, "-o", tmp_path / "s")
    file = tmp_path / "s" / "layer-01.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert cli("inspect", tmp_path / "s").exit_code == 0
    result = cli("inspect", tmp_path / "s", "--verify")
    assert result.exit_code == 1
    assert "layer-01.safetensors" in result.stderr


def test_importance_is_kept_in_the_store(
    cli: Cli, as_json: Callable[..., Any], model: Path, tmp_path: Path
) -> None:
    """What was measured once orders shards for good; a table of another shape is refused before packing."""
    rows = [[0.4, 0.3, 0.2, 0.1], [1.0, 2.0, 3.0, 4.0]]
    (tmp_path / "i.json").write_text(json.dumps(rows))
    made = as_json("pack", model, "-o", tmp_path / "s", "--importance", tmp_path / "i.json")
    assert made["importance"] == rows
    (tmp_path / "i.json").write_text(json.dumps(rows[:1]))
    result = cli("pack", model, "-o", tmp_path / "t", "--importance", tmp_path / "i.json")
    assert result.exit_code == 1
    assert "2 rows of 4" in result.stderr
    assert not (tmp_path / "t").exists()


def test_a_store_is_replaced_only_when_asked(cli: Cli, model: Path, tmp_path: Path) -> None:
    """Packing twice by mistake must not cost a store that took importance hours to measure."""
    assert cli("pack", model, "-o", tmp_path / "s").exit_code == 0
    result = cli("pack", model, "-o", tmp_path / "s")
    assert result.exit_code == 1
    assert "exists" in result.stderr
    assert cli("pack", model, "-o", tmp_path / "s", "--overwrite").exit_code == 0


def test_bits_that_are_no_numbers_are_an_error(cli: Cli, model: Path, tmp_path: Path) -> None:
    """The message names the option, and nothing is written."""
    result = cli("pack", model, "-o", tmp_path / "s", "--bits", "two")
    assert result.exit_code == 1
    assert "--bits" in result.stderr
    assert not (tmp_path / "s").exists()


def test_importance_is_measured_on_labelled_examples(
    cli: Cli, as_json: Callable[..., Any], model: Path, tmp_path: Path
) -> None:
    """STI 5.2 needs nothing but a dev set; without the two fidelities it compares it is refused."""
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\na good film\t1\nthe plot is bad\t0\n")
    made = as_json("pack", model, "-o", tmp_path / "s", "--importance", tmp_path / "dev.tsv")
    assert [len(row) for row in made["importance"]] == [4, 4]
    assert len({x for row in made["importance"] for x in row}) > 1
    how = ("--importance", tmp_path / "dev.tsv", "--importance-method", "gradient")
    cheap = as_json("pack", model, "-o", tmp_path / "g", *how)["importance"]
    assert [len(row) for row in cheap] == [4, 4]
    assert cheap != made["importance"]
    words = ("pack", model, "-o", tmp_path / "t", "--importance", tmp_path / "dev.tsv", "--bits", "2,6")
    assert cli(*words).exit_code == 1
    assert not (tmp_path / "t").exists()


def test_accuracy_is_measured_on_labelled_examples_and_plans_choose_by_it(
    cli: Cli, as_json: Callable[..., Any], model: Path, tmp_path: Path
) -> None:
    """From held-out examples to the chosen submodel: what `plan` says comes from what `pack` measured."""
    (tmp_path / "held.tsv").write_text("sentence\tlabel\na good film\t1\nthe plot is bad\t0\n")
    made = as_json("pack", model, "-o", tmp_path / "s", "--accuracy", tmp_path / "held.tsv")
    assert made["accuracy"]["n_examples"] == 2
    places = {(e["n"], e["m"], e["bits"]) for e in made["accuracy"]["entries"]}
    assert places == {(n, m, b) for n in (1, 2) for m in (2, 4) for b in (2, 3, 4, 6, 32)}
    words = ("plan", tmp_path / "s", "--latency", "5s")
    chosen, largest = as_json(*words), as_json(*words, "--choose", "size")
    assert chosen["expected_accuracy"] >= largest["expected_accuracy"]
    assert (len(largest["layers"]), largest["width"]) == (2, 4)
    assert "% accurate" in cli(*words).stdout


@pytest.mark.parametrize("option", ["--accuracy", "--importance"])
def test_examples_that_cannot_be_read_leave_the_old_store(
    cli: Cli, model: Path, tmp_path: Path, option: str
) -> None:
    """They were found after the old store, with its measurements, had been replaced."""
    cli("pack", model, "-o", tmp_path / "s", "--bits", "2,32")
    before = (tmp_path / "s" / "manifest.json").read_bytes()
    (tmp_path / "dev.tsv").write_text(f"sentence\tlabel\na good film\t1\n{'bad ' * 40}\t0\n")
    result = cli("pack", model, "-o", tmp_path / "s", "--overwrite", option, tmp_path / "dev.tsv")
    assert result.exit_code == 1
    assert "line 3" in result.stderr
    assert (tmp_path / "s" / "manifest.json").read_bytes() == before
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\na good film\t1\n")
    words = (option, tmp_path / "dev.tsv", "--overwrite", "--bits", "5")
    result = cli("pack", model, "-o", tmp_path / "s", *words)
    assert result.exit_code == 1
    assert "in --bits" in result.stderr
    assert (tmp_path / "s" / "manifest.json").read_bytes() == before


def test_a_table_of_accuracy_may_be_given(
    cli: Cli, as_json: Callable[..., Any], model: Path, tmp_path: Path
) -> None:
    """Measuring takes minutes: what was measured once can be packed again, and another model's is refused."""
    entry = {"n": 2, "m": 4, "bits": 6, "accuracy": 0.75, "log_likelihood": -0.5}
    (tmp_path / "a.json").write_text(json.dumps({"n_examples": 9, "entries": [entry]}))
    made = as_json("pack", model, "-o", tmp_path / "s", "--accuracy", tmp_path / "a.json")
    assert made["accuracy"] == {"n_examples": 9, "entries": [entry], "folds": []}
    (tmp_path / "a.json").write_text(json.dumps({"n_examples": 9, "entries": [entry | {"n": 3}]}))
    result = cli("pack", model, "-o", tmp_path / "t", "--accuracy", tmp_path / "a.json")
    assert result.exit_code == 1
    assert "3x4 at 6 bits does not fit" in result.stderr
    assert not (tmp_path / "t").exists()


def test_measurements_of_the_model_directory_are_kept(
    as_json: Callable[..., Any], model: Path, tmp_path: Path
) -> None:
    """A packed model must choose as the model does; accuracy is that of the codes it was measured at."""
    source = shutil.copytree(model, tmp_path / "model")
    entry = {"n": 2, "m": 4, "bits": 6, "accuracy": 0.75, "log_likelihood": -0.5}
    rows = [[0.4, 0.3, 0.2, 0.1], [1.0, 2.0, 3.0, 4.0]]
    (source / "accuracy.json").write_text(json.dumps({"n_examples": 9, "entries": [entry]}))
    (source / "importance.json").write_text(json.dumps(rows))
    made = as_json("pack", source, "-o", tmp_path / "s")
    assert made["accuracy"]["entries"] == [entry]
    assert made["importance"] == rows
    other = as_json("pack", source, "-o", tmp_path / "t", "--quantizer", "equal-population")
    assert other["accuracy"] is None
    assert other["importance"] == rows


def test_a_model_is_inspected_under_every_name_it_runs_by(
    cli: Cli, as_json: Callable[..., Any], model: Path
) -> None:
    """A directory, and the store that it was packed into; `inspect sst2` failed."""
    seen = as_json("inspect", model, "--verify")
    assert (seen["n_layers"], seen["n_slices"], seen["verified"]) == (2, 4, True)
    assert as_json("inspect", seen["store"])["identity"] == seen["identity"]
    assert "relative to the weights' variance" in cli("inspect", model).stdout
    words = as_json("inspect", "imdb-lstm")
    assert (words["kind"], words["labels"]) == ("recurrent, lstm", ["negative", "positive"])
    result = cli("inspect", "no-such-model")
    assert result.exit_code == 1
    assert "no-such-model" in result.stderr


def test_onnx_files_and_compiled_ones_are_inspected(
    cli: Cli, as_json: Callable[..., Any], tmp_path: Path
) -> None:
    """Inputs and outputs are what somebody needs who got a file and no word with it."""
    product = "g (float[n,3] x, float[3,2] w) => (float[n,2] y) { y = MatMul(x, w) }"
    onnx.save(parse(product), tmp_path / "m.onnx")
    seen = as_json("inspect", tmp_path / "m.onnx")
    assert (list(seen["inputs"]), list(seen["outputs"])) == (["x", "w"], ["y"])
    assert seen["operators"] == {"MatMul": 1}
    assert "n" in seen["inputs"]["x"]
    cli("compile", tmp_path / "m.onnx", "--dim", "n=4", "-o", tmp_path / "made")
    made = as_json("inspect", tmp_path / "made")
    assert list(made["outputs"]) == ["y"]
    assert "kind: compiled" in cli("inspect", tmp_path / "made", "--check").stdout
