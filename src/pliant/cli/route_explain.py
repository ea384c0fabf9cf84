"""`pliant route explain`: the endpoint that a node would choose now, and the reason."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pliant.cli.shared.show import print_json
from pliant.cli.shared.verb_options import Json
from pliant.quantities import parse_seconds
from pliant.route.choice.request_terms import Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainArguments:
    """The options of `pliant route explain`."""

    length: Annotated[int, typer.Option(help="Length of the input, in the model's items (tokens).", min=0)]
    deadline: Annotated[
        str | None, typer.Option(help="Deadline of the request, such as 30ms.", show_default="the node's")
    ] = None
    floor: Annotated[
        float | None,
        typer.Option(help="Accuracy floor of the request, 0 to 1.", min=0, max=1, show_default="the node's"),
    ] = None
    objective: Annotated[
        str | None,
        typer.Option(help="Objective of the request: time, energy, or mix:0.3.", show_default="the node's"),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(help="Name of the model, if the node serves several.", show_default="the first one"),
    ] = None
    node: Annotated[str, typer.Option(help="URL of the node.")] = "http://127.0.0.1:8080"
    token_file: Annotated[
        Path | None,
        typer.Option(help="File of an operator's token, if the node requires one; its first token is sent."),
    ] = None
    ca: Annotated[
        Path | None, typer.Option(help="CA certificates to verify the node with.", show_default="system")
    ] = None
    json: Json = False


def explain(args: ExplainArguments) -> None:
    """Show the endpoint that a node would choose now for an input, its estimates, and the reason."""
    from pliant.serve.access.security import Tls, read_tokens
    from pliant.serve.node.start_node import request_explanation  # needs the extra; the help does not

    token = None if args.token_file is None else read_tokens(args.token_file)[0]
    deadline_s = None if args.deadline is None else parse_seconds(args.deadline)
    terms = Terms(deadline_s, args.floor)
    tls = Tls(ca=args.ca).client()
    found = request_explanation(
        args.node, args.length, token, tls, terms, args.model, objective=args.objective
    )
    if args.json:
        print_json(found)
        return
    typer.echo(found)
