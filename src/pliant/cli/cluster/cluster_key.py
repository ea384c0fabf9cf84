"""`pliant cluster key`: make the key that all members share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pliant.cli.shared.show import print_json
from pliant.cli.shared.verb_options import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyArguments:
    """The options of `pliant cluster key`."""

    path: Annotated[
        Path | None,
        typer.Argument(help="File to write.", show_default="where all commands look for it"),
    ] = None
    json: Json = False


def key(args: KeyArguments) -> None:
    """Make a new key. Copy the file to every device of the cluster, over a secure channel."""
    from pliant.cluster.net.key import default_path, make_key

    where = args.path or default_path()
    make_key(where)
    if args.json:
        print_json({"path": str(where)})
    else:
        typer.echo(f"{where}: copy it to every member of the cluster, and keep its mode at 0600.")
