"""The option `--trace FILE`; a file that cannot be written is refused before anything runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from pliant.errors import InputError


def _writable(path: Path | None) -> Path | None:
    """`path`, once it was opened for writing: a file that is there is not touched, a new one not left."""
    if path is not None:
        try:
            is_new = not path.exists()
            path.open("ab").close()
            if is_new:
                path.unlink()
        except OSError as error:
            raise _refusal(path, error) from error
    return path


Trace = Annotated[
    Path | None,
    typer.Option(help="Write the run as a Chrome trace (ui.perfetto.dev opens it).", callback=_writable),
]


@contextmanager
def kept(path: Path) -> Iterator[Path]:
    """Where the trace is to be written. Raises InputError where that fails after all."""
    try:
        yield path
    except OSError as error:
        raise _refusal(path, error) from error


def _refusal(path: Path, error: OSError) -> InputError:
    return InputError(
        f"the trace cannot be written to {path}: {error.strerror}. Name a file in a folder that is there."
    )
