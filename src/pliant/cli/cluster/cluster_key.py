"""`pliant cluster key`: make the key that all members hold."""

from pathlib import Path
from typing import Annotated

import typer

from pliant.cli.show import print_json
from pliant.cli.verb_options import Json


def key(
    path: Annotated[
        Path | None,
        typer.Argument(help="Where to write it.", show_default="where all verbs look for it"),
    ] = None,
    json: Json = False,
) -> None:
    """Make a new key; copy the file to every device that shall join, over a channel nobody else reads."""
    from pliant.cluster.net.key import default_path, make_key

    where = path or default_path()
    make_key(where)
    if json:
        print_json({"path": str(where)})
    else:
        typer.echo(f"{where}: copy it to every member of the cluster, and keep its mode at 0600.")
