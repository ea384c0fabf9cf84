"""The cluster's verbs where pyzmq is not installed."""

import subprocess
import sys

_VERBS = ("worker", "cluster key", "cluster status", "cluster plan", "cluster run", "cluster bench")
_HELP = """
import sys
sys.modules["zmq"] = None  # as where it is not installed
from typer.testing import CliRunner
from pliant.cli.app import app
for words in sys.argv[1:]:
    done = CliRunner().invoke(app, words.split())
    print(done.exit_code, len(done.stdout) > 500, *done.stderr.splitlines())
"""


def _said(*command_lines: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _HELP, *command_lines], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_help_needs_no_pyzmq() -> None:
    """Whoever has not decided to install it yet reads first what for."""
    assert _said("cluster --help", *(f"{verb} --help" for verb in _VERBS)) == ["0 True"] * (len(_VERBS) + 1)


def test_whoever_runs_a_verb_without_pyzmq_is_told_what_to_install() -> None:
    """The extra by name, not a traceback."""
    said = _said("worker --join 127.0.0.1:1 --model random:bert-base", "cluster key", "cluster status")
    assert said == ["1 False pliant: a cluster needs pyzmq: pip install 'pliant[cluster]'."] * 3
