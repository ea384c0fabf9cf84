"""Programs as files: shown, and judged by the line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cli.conftest import Cli

GOLDEN = Path(__file__).parents[1] / "golden"


def test_a_plans_program_is_shown_and_judged(cli: Cli, model: Path, tmp_path: Path) -> None:
    """What a plan prints is a file that inspect reads, its page before it and all."""
    planned = cli("plan", model, "--latency", "10s", "--preload", "0", "--length", "8", "--explain")
    assert planned.exit_code == 0, planned.output
    path = tmp_path / "plan.txt"
    path.write_text(planned.stdout, encoding="utf-8")
    shown = cli("inspect", path, "--check")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith("program tokens\nsegment 0\n   0 cpu  embed rows tokens\n")
    assert planned.stdout.endswith(shown.stdout)


def test_each_wrong_line_is_named(cli: Cli, as_json: Callable[..., Any], tmp_path: Path) -> None:
    """A script sees the exit code, a person the lines; without --check a program is only shown."""
    path = tmp_path / "edited.txt"
    text = (GOLDEN / "program.txt").read_text(encoding="utf-8")
    path.write_text(text.replace(" prefer 2 until 0.0125 s", ""), encoding="utf-8")
    wrong = [
        "line 8: layer 3 does not wait for its load, step 2.",
        "line 13: part is sent, but is no tensor of the program.",
    ]
    found = cli("inspect", path, "--check")
    assert found.exit_code == 1
    assert [line for line in found.stderr.splitlines() if line.startswith("line")] == wrong
    assert cli("inspect", path).exit_code == 0
    assert as_json("inspect", path)["faults"] == wrong


def test_what_is_no_program_is_refused_by_its_line(cli: Cli, model: Path, tmp_path: Path) -> None:
    """Neither a half-written file nor a model is judged as a program."""
    path = tmp_path / "cut.txt"
    path.write_text("program (bound)\nsegment 0\n   0 cpu embed\n", encoding="utf-8")
    found = cli("inspect", path)
    assert found.exit_code == 1
    assert "cut.txt, line 3: 'embed' is not work" in found.stderr
    assert "--verify" in cli("inspect", path, "--verify").stderr
    assert "has no option --check" in cli("inspect", model, "--check").stderr
