"""Show plans and replies of a cluster on the terminal and as JSON."""

from typing import TYPE_CHECKING, Any

import typer

from pliant.cluster.lead.run_log import Fault
from pliant.ir.timeline_text import timeline_text
from pliant.quantities import format_bytes, format_seconds

if TYPE_CHECKING:
    from pliant.api.open_cluster import ClusterPlan, ClusterReply


def show_reply(reply: "ClusterReply") -> None:
    """The answer, its time beside the prediction, and what happened on the way."""
    if reply.label is not None:
        typer.echo(f"{reply.label}")
    else:
        head = ", ".join(f"{x:.4f}" for x in reply.answer.reshape(-1)[:4])
        typer.echo(f"answer {list(reply.answer.shape)}: [{head}, ...]")
    partition = reply.partitions[-1]
    typer.echo(
        f"  {format_seconds(reply.seconds)}, predicted {format_seconds(reply.predicted_s)}; "
        f"{reply.n_tokens} rows, mode {reply.mode} on {', '.join(partition.participants)}; "
        f"exchanged {format_bytes(reply.sent_bytes)}"
    )
    for switch in reply.switches:
        typer.echo(f"  new plan from segment {switch.segment}: {switch.reason}")
    for fault in reply.faults:
        typer.echo(f"  {fault_text(fault)}")


def show_timeline(reply: "ClusterReply") -> None:
    """When every device computed and sent, predicted and measured."""
    typer.echo("predicted timeline:")
    typer.echo(timeline_text(reply.program, reply.predicted_spans), nl=False)
    typer.echo("measured timeline:")
    typer.echo(timeline_text(reply.program, reply.spans), nl=False)


def fault_text(fault: Fault) -> str:
    """One line: where, without whom, and how long it took."""
    who = "; ".join(f"{v.member} ({v.reason})" for v in fault.verdicts) or "a member that was back at once"
    return (
        f"segment {fault.segment} repeated without {who}: noticed after {format_seconds(fault.noticed_s)}, "
        f"new plan after {format_seconds(fault.planned_s)}"
    )


def plan_values(plan: "ClusterPlan") -> dict[str, Any]:
    """A plan for machines."""
    return {
        "mode": plan.mode,
        "partition": plan.partition,
        "predicted_s": plan.predicted_s,
        "layer_s": plan.layer_s,
        "deadline_s": plan.deadline_s,
        "met": plan.met,
        "weight_bytes": dict(plan.weight_bytes),
        "misfits": plan.misfits,
        "reasons": plan.reasons,
    }


def reply_values(reply: "ClusterReply") -> dict[str, Any]:
    """A reply for machines."""
    return {
        "answer": reply.answer.tolist(),
        "label": reply.label,
        "seconds": reply.seconds,
        "predicted_s": reply.predicted_s,
        "n_tokens": reply.n_tokens,
        "mode": reply.mode,
        "partition": reply.partitions[-1],
        "participants": reply.partitions[-1].participants,
        "switches": reply.switches,
        "faults": reply.faults,
        "sent_bytes": reply.sent_bytes,
    }
