"""All verbs under one name: listed without being imported, and each is found."""

import subprocess
import sys

from pliant.cli.app import VERBS
from tests.cli.conftest import Cli


def test_help_imports_no_engine() -> None:
    """Help is asked for often: it must not wait for onnx, numpy and the compiler."""
    code = (
        "import sys\nfrom pliant.cli.app import app\ntry: app(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'numpy', 'onnx', 'pliant.api.open_elastic', 'pliant.api.compile_onnx'}\n"
        "assert not heavy & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Compile an ONNX model" in done.stdout


def test_every_verb_listed_is_found_and_answers_help(cli: Cli) -> None:
    """A verb is named by text until it is called; a name that leads nowhere would show only then."""
    listed = cli("--help").stdout
    for verb in VERBS:
        shown = cli(*verb.split(), "--help")
        assert shown.exit_code == 0, shown.output
        assert f"pliant {verb} " in shown.stdout or f" {verb} " in shown.stdout
        group, _, name = verb.rpartition(" ")
        assert name in (cli(group, "--help").stdout if group else listed)


def test_verbs_that_open_a_session_take_the_same_options(cli: Cli) -> None:
    """What is planned must be what is run and measured: one list of options serves all three."""
    for verb in ("run", "plan", "eval"):
        shown = cli(verb, "--help").stdout
        for option in ("--latency", "--preload", "--working", "--choose", "--compute", "--dilate-io"):
            assert option in shown, f"{verb} has no {option}"
