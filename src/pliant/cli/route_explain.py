"""`pliant route explain`: what a node would choose now, and why."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pliant.cli.shared.show import console, print_json
from pliant.cli.shared.verb_options import Json
from pliant.quantities import format_bytes, format_seconds, parse_seconds
from pliant.route.terms import Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainArguments:
    """The options of `pliant route explain`."""

    length: Annotated[int, typer.Option(help="Length of the input, in the model's items (tokens).", min=0)]
    deadline: Annotated[
        str | None, typer.Option(help="When the answer is due, such as 30ms.", show_default="the node's")
    ] = None
    floor: Annotated[
        float | None,
        typer.Option(help="The least accuracy, 0 to 1.", min=0, max=1, show_default="the node's"),
    ] = None
    node: Annotated[str, typer.Option(help="The node to ask.")] = "http://127.0.0.1:8080"
    token_file: Annotated[Path | None, typer.Option(help="The file whose first token to show it.")] = None
    ca: Annotated[
        Path | None, typer.Option(help="What its certificate is held against.", show_default="system")
    ] = None
    json: Json = False


def explain(args: ExplainArguments) -> None:
    """Say where a node would have an input of some length answered now, and what it knows of each way."""
    from rich.table import Table

    from pliant.serve.http.security import Tls, read_tokens
    from pliant.serve.node.start_node import ask_explanation  # needs the extra; the help does not

    token = None if args.token_file is None else read_tokens(args.token_file)[0]
    deadline_s = None if args.deadline is None else parse_seconds(args.deadline)
    terms = Terms(deadline_s, args.floor)
    found = ask_explanation(args.node, args.length, token, Tls(ca=args.ca).client(), terms)
    if args.json:
        print_json(found)
        return
    table = Table(title=f"{found.node}, an input of length {args.length}", title_justify="left")
    has_power = any(row.energy_j for row in found.candidates)
    seconds = ("way or waiting", "answer", "total", "95 % within", "round trip")
    for name in ("", "target", "accuracy", *seconds, "bandwidth", "heard", "why not"):
        table.add_column(name)
    if has_power:
        table.add_column("energy")
    for row in found.candidates:
        table.add_row(
            "->" if row.is_chosen else "",
            row.target if row.node in (None, found.node) else f"{row.target} ({row.node})",
            "" if row.accuracy is None else f"{row.accuracy:.4g}",
            *map(_seconds, (row.transfer_s, row.answer_s, row.total_s, row.bound_s, row.rtt_s)),
            "" if row.bandwidth_Bps is None else f"{format_bytes(row.bandwidth_Bps)}/s",
            "" if row.age_s is None else f"{format_seconds(row.age_s)} ago",
            row.reason or _CONSTRAINTS.get(row.constraint or "", ""),
            *(["" if row.energy_j is None else f"{row.energy_j:.3g} J"] if has_power else []),
        )
    console().print(table)
    typer.echo(found.reason if found.target is None else f"{found.target}: {found.reason}.")


_CONSTRAINTS = {"floor": "is less accurate than the floor", "deadline": "is later than the deadline"}


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else format_seconds(seconds)
