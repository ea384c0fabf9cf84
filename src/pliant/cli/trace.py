"""`--trace FILE`: refused before anything runs where it cannot be written. Knows no verb."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from pliant.errors import InputError
from pliant.ir.cost import Span
from pliant.ir.program import Program
from pliant.run.trace import write_trace


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
    typer.Option(help="Write the last run as a Chrome trace (ui.perfetto.dev opens it).", callback=_writable),
]


def keep_trace(path: Path, program: Program, predicted: Sequence[Span], measured: Sequence[Span]) -> None:
    """Write both runs of `program` to `path`. Raises InputError where that fails after all."""
    try:
        write_trace(path, program, predicted=predicted, measured=measured)
    except OSError as error:
        raise _refusal(path, error) from error


def _refusal(path: Path, error: OSError) -> InputError:
    return InputError(
        f"the trace cannot be written to {path}: {error.strerror}. Name a file in a folder that is there."
    )
