"""What the README shows is what happens: its Python runs, its verbs exist, its links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pliant.cli import main as _main
from pliant.cli.app import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first thing a user tries, on the model that ships; the target is loose for a busy machine."""
    monkeypatch.setenv("PLIANT_CACHE", str(tmp_path))
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    names: dict[str, object] = {}
    exec(code.replace("20ms", "2s").replace("10ms", "1s"), names)
    assert names["answer"].label == "positive"  # type: ignore[attr-defined]


def test_every_verb_shown_exists() -> None:
    """A verb renamed must be renamed here too."""
    shown = set(re.findall(r"`?pliant ([a-z]+)", README)) - {"says"}
    listed = CliRunner().invoke(app, ["--help"]).output
    assert callable(_main)
    for verb in shown & {"pack", "profile", "plan", "run", "eval", "stretch", "inspect", "demo"}:
        assert verb in listed
    assert {"pack", "profile", "plan", "run", "eval", "stretch", "inspect"} <= shown


def test_every_option_shown_is_known() -> None:
    """Options in the table of verbs and in the first screen are real ones."""
    for line in re.findall(r"pliant ([a-z]+ [^`\n]*--[^`\n]*)", README):
        verb, *words = shlex.split(line.replace("…", "x"))
        text = CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "200"}).output
        for option in [w for w in words if w.startswith("--")]:
            assert option in text, f"pliant {verb} has no {option}"


def test_every_link_into_the_repository_leads_somewhere() -> None:
    """A reader who clicks must not find nothing."""
    for target in re.findall(r"\]\(([^)h#][^)]*)\)", README):
        assert (ROOT / target).exists(), target
