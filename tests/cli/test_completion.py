"""Shells complete verbs, options and the names of shipped models."""

import pytest
from typer.testing import CliRunner

from pliant.cli.app import app

VERBS = ("run", "plan", "profile", "inspect", "demo", "pack", "node", "cluster run", "worker --model")


def completed(line: str) -> list[str]:
    """What bash is given for the last word of `line`, which may be empty."""
    env = {"_PLIANT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    return CliRunner().invoke(app, [], prog_name="pliant", env=env).stdout.split()


def test_verbs_and_options_are_completed() -> None:
    """A verb's options are known only once it is called: completing one must import it."""
    assert completed("pliant ev") == ["eval"]
    assert completed("pliant cluster st") == ["status"]
    assert completed("pliant run sst2 --time") == ["--timeline"]
    assert completed("pliant run sst2 --comp") == ["--compute"]


@pytest.mark.parametrize("verb", VERBS)
def test_shipped_models_are_completed_where_a_source_is_asked_for(verb: str) -> None:
    """The names cannot be guessed; a word that begins none is left to the shell, which completes paths."""
    assert completed(f"pliant {verb} ") == ["imdb-lstm", "sst2"]
    assert completed(f"pliant {verb} ./sst2") == []


def test_the_root_offers_to_install_it() -> None:
    """`pliant --install-completion` is what a user is told to type."""
    assert "--install-completion" in CliRunner().invoke(app, ["--help"]).stdout
