"""Show progress bars, tables and JSON on the terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from pliant.api.open_elastic import OnProgress


@contextmanager
def progress_bar() -> Iterator[OnProgress]:
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


def print_json(value: Any) -> None:
    """One line of JSON; dataclasses become objects."""
    typer.echo(msgspec.json.encode(value).decode())


def console() -> Console:
    """Standard output: as wide as the terminal, and never too narrow for a table in a pipe."""
    return Console() if sys.stdout.isatty() else Console(width=132)
