"""`pliant compile --emit c` on text models: what it says, and what it refuses."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.compiler.aot.model.c_model import CModel
from tests.compiler.aot.model.conftest import characters_once as characters_once


@pytest.fixture
def linker() -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")


def test_a_text_encoder_becomes_a_library(
    linker: None, as_json: Callable[..., Any], model: Path, tmp_path: Path
) -> None:
    """The whole way of a user: compile, open, ask for text."""
    out = tmp_path / "out"
    words = ("--emit", "c", "--latency", "100ms,2s", "--preload", "8KB", "--length", "16", "-o", out)
    said = as_json("compile", model, *words)
    assert said["output"] == str(out)
    assert {plan["target_s"] for plan in said["plans"]} == {0.1, 2.0}
    assert max(plan["length"] for plan in said["plans"]) == 16
    assert said["ids_only"] is None
    assert said["profile"] == "this machine's profile"
    with CModel(Path(said["library"]), out) as opened:
        answer = opened.run("a good film")
        assert answer.label in ("negative", "positive")
        assert opened.about.preload_bytes == said["memory"]["preload"]


def test_a_table_of_plans_is_printed(linker: None, cli: Cli, model: Path, tmp_path: Path) -> None:
    """Targets with what is predicted for each, and where the library is; a second time it is replaced."""
    for _ in range(2):
        done = cli(
            "compile", model, "--emit", "c", "--latency", "2s", "--length", "16", "-o", tmp_path / "out"
        )
        assert done.exit_code == 0, done.output
        for part in ("target", "2 s", "memory: ", "linked as"):
            assert part in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-o", "out"), "give --emit c and -o DIRECTORY"),
        (("--emit", "c"), "give --emit c and -o DIRECTORY"),
        (("--emit", "c", "-o", "out"), "give some, such as --latency 10ms,20ms,50ms"),
        (("--emit", "c", "-o", "out", "--latency", "2s,1s"), "latency targets must increase"),
        (("--emit", "c", "-o", "out", "--latency", "1s", "--length", "999"), "give 1 to"),
        (("--emit", "c", "-o", "out", "--latency", "1s", "--dim", "a=1"), "no option --dim a=1"),
        (
            ("--emit", "c", "-o", "out", "--latency", "1s", "--length", "8", "--profile", "none.json"),
            "there is no such file",
        ),
        (("--emit", "c", "-o", "out", "--latency", "1us", "--length", "8"), "within 1 "),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_written(
    cli: Cli, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    """Each error names the next move; no directory, whole or half, is left behind."""
    monkeypatch.chdir(tmp_path)
    done = cli("compile", model, *words)
    assert done.exit_code != 0
    assert said in done.output.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


def test_a_profile_determines_the_threads_of_a_library(
    cli: Cli, as_json: Callable[..., Any], model: Path, tmp_path: Path
) -> None:
    """Times of three threads say nothing of a library that is cut for another number of them."""
    profile, out = tmp_path / "pi.json", tmp_path / "out"
    profile.write_text(json.dumps(as_json("profile", model, "--threads", "3", "--seconds", "0.1")))
    words = ("compile", model, "--emit", "c", "--latency", "9s", "--length", "16", "-o", out)
    refused = cli(*words, "--profile", profile, "--threads", "2")
    assert refused.exit_code == 1
    assert "of 3 threads, and the library of 2; give --threads 3" in " ".join(refused.output.split())
    assert not out.exists()
    for threads in ((), ("--threads", "3")):
        done = cli(*words, "--profile", profile, *threads)
        assert done.exit_code == 0, done.output


def test_a_directory_of_something_else_is_kept(cli: Cli, model: Path, tmp_path: Path) -> None:
    """A mistyped -o must not cost anybody their files."""
    (tmp_path / "precious").write_text("kept")
    done = cli("compile", model, "--emit", "c", "--latency", "2s", "--length", "16", "-o", tmp_path)
    assert done.exit_code != 0
    assert "choose another directory" in done.output.replace("\n", " ")
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]
