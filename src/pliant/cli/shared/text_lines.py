"""The texts of a file, one a line, checked as a whole before the first is answered."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from pliant.errors import InputError
from pliant.models.examples import numbered_lines, path_label

Truncate = Annotated[
    bool,
    typer.Option(
        "--truncate",
        help="Truncate texts that are longer than the model's limit; without it they are errors.",
    ),
]


@dataclass(frozen=True, slots=True)
class InputText:
    """A text, or a pair of texts; `where` names file and line, and None a text of the command line."""

    text: str
    pair: str | None = None
    where: str | None = None
    is_truncated: bool = False


@dataclass(frozen=True, slots=True)
class TextReader:
    """How a model reads a text or a pair: `check` raises InputError, `truncate` returns what can be read."""

    check: Callable[[str, str | None], object]
    truncate: Callable[[str, str | None], tuple[str, str | None]]


def text_lines(path: Path) -> tuple[InputText, ...]:
    """One text a line, so that the n-th answer is that of line n; empty lines may only end the file.

    Raises InputError naming file and line for an empty line before others and for bad UTF-8, and for a file
    that cannot be read or holds no text.
    """
    name = path_label(path)
    lines = tuple(InputText(line, where=f"{name}, line {at}") for at, line in numbered_lines(path))
    if not lines:
        raise InputError(f"{name} has no text; write one text a line.")
    return lines


def refuse_truncation(path: Path, is_truncating: bool) -> None:
    """Raise InputError where --truncate was given for arrays: those are read as they are, or refused."""
    if is_truncating:
        raise InputError(f"{path} holds arrays, but --truncate is for texts: leave it out.")


def make_readable(
    texts: Iterable[InputText], reading: TextReader, is_truncating: bool
) -> tuple[InputText, ...]:
    """The texts as the model can read them, those too long cut if `is_truncating`.

    Raises InputError naming file and line of the first that it cannot read.
    """
    return tuple(_readable(text, reading, is_truncating) for text in texts)


def _readable(text: InputText, reading: TextReader, is_truncating: bool) -> InputText:
    where = "" if text.where is None else f"{text.where}: "
    is_longer = False
    try:
        kept, pair = reading.truncate(text.text, text.pair)
        is_longer = (kept, pair) != (text.text, text.pair)
        if is_longer and is_truncating:
            text = replace(text, text=kept, pair=pair, is_truncated=True)
        reading.check(text.text, text.pair)
    except InputError as error:
        next_move = " --truncate shortens it." if is_longer and not is_truncating else ""
        raise InputError(f"{where}{error}{next_move}") from error
    return text
