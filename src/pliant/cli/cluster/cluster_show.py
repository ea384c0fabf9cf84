"""Show plans and replies of a cluster on the terminal and as JSON."""

from typing import TYPE_CHECKING, Any

import typer

from pliant.cli.shared.show import console
from pliant.cluster.lead.run_log import Fault
from pliant.ir.reply import Reply
from pliant.ir.text.reply_text import answer_text, time_text
from pliant.ir.text.timeline_text import timeline_text
from pliant.quantities import format_bytes, format_seconds
from pliant.run.trace import compare_table

if TYPE_CHECKING:  # they need pyzmq, which a verb's help must not
    from pliant.cluster.session.cluster_details import ClusterDetails
    from pliant.cluster.session.cluster_plan import ClusterPlan


def show_reply(reply: "Reply[ClusterDetails]", text: str, *, is_truncated: bool = False) -> None:
    """Print three lines: the answer; its time and the prediction; mode and devices. One more line for each
    change of plan and each fault during the run."""
    details = reply.details
    cut = ", truncated to the model's limit" if is_truncated else ""
    typer.echo(f"{answer_text(reply)}  <- {text}")
    typer.echo(
        f"  {time_text(reply)}, {format_seconds(details.run_s)} of it the run, "
        f"{format_seconds(details.predicted_s)} predicted; {reply.length} rows{cut}"
    )
    typer.echo(
        f"  mode {details.mode} on {', '.join(details.partitions[-1].participants)}; exchanged "
        f"{format_bytes(details.sent_bytes)}"
    )
    for switch in details.switches:
        typer.echo(f"  new plan from segment {switch.segment}: {switch.reason}")
    for fault in details.faults:
        typer.echo(f"  {fault_text(fault)}")


def show_steps(reply: "Reply[ClusterDetails]") -> None:
    """Print when every device computed and sent, predicted and measured; one row a step."""
    details = reply.details
    typer.echo("predicted timeline:")
    typer.echo(timeline_text(details.program, details.predicted_spans), nl=False)
    typer.echo("measured timeline:")
    typer.echo(timeline_text(details.program, details.spans), nl=False)
    console().print(compare_table(details.program, details.predicted_spans, details.spans))


def fault_text(fault: Fault) -> str:
    """Return one line with the segment, the excluded members and the delays."""
    who = "; ".join(f"{v.member} ({v.reason})" for v in fault.verdicts) or "a member that reconnected at once"
    return (
        f"segment {fault.segment} repeated without {who}: noticed after {format_seconds(fault.noticed_s)}, "
        f"new plan after {format_seconds(fault.planned_s)}"
    )


def plan_values(plan: "ClusterPlan") -> dict[str, Any]:
    """Return a plan for JSON."""
    return {
        "mode": plan.mode,
        "partition": plan.partition,
        "predicted_s": plan.predicted_s,
        "bound_s": plan.bound_s,
        "layer_s": plan.layer_s,
        "deadline_s": plan.deadline_s,
        "met": plan.met,
        "weight_bytes": dict(plan.weight_bytes),
        "misfits": plan.misfits,
        "reasons": plan.reasons,
    }


def reply_values(reply: "Reply[ClusterDetails]") -> dict[str, Any]:
    """Return a reply for JSON; `predicted_s` is the prediction of `run_s`."""
    details = reply.details
    return {
        "answer": next(iter(reply.outputs.values()))[0].tolist(),
        "label": reply.label,
        "seconds": reply.seconds,
        "run_s": details.run_s,
        "predicted_s": details.predicted_s,
        "n_tokens": reply.length,
        "mode": details.mode,
        "partition": details.partitions[-1],
        "participants": details.partitions[-1].participants,
        "switches": details.switches,
        "faults": details.faults,
        "sent_bytes": details.sent_bytes,
    }
