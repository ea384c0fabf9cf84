"""The option `--trace FILE`; a file that cannot be written is refused before anything runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from pliant.errors import InputError


def _writable(path: Path | None) -> Path | None:
    """Return `path` if it can be written. An existing file is not changed, and no new file is left behind."""
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
    typer.Option(
        help="Write the run as a Chrome trace to this file (open it with ui.perfetto.dev).",
        callback=_writable,
    ),
]


@contextmanager
def trace_file(path: Path) -> Iterator[Path]:
    """Yield the path to write. Raises InputError if writing fails."""
    try:
        yield path
    except OSError as error:
        raise _refusal(path, error) from error


def _refusal(path: Path, error: OSError) -> InputError:
    return InputError(
        f"the trace cannot be written to {path}: {error.strerror}. Name a file in an existing folder."
    )
