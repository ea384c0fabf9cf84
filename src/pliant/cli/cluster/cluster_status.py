"""`pliant cluster status`: query a running primary."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from pliant.cli.cluster.cluster_options import KeyFile
from pliant.cli.shared.show import console, print_json
from pliant.cli.shared.verb_options import Json
from pliant.cluster.net.connect_members import PORT
from pliant.quantities import format_bytes, format_seconds

if TYPE_CHECKING:
    from pliant.cluster.lead.status_report import ClusterStatus, FaultStatus, MemberStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusArguments:
    """The options of `pliant cluster status`."""

    primary: Annotated[str, typer.Option(help="Address of the primary: HOST:PORT.")] = f"127.0.0.1:{PORT}"
    key: KeyFile = None
    patience: Annotated[str, typer.Option(help="How long to wait for the answer.")] = "5s"
    json: Json = False


def status(args: StatusArguments) -> None:
    """Show the members, the plan and the recent faults of a running primary."""
    from pliant.api.open_cluster import cluster_status

    found = cluster_status(args.primary, key=args.key, timeout=args.patience)
    if args.json:
        print_json(found)
    else:
        _show(found)


def _show(found: "ClusterStatus") -> None:
    typer.echo(
        f"{found.name} (pliant {found.version}, {found.engine}): "
        f"{'running' if found.is_running else 'idle'}, {found.n_runs} runs done, {found.n_failed} failed"
    )
    if found.plan is not None:
        partition = found.plan.partition
        typer.echo(
            f"plan: mode {partition.mode}, {partition.tokens} rows of {found.plan.model[:12]} on "
            f"{', '.join(partition.participants)}"
        )
    if found.members:
        console().print(_table(found.members))
    else:
        typer.echo("no worker joined")
    for fault in found.faults:
        typer.echo(_fault(fault))
    for problem in found.problems:
        typer.echo(f"refused: {problem}")


def _fault(fault: "FaultStatus") -> str:
    without = [f"{m} ({why})" for m, why in zip(fault.members, fault.reasons, strict=True)]
    return (
        f"{format_seconds(fault.ago_s)} ago segment {fault.segment} was repeated without "
        f"{'; '.join(without) or 'a member that reconnected at once'}"
    )


def _table(members: "tuple[MemberStatus, ...]") -> Table:
    table = Table("worker", "state", "contact", "free for models", "threads", "models", "faults", "pliant")
    for m in members:
        table.add_row(
            m.name,
            m.reason or "ready",
            f"{format_seconds(m.heard_s_ago)} ago",
            format_bytes(m.free_bytes),
            str(m.n_threads),
            ", ".join(model[:12] for model in m.models),
            str(m.n_faults),
            m.version,
        )
    return table
