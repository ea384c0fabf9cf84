"""`pliant cluster status`: who joined, and what they bring."""

from typing import TYPE_CHECKING

import typer
from rich.table import Table

from pliant.cli.cluster_options import Led, leading
from pliant.cli.options import Json
from pliant.cli.show import console, print_json
from pliant.quantities import format_bytes, format_seconds

if TYPE_CHECKING:
    from pliant.clustered import MemberStatus


@leading
def status(led: Led, json: Json = False) -> None:
    """Wait for workers, then list them."""
    with led.open() as cluster:
        members, problems = cluster.status(), cluster.problems
    if json:
        print_json(members)
        return
    if members:
        console().print(_table(members))
    else:
        typer.echo("no worker joined")
    for problem in problems:
        typer.echo(f"turned away: {problem}")


def _table(members: "tuple[MemberStatus, ...]") -> Table:
    table = Table("worker", "state", "heard", "free for models", "threads", "models", "faults")
    for m in members:
        table.add_row(
            m.name,
            m.reason or "ready",
            f"{format_seconds(m.heard_s_ago)} ago",
            format_bytes(m.free_bytes),
            str(m.n_threads),
            ", ".join(model[:12] for model in m.models),
            str(m.n_faults),
        )
    return table
