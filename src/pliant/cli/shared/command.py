"""Make Typer commands of verbs: the fields of a verb's one argument become the command's parameters."""

from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, field, fields, is_dataclass, make_dataclass
from functools import wraps
from inspect import signature
from typing import Any

import typer

NamedOptions = frozenset[str]
"""Type of the field that gets the names of the parameters that the command line gives."""
Verb = Callable[[Any], None]
"""A function of one frozen dataclass. Each field is annotated with typer.Option or typer.Argument, or is of
another such dataclass, whose fields are inserted in its place."""


def command_of(verb: Verb) -> Callable[..., None]:
    """Return `verb` as a Typer command with a parameter for each field of its arguments, in order."""
    (parameter,) = signature(verb).parameters.values()
    arguments = parameter.annotation

    # Typer and inspect.signature read the parameters of what a function wraps: here, of a flat dataclass.
    @wraps(make_dataclass(arguments.__name__, _parameters(arguments), kw_only=True), updated=())
    def command(**given: Any) -> None:
        verb(_filled(arguments, given))

    command.__doc__ = verb.__doc__
    return command


def _parameters(arguments: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, type and default of every field; fields of a nested dataclass in its place."""
    for one in fields(arguments):
        if is_dataclass(one.type):
            yield from _parameters(one.type)
        elif one.type == NamedOptions:
            yield one.name, typer.Context, field()
        else:
            yield one.name, one.type, _default(one)


def _default(one: Field[Any]) -> Any:
    return field() if one.default is MISSING else field(default=one.default)


def _filled(arguments: Any, given: dict[str, Any]) -> Any:
    """Return `arguments` with the values of the command line, nested dataclasses first."""
    return arguments(**{one.name: _value(one, given) for one in fields(arguments)})


def _value(one: Field[Any], given: dict[str, Any]) -> Any:
    if is_dataclass(one.type):
        return _filled(one.type, given)
    return _named(given[one.name]) if one.type == NamedOptions else given[one.name]


def _named(context: typer.Context) -> NamedOptions:
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(name for name, at in sources.items() if at is not None and at.name == "COMMANDLINE")
