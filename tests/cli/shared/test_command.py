"""A verb takes one frozen dataclass, whose fields are the parameters of its command."""

from dataclasses import dataclass, is_dataclass
from inspect import signature
from pkgutil import resolve_name
from typing import Annotated, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from pliant.cli.app import VERBS
from pliant.cli.shared.command import NamedOptions, command_of


@dataclass(frozen=True, slots=True)
class _Shared:
    source: Annotated[str, typer.Argument()]
    size: Annotated[int, typer.Option(min=1)] = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arguments:
    shared: _Shared
    data: Annotated[str, typer.Argument()]
    words: Annotated[list[str] | None, typer.Option("--word")] = None
    loud: Annotated[bool, typer.Option("--loud")] = False


def test_the_fields_are_the_parameters_and_come_back_as_the_dataclass() -> None:
    """Fields of a nested dataclass stand where it stands: options that verbs share are written once."""
    seen: list[_Arguments] = []

    def verb(args: _Arguments) -> None:
        """Say what was given."""
        seen.append(args)

    command = command_of(verb)
    assert list(signature(command).parameters) == ["source", "size", "data", "words", "loud"]
    app = typer.Typer()
    app.command()(command)
    shown = CliRunner().invoke(app, ["--help"]).output
    assert "Say what was given." in shown
    assert "[default: 3]" in shown
    assert CliRunner().invoke(app, ["a", "b", "--size", "5", "--word", "x", "--word", "y"]).exit_code == 0
    assert CliRunner().invoke(app, ["a", "b", "--loud"]).exit_code == 0
    assert CliRunner().invoke(app, ["a", "b", "--size", "0"]).exit_code == 2
    assert CliRunner().invoke(app, ["a"]).exit_code == 2
    assert seen == [
        _Arguments(shared=_Shared("a", 5), data="b", words=["x", "y"]),
        _Arguments(shared=_Shared("a"), data="b", loud=True),
    ]


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_declares_its_options_so(name: str) -> None:
    """A second way to declare options is how verbs came to differ."""
    verb = resolve_name(f"pliant.cli.{VERBS[name][0]}")
    (parameter,) = signature(verb).parameters.values()
    arguments = parameter.annotation
    assert is_dataclass(arguments)
    assert arguments.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert "__signature__" not in vars(verb)
    for field, hint in get_type_hints(arguments, include_extras=True).items():
        is_option = is_dataclass(hint) or hasattr(hint, "__metadata__")
        assert is_option or hint == NamedOptions, f"{name}: {field} has no help"
