"""`--paper`: the published system from the command line, in one option."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pliant.api import open_elastic as api
from pliant.api.resolve import resolve
from pliant.cli.shared.verb_options import SessionArguments
from pliant.plan.submodel.plan_options import OURS, PAPER
from pliant.store.read import open_store
from tests.cli.conftest import Cli


def test_the_option_sets_everything_that_the_paper_does() -> None:
    """A researcher who forgets one of seven settings compares with a system that nobody published."""
    options = SessionArguments("sst2", "20ms", paper=True).options
    assert options.plan == options.planning == PAPER
    assert (PAPER.choose, PAPER.slack, PAPER.uses_lead, PAPER.depths) == ("size", "none", False, "any")
    assert SessionArguments("sst2", "20ms", paper=True).quantizer == "equal-population"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--choose", "accuracy"), "--choose accuracy contradicts --paper, which plans with --choose size"),
        (("--depths", "trained"), "--depths trained contradicts --paper, which plans with --depths any"),
        (("--io-reserve", "2"), "--io-reserve 2.0 contradicts --paper, which plans without it"),
        (("--anytime",), "--anytime contradicts --paper, which plans with --no-anytime"),
        (("--adapt",), "--adapt contradicts --paper, which plans with --no-adapt"),
    ],
)
def test_an_option_that_contradicts_the_paper_is_refused(
    cli: Cli, model: Path, words: tuple[str, ...], said: str
) -> None:
    """It was dropped without a word, and the figures were those of another system than asked for."""
    failed = cli("plan", model, "--latency", "60s", "--paper", *words)
    assert failed.exit_code == 1
    assert f"pliant: {said}: leave one out." in " ".join(failed.output.split())


def test_an_option_that_says_what_the_paper_does_is_taken() -> None:
    """To write it out is no contradiction; without `--paper` the defaults are ours."""
    arguments = SessionArguments(
        "sst2", "20ms", paper=True, choose="size", depths="any", anytime=False, adapt=False
    )
    assert arguments.options == SessionArguments("sst2", "20ms", paper=True).options
    ours = SessionArguments("sst2", "20ms").options
    assert (ours.plan, ours.is_anytime, ours.adapts) == (OURS, True, True)


def test_the_papers_system_plans_runs_and_is_evaluated(
    as_json: Callable[..., Any], model: Path, cache: Path, tmp_path: Path
) -> None:
    """From a store of its own quantizer, packed beside ours and kept."""
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\na good film\t1\n")
    asked = ("--latency", "60s", "--paper")
    made = as_json("plan", model, *asked)
    assert (made["name"], made["is_anytime"], made["latest_start_s"][0]) == ("paper", False, None)
    reply = as_json("run", model, "--text", "a good film", *asked)
    assert reply["bits"] == reply["planned_bits"]
    assert as_json("eval", model, tmp_path / "dev.tsv", *asked)["system"] == "paper"
    with api.open_packed_store(resolve(model), cache, quantizer="equal-population") as store:
        assert store.manifest.quantizer == "equal-population"
    with api.open_packed_store(resolve(model), cache) as store:
        assert store.manifest.quantizer == "lloyd"


def test_a_store_of_another_quantizer_is_refused_with_the_way_out(
    cli: Cli, model: Path, tmp_path: Path
) -> None:
    """Its codes cannot become the paper's: the answer would be neither system's."""
    assert cli("pack", model, "-o", tmp_path / "lloyd.store").exit_code == 0
    failed = cli("plan", tmp_path / "lloyd.store", "--latency", "60s", "--paper")
    assert failed.exit_code != 0
    assert "pliant pack --quantizer equal-population" in " ".join(failed.output.split())
    assert cli("pack", model, "-o", tmp_path / "e.store", "--quantizer", "equal-population").exit_code == 0
    with open_store(tmp_path / "e.store"):
        assert cli("plan", tmp_path / "e.store", "--latency", "60s", "--paper").exit_code == 0
