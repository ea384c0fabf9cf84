"""Refuse options of a command that a kind of model does not have."""

from collections.abc import Collection
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from pliant.api.model import Model
from pliant.errors import InputError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def refuse_options(
    model: Model, args: "DataclassInstance", names: Collection[str], next_move: str = "leave it out"
) -> None:
    """Raise InputError naming the given options, among `names`, that `model` does not have.

    `args` are a command's options; an option with its default value was not given.
    """
    given = [f for f in fields(args) if f.name in names and getattr(args, f.name) not in (f.default, [])]
    if given:
        said = ", ".join(option_text(f.name, getattr(args, f.name)) for f in given)
        raise InputError(f"{model.name} is {model.kind}, which has no option {said}: {next_move}.")


def option_text(name: str, value: Any) -> str:
    """Return the option of a field as it is written on the command line."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    if isinstance(value, list | tuple):
        return " ".join(f"--{flag} {one}" for one in value)
    return f"--{flag} {value}"
