"""`profile`, `plan`, `run`, `eval` and `demo` on a tiny model."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pliant.cli.app import app
from tests.cli.conftest import Cli

TSV = "sentence\tlabel\na good film\t1\nthe plot is bad\t0\nnot a good story\t0\n"


def test_a_profile_is_measured_and_then_found(cli: Cli, as_json: Callable[..., Any], model: Path) -> None:
    """`profile` measures anew each time; what it keeps is what `plan` reads."""
    made = as_json("profile", model, "--seconds", "0.5")
    assert {row["width"] for row in made["layers"]} == {2, 4}
    assert [r["bits"] for r in made["reads"]] == [1, 2, 3, 4, 5, 6, 32]
    assert "one layer" in cli("profile", model, "--seconds", "0.5", "--lengths", "8,24").stdout


def test_run_answers_with_the_fields_machines_rely_on(as_json: Callable[..., Any], model: Path) -> None:
    """The names are promised in design.md."""
    reply = as_json("run", model, "--latency", "60s", "--text", "a good film")
    assert reply["label"] in ("negative", "positive")
    assert reply["met"] is True
    assert reply["within_reach"] is True
    assert reply["target_s"] == 60.0
    assert reply["submodel"] == [2, 4]
    assert reply["bits"] == [[32] * 4] * 2
    assert reply["score"] == pytest.approx(max(reply["scores"]))
    assert min(reply["resident_weight_bytes"], reply["peak_rss_bytes"], reply["seconds"]) > 0


def test_run_prints_three_lines_a_text(cli: Cli, model: Path) -> None:
    """The answer, its time against the target, what ran and how often it is right: what a reader asks."""
    result = cli("run", model, "--latency", "60s", "--text", "a good film")
    assert result.exit_code == 0, result.output
    answer, times, ran = result.stdout.splitlines()
    assert re.fullmatch(r"(negative|positive) \(0\.\d{3}\)  <- a good film", answer)
    assert re.fullmatch(r"  [\d.]+ .?s of 60 s \(met\), [\d.]+ .?s predicted; 5 tokens", times)
    assert ran == "  accuracy not measured; 2x4, bits by layer 32 | 32"


def test_run_prints_the_steps_where_that_is_asked_for_and_a_trace(
    cli: Cli, model: Path, tmp_path: Path
) -> None:
    """One glance must tell where the time went; the trace opens in a browser."""
    trace = tmp_path / "t.json"
    result = cli("run", model, "--latency", "60s", "--text", "a good film", "--timeline", "--trace", trace)
    assert result.exit_code == 0, result.output
    for said in ("predicted beside measured", "io |", "weights in memory", "32 32 32 32 | 32 32 32 32"):
        assert said in result.stdout
    assert {e["args"]["name"] for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "M"} >= {
        "predicted",
        "measured",
    }


def test_the_io_reserve_is_an_option_of_every_verb_that_plans(
    cli: Cli, as_json: Callable[..., Any], model: Path, tmp_path: Path
) -> None:
    """Without it the anytime promise depended on an option of the Python API alone."""
    (tmp_path / "dev.tsv").write_text(TSV)
    shared = ("--latency", "60s", "--io-reserve", "3", "--no-adapt")
    assert as_json("plan", model, *shared)["meets_target"] is True
    assert as_json("run", model, *shared, "--text", "a good film")["submodel"] == [2, 4]
    assert as_json("eval", model, tmp_path / "dev.tsv", *shared)["within_reach_fraction"] == 1.0
    refused = cli("plan", model, "--latency", "60s", "--io-reserve", "0.5")
    assert refused.exit_code != 0
    assert "io-reserve" in refused.output


def test_the_nth_answer_is_that_of_line_n(cli: Cli, model: Path, tmp_path: Path) -> None:
    """Answers are pasted beside their texts: only a line feed ends a line; empty lines may end the file."""
    (tmp_path / "texts").write_text("a good\u2028film\r\nthe plot\x0cis bad\nbut the actor was good\n\n \n")
    result = cli("run", model, "--latency", "60s", "--input", tmp_path / "texts", "--json")
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [a["n_tokens"] for a in answers] == [5, 6, 7]
    assert not any(a["truncated"] for a in answers)


def test_texts_of_the_command_line_are_answered_in_order(cli: Cli, model: Path) -> None:
    """All of them: the last one alone was answered, without a word."""
    texts = ("a good film", "bad", "the plot is bad")
    shown = cli("run", model, *(word for text in texts for word in ("--text", text))).stdout
    assert re.findall(r"<- (.*)", shown) == [*texts]
    refused = cli("run", model, "--text", "a", "--text", "b", "--pair", "c")
    assert refused.exit_code == 1
    assert "one of them with --pair" in refused.stderr


def test_a_dash_reads_standard_input(model: Path, cache: Path) -> None:
    """A pipe needs no file; the answers are those of a file, and a bad line is named by its number."""
    shared = ("--latency", "60s", "--json")

    def piped(verb: str, name: str, text: str) -> Result:
        words = [verb, str(model), *(["--input"] if verb == "run" else []), name, *shared]
        return CliRunner().invoke(app, words, input=text, env={"PLIANT_CACHE": str(cache)})

    answers = piped("run", "-", "a good film\nthe plot is bad\n").stdout.splitlines()
    assert [json.loads(line)["n_tokens"] for line in answers] == [5, 6]
    assert "standard input, line 1: the line is empty" in piped("run", "-", "\na good film\n").stderr
    assert "standard input has no text" in piped("run", "-", "").stderr
    assert json.loads(piped("eval", "-", TSV).stdout)["n"] == 3


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("a good film\n\nthe plot\n", "line 2: the line is empty"),
        ("a good film\n" + "good " * 23 + "\n", "line 2: the text is 25 tokens long"),
    ],
)
def test_a_line_that_cannot_be_answered_is_named_before_any_is(
    cli: Cli, model: Path, tmp_path: Path, lines: str, said: str
) -> None:
    """A run of an hour must not end at a line without a number, nor shift answers by dropping one."""
    (tmp_path / "texts").write_text(lines)
    result = cli("run", model, "--latency", "60s", "--input", tmp_path / "texts", "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"texts, {said}" in " ".join(result.stderr.split())
    rows = "".join(f"{line}\t1\n" if line else "\n" for line in lines.splitlines())
    (tmp_path / "dev.tsv").write_text(f"sentence\tlabel\n{rows}")
    result = cli("eval", model, tmp_path / "dev.tsv", "--latency", "60s")
    assert result.exit_code == 1
    assert f"dev.tsv, {said.replace('line 2', 'line 3')}" in " ".join(result.stderr.split())


def test_a_line_too_long_is_cut_where_that_is_asked_for(
    cli: Cli, as_json: Callable[..., Any], model: Path, tmp_path: Path
) -> None:
    """What was cut is said, and the answer is that of the beginning."""
    (tmp_path / "texts").write_text("a good film\n" + "good " * 60 + "\n")
    words = ("run", model, "--latency", "60s", "--input", tmp_path / "texts")
    assert "--truncate shortens it" in cli(*words).stderr
    answers = [json.loads(line) for line in cli(*words, "--truncate", "--json").stdout.splitlines()]
    assert [(a["truncated"], a["n_tokens"]) for a in answers] == [(False, 5), (True, 24)]
    assert "24 tokens, truncated to the model's limit" in cli(*words, "--truncate").stdout
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\na good film\t1\n" + "good " * 60 + "\t1\n")
    seen = as_json("eval", model, tmp_path / "dev.tsv", "--latency", "60s", "--truncate")
    assert (seen["n"], seen["n_truncated"]) == (2, 1)


def test_the_smallest_preload_and_target_are_read_in_human_units(
    as_json: Callable[..., Any], model: Path
) -> None:
    """200KB and 5s, not 200000 and 5.0; a buffer that holds everything leaves nothing to read."""
    made = as_json("plan", model, "--latency", "5s", "--preload", "10MB")
    assert {k: v for k, v in made["budget"].items() if v is not None} == {
        "target_s": 5.0,
        "preload_bytes": 10_000_000,
    }
    assert not any(load["base"] or load["refinements"] for load in made["loads"])


def test_plan_prints_a_page_with_bits_budgets_timeline_memory_and_why(
    cli: Cli, model: Path, tmp_path: Path
) -> None:
    """What the verb is for; `print(model.plan)` gives the same page, and --plot draws it."""
    pytest.importorskip("matplotlib", reason="drawing needs matplotlib")
    result = cli("plan", model, "--latency", "5s", "--explain", "--plot", tmp_path / "p.svg")
    assert result.exit_code == 0, result.output
    for word in ("AIB", "io |", "memory:", "every shard runs at full fidelity", "segment 0"):
        assert word in result.stdout
    assert "Plan(" not in result.stdout
    assert "<svg" in (tmp_path / "p.svg").read_text()


def test_without_a_target_all_of_the_model_answers(
    cli: Cli, as_json: Callable[..., Any], model: Path, tmp_path: Path
) -> None:
    """As `pliant.open` does without `latency`: nothing is met or missed that nobody asked for."""
    reply = as_json("run", model, "--text", "a good film")
    assert (reply["target_s"], reply["met"], reply["bits"]) == (None, None, [[32] * 4] * 2)
    assert " of " not in cli("run", model, "--text", "a good film").stdout.splitlines()[1]
    (tmp_path / "dev.tsv").write_text(TSV)
    seen = as_json("eval", model, tmp_path / "dev.tsv")
    assert (seen["target_s"], seen["met_fraction"]) == (None, None)


def test_a_text_encoder_is_timed_with_its_steps(cli: Cli, as_json: Callable[..., Any], model: Path) -> None:
    """`bench` compares targets and buffers as it compares runtimes."""
    shared = ("--latency", "60s", "--preload", "10MB", "--length", "8", "--runs", "3")
    assert [row["runtime"] for row in as_json("bench", model, *shared)] == ["pliant"]
    assert "predicted beside measured" in cli("bench", model, *shared, "--profile").stdout
    refused = cli("bench", model, "--against", "torch")
    assert refused.exit_code == 1
    assert "torch cannot read it" in refused.stderr


@pytest.mark.parametrize("baseline", ["load-exec", "stdpl-2", "preload-32"])
def test_eval_reports_baselines_in_one_frame(
    as_json: Callable[..., Any], model: Path, tmp_path: Path, baseline: str
) -> None:
    """The same frame for all systems, with the fields design.md promises."""
    (tmp_path / "dev.tsv").write_text(TSV)
    seen = as_json("eval", model, tmp_path / "dev.tsv", "--latency", "60s", "--baseline", baseline)
    assert seen["system"] == baseline
    assert seen["n"] == 3
    assert seen["met_fraction"] == 1.0
    assert seen["accuracy_interval"][0] <= seen["accuracy"] <= seen["accuracy_interval"][1]
    assert seen["seconds"]["median"] <= seen["seconds"]["p95"]
    assert seen["resident_weight_bytes"] > 0


def test_a_slower_device_runs_slower(as_json: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    """Dilation sleeps after each step: a hundredfold device is slow beyond doubt, and was planned so."""
    words = ("run", model, "--latency", "60s", "--text", "a good film")
    for _ in range(5):
        fast, slow = as_json(*words), as_json(*words, "--dilate-compute", "100", "--dilate-io", "5")
        if slow["seconds"] > slow["predicted_s"] / 3:
            break
        as_json("profile", model, "--seconds", "0.5")  # the one in use may stem from a busier moment
    assert slow["predicted_s"] > 3 * fast["predicted_s"]
    assert slow["seconds"] > slow["predicted_s"] / 3


def test_the_demo_shows_plan_answers_and_memory(cli: Cli, model: Path) -> None:
    """`make demo` ends here."""
    result = cli("demo", model, "--latency", "5s")
    assert result.exit_code == 0, result.output
    for word in (
        "predicted timeline",
        "measured timeline",
        "charming",
        "predicted beside measured",
        "weights in memory",
    ):
        assert word in result.stdout


def test_embedding_models_answer_with_a_vector(
    as_json: Callable[..., Any], tiny_model: Callable[..., Path]
) -> None:
    """A model without labels has no label to print."""
    reply = as_json("run", tiny_model("bert", False), "--latency", "5s", "--text", "a good film")
    assert reply["label"] is None
    assert len(reply["vector"]) == 32
