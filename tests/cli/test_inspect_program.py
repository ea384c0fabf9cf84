"""Programs and executables as files: shown, and judged by the line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

from tests.cli.conftest import Cli
from tests.models.onnx_models import parse

GOLDEN = Path(__file__).parents[1] / "golden"
MODEL = parse(
    "g (float[N,4] x) => (float[N,4] y) { a = Softmax(x) b = Transpose(a) c = Softmax(b) y = Transpose(c) }"
)


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
        "line 13: part is sent, but is not a tensor of the program.",
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


def test_an_executable_is_printed_and_judged(cli: Cli, as_json: Callable[..., Any], tmp_path: Path) -> None:
    """What inspect prints of an ONNX model is a file that inspect reads; a wrong line is named."""
    onnx.save(MODEL, tmp_path / "model.onnx")
    printed = cli("inspect", tmp_path / "model.onnx", "--executable", "--length", "24")
    assert printed.exit_code == 0, printed.output
    path = tmp_path / "executable.txt"
    path.write_text(printed.stdout, encoding="utf-8")
    shown = cli("inspect", path, "--check")
    assert (shown.exit_code, shown.stdout) == (0, printed.stdout), shown.output
    assert "n0=24" in printed.stdout.splitlines()[0]
    assert as_json("inspect", path)["executable"]["n_threads"] >= 1
    lines = printed.stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("tensor "))
    lines[at] = lines[at].replace("arena+0 ", "arena+32 ")
    path.write_text("\n".join(lines), encoding="utf-8")
    found = cli("inspect", path, "--check")
    assert found.exit_code == 1
    assert f"line {at + 1}: " in found.stderr
    assert "begins at byte 32, no multiple of 64" in found.stderr


def test_a_text_of_neither_kind_is_refused(cli: Cli, model: Path, tmp_path: Path) -> None:
    """The message says what prints such a file; other models have no --executable."""
    path = tmp_path / "notes.txt"
    path.write_text("nothing of ours\n", encoding="utf-8")
    assert "no line that begins with 'program' or 'executable'" in cli("inspect", path).stderr
    path.write_text("executable avx2, 2 threads\narena\n", encoding="utf-8")
    assert "notes.txt, line 2: 'arena' is not an arena" in cli("inspect", path).stderr
    assert "has no option --executable" in cli("inspect", path, "--executable").stderr
    assert "has no option --executable" in cli("inspect", model, "--executable").stderr
