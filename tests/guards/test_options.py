"""Guard: the verbs of the command line, the options of each, and its exit codes.

Protects scripts: a verb, an option, a default or an exit code that changes breaks them. A new verb or option
is added by `pytest tests/guards/test_options.py --update-golden`; one that goes or changes needs a line in
CHANGELOG.md. Texts of help may be rewritten freely.
"""

from collections.abc import Callable, Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from pliant.cli.app import app
from tests.guards.forms import shown_type

WRONG = {
    "pack": ("NOWHERE",),
    "profile": ("NOWHERE",),
    "plan": ("NOWHERE", "--latency", "1s"),
    "run": ("NOWHERE", "--latency", "1s", "--text", "a"),
    "eval": ("NOWHERE", "NOWHERE.tsv", "--latency", "1s"),
    "stretch": ("NOWHERE", "--train", "t", "--dev", "d", "-o", "o"),
    "inspect": ("NOWHERE",),
    "compile": ("NOWHERE.onnx",),
    "bench": ("NOWHERE.onnx",),
    "worker": ("--join", "127.0.0.1:1", "--model", "NOWHERE"),
    "cluster key": ("NOWHERE",),
    "cluster status": ("--key", "NOWHERE.key"),
    "cluster plan": ("NOWHERE", "--key", "NOWHERE.key"),
    "cluster run": ("NOWHERE", "--text", "a", "--key", "NOWHERE.key"),
    "cluster bench": ("NOWHERE", "--key", "NOWHERE.key"),
    "node": ("NOWHERE", "--listen", "127.0.0.1:0"),
    "route explain": ("--length", "1", "--node", "http://127.0.0.1:1"),
    "demo": ("NOWHERE",),
}
"""Of every verb, words that it understands and cannot act upon: NOWHERE is a path where nothing lies."""


def verbs() -> Iterator[tuple[str, Any]]:
    """Every verb with its group, and its command as it is once it is called."""
    root = typer.main.get_command(app)
    top = root.make_context("pliant", [], resilient_parsing=True)
    yield from _below(root, top, "")


def _below(group: Any, context: Any, name: str) -> Iterator[tuple[str, Any]]:
    for word in group.list_commands(context):
        command = group.get_command(context, word)
        full = f"{name} {word}".strip()
        made = command.make_context(word, [], parent=context, resilient_parsing=True)
        if hasattr(command, "list_commands"):
            yield from _below(command, made, full)
        else:
            yield full, made.command


def test_every_verb_and_its_options_are_as_they_were(golden: Callable[[str, str], None]) -> None:
    """Name, type, limits, default, and what is required, in the order of the help."""
    lines = []
    for name, command in verbs():
        types = {p.name: p.annotation for p in signature(command.callback, eval_str=True).parameters.values()}
        lines += [f"pliant {name}", *(f"  {_option(one, types[one.name])}" for one in command.params), ""]
    golden("guards/options.txt", "\n".join(lines))


def _option(one: Any, annotation: Any) -> str:
    names = " / ".join([*one.opts, *one.secondary_opts])
    traits = [f"{word} {x}" for word in ("min", "max") if (x := getattr(one, word, None)) is not None]
    traits += [word for word, has in (("required", one.required), ("repeatable", one.multiple)) if has]
    traits += [] if one.required else [f"default {one.default}"]
    return ", ".join([f"{one.param_type_name} {names}: {shown_type(annotation)}", *traits])


def test_every_verb_has_the_exit_codes_of_a_tool(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    """0 for help, 1 and one message for what the user can mend, 2 for words that are not understood."""
    lines = []
    for name, _ in verbs():
        words = [w.replace("NOWHERE", str(tmp_path / "nowhere")) for w in WRONG[name]]
        if name == "cluster key":
            Path(words[0]).write_text("there is a key already")
        helped = _invoke(tmp_path, *name.split(), "--help")
        failed = _invoke(tmp_path, *name.split(), *words)
        unknown = _invoke(tmp_path, *name.split(), "--no-such-option")
        assert failed.stdout == "", f"{name} prints to stdout before it fails: {failed.stdout}"
        assert failed.stderr.strip().startswith("pliant: "), failed.output
        lines.append(f"{name}: help {helped.exit_code}, error {failed.exit_code}, option {unknown.exit_code}")
    others = ((), ("--version",), ("no-such-verb",), ("cluster",), ("cluster", "no-such-verb"))
    lines += [f"pliant {' '.join(words)}: {_invoke(tmp_path, *words).exit_code}" for words in others]
    golden("guards/exit_codes.txt", "\n".join(lines) + "\n")


def _invoke(cache: Path, *words: str) -> Any:
    return CliRunner().invoke(app, words, env={"PLIANT_CACHE": str(cache / "cache")})


def test_every_verb_is_tried_with_a_mistake() -> None:
    """A verb that is added later is guarded too."""
    assert set(WRONG) == {name for name, _ in verbs()}


@pytest.mark.parametrize("name", ["-V", "--versions"])
def test_an_option_of_the_root_that_is_not_there_is_refused(name: str, tmp_path: Path) -> None:
    """The root takes --version and --help alone."""
    assert _invoke(tmp_path, name).exit_code == 2
