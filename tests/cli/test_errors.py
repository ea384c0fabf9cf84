"""What users see when something is wrong: one line on stderr, status 1, no traceback."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pliant.cli.app import app
from pliant.settings import child_environment
from tests.cli.conftest import Cli


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--latency", "5s", "--text", "  "), "empty"),
        (("--latency", "5s", "--text", "film " * 30), "24"),
        (("--latency", "1us", "--text", "a"), "needs"),
        (("--latency", "soon", "--text", "a"), "soon"),
        (("--latency", "20", "--text", "a"), "'20' has no unit"),
        (("--latency", "5s", "--preload", "some", "--text", "a"), "some"),
        (("--latency", "5s"), "--text"),
        (("--latency", "5s", "--text", "a", "--dilate-compute", "0.5"), "dilated"),
        (("--latency", "5s", "--input", "no such file"), "no such file"),
    ],
)
def test_a_bad_request_is_one_message(cli: Cli, model: Path, words: tuple[str, ...], said: str) -> None:
    """The value, the limit and the next move, on stderr; nothing on stdout that a script could mistake."""
    result = cli("run", model, *words)
    assert result.exit_code == 1
    assert said in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_an_unknown_model_is_named(cli: Cli, tmp_path: Path) -> None:
    """Neither a directory nor a hub id."""
    result = cli("plan", tmp_path / "nothing", "--latency", "1s")
    assert result.exit_code == 1
    assert "nothing" in result.stderr


def test_a_store_of_other_content_is_refused(cli: Cli, model: Path, tmp_path: Path) -> None:
    """A cut layer is found when the store opens, before anything is answered."""
    cli("pack", model, "-o", tmp_path / "s")
    file = tmp_path / "s" / "layer-00.safetensors"
    file.write_bytes(file.read_bytes()[:-4096])
    result = cli("run", tmp_path / "s", "--latency", "5s", "--text", "a good film")
    assert result.exit_code == 1
    assert "layer-00.safetensors" in result.stderr


def test_a_flipped_bit_is_an_error_and_not_an_answer(cli: Cli, model: Path, tmp_path: Path) -> None:
    """The lane that reads it stops the run; file, layer and slice reach the user."""
    cli("pack", model, "-o", tmp_path / "s")
    for file in (tmp_path / "s").glob("layer-*.safetensors"):
        data = bytearray(file.read_bytes())
        data[4096:] = bytes(b ^ 255 for b in data[4096:])
        file.write_bytes(data)
    result = cli("run", tmp_path / "s", "--latency", "5s", "--text", "a good film")
    assert result.exit_code == 1
    assert "does not match its XXH3" in result.stderr
    assert result.stdout == ""


def test_a_label_the_model_has_not_names_its_line(cli: Cli, model: Path, tmp_path: Path) -> None:
    """A dev file of another task must not be scored."""
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\na good film\t7\n")
    result = cli("eval", model, tmp_path / "dev.tsv", "--latency", "5s")
    assert result.exit_code == 1
    assert "line 2" in result.stderr


def test_stretch_checks_its_options_before_it_starts(cli: Cli, model: Path, tmp_path: Path) -> None:
    """A negative rate is told at once, not after tokenising a training set."""
    result = cli("stretch", model, "--train", "t", "--dev", "d", "-o", tmp_path / "o", "--rate", "-1")
    assert result.exit_code == 1
    assert "rate" in result.stderr


def test_every_verb_explains_itself(cli: Cli) -> None:
    """`--help` of each, and the version."""
    for verb in ("pack", "profile", "plan", "run", "eval", "stretch", "inspect", "demo"):
        result = cli(verb, "--help")
        assert result.exit_code == 0
        assert "--json" in result.stdout
    assert cli("--version").stdout.startswith("pliant ")


STREAMS = (
    (("run", "MODEL", "--input", "-"), "<&-", "standard input cannot be read: it is closed"),
    (("eval", "MODEL", "-"), "<&-", "standard input cannot be read: it is closed"),
    (("run", "MODEL", "--text", "a good film"), ">/dev/full", "output cannot be written: No space left"),
    (("plan", "MODEL", "--json"), ">/dev/full", "output cannot be written: No space left"),
)


@pytest.mark.parametrize(("words", "redirection", "said"), STREAMS)
def test_a_stream_that_fails_is_one_message(
    model: Path, cache: Path, words: tuple[str, ...], redirection: str, said: str
) -> None:
    """A full disk behind a redirection, or a service that was started without input, is no bug of pliant."""
    line = shlex.join([sys.executable, "-m", "pliant", *(str(model) if w == "MODEL" else w for w in words)])
    ran = subprocess.run(
        f"{line} {redirection}",
        shell=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(PLIANT_CACHE=str(cache)),
        check=False,
    )
    assert ran.returncode == 1
    (line,) = ran.stderr.splitlines()
    assert said in line


def test_nothing_but_the_error_is_on_stderr(cli: Cli, model: Path) -> None:
    """A progress bar that nobody sees began every log with an empty line."""
    assert cli("run", model, "--text", "a good film").stderr == ""
    assert cli("run", model, "--text", " ").stderr.startswith("pliant: ")


def test_a_cache_that_cannot_be_written_names_the_variable_that_moves_it(model: Path) -> None:
    """Who runs a model did not ask for a store, and cannot know where it goes."""
    result = CliRunner().invoke(app, ["run", str(model), "--text", "a"], env={"PLIANT_CACHE": "/proc/none"})
    assert result.exit_code == 1
    assert "PLIANT_CACHE moves the cache" in result.stderr
