"""Show messages, progress bars, tables and JSON on the terminal."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from pliant.serve.telemetry.log_lines import logs_json

if TYPE_CHECKING:  # it imports the engine, which an error message must not need
    from pliant.api.open_elastic import OnProgress

_LOG = logging.getLogger("pliant.cli")


@contextmanager
def progress_bar() -> "Iterator[OnProgress]":
    """Draws on stderr, if that is a terminal, while the context is open, from the first report on."""
    stderr = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=stderr,
        transient=True,
        disable=not stderr.is_terminal,
    ) as progress:
        tasks: dict[str, TaskID] = {}

        def on_progress(what: str, done: int, total: int) -> None:
            kind = what.partition(":")[0]
            if kind not in tasks:
                tasks[kind] = progress.add_task(what, total=total)
            progress.update(tasks[kind], description=what, completed=done, total=total)

        yield on_progress


def say(text: str, level: int = logging.INFO) -> None:
    """Print a message on stderr, separate from the command's output: a log line where log lines are JSON."""
    if logs_json():
        _LOG.setLevel(logging.INFO)
        _LOG.log(level, text)
    else:
        with suppress(OSError):  # nobody reads it any more: a terminal was closed, a disk is full
            typer.echo(f"pliant: {text}", err=True)


def print_json(value: Any) -> None:
    """One line of JSON; dataclasses become objects."""
    typer.echo(msgspec.json.encode(value).decode())


def console() -> Console:
    """Standard output: as wide as the terminal, and never too narrow for a table in a pipe."""
    return Console() if sys.stdout.isatty() else Console(width=132)
