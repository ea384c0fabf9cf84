"""A cluster's plan as a page that a person reads."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pliant.ir.table_text import table_lines
from pliant.ir.timeline_text import timeline_text
from pliant.quantities import format_bytes, format_seconds

if TYPE_CHECKING:  # which prints itself by this module
    from pliant.api.open_cluster import ClusterPlan

_COLUMNS = ("device", "heads", "rows", "columns", "weights")


def cluster_page(plan: "ClusterPlan") -> str:
    """Mode and times, each device's share and weights, the predicted timeline, misfits and reasons."""
    deadline = "" if plan.deadline_s is None else f" of {format_seconds(plan.deadline_s)}"
    late = ", which it MISSES: no plan that was found is quicker" if plan.met is False else ""
    lines = [
        f"mode: {plan.mode}",
        f"time: {format_seconds(plan.predicted_s)} predicted{deadline}{late}; {format_seconds(plan.layer_s)} "
        "a layer",
        "",
        *table_lines((_COLUMNS, *_rows(plan)), left=0),
        "",
        "predicted timeline, by layer:",
        *timeline_text(plan.program, plan.spans).splitlines(),
    ]
    if plan.misfits or plan.reasons:
        lines += ["", "why:", *(f"  ! {line}" for line in plan.misfits), *(f"  - {x}" for x in plan.reasons)]
    return "\n".join(lines) + "\n"


def _rows(plan: "ClusterPlan") -> Iterator[tuple[str, ...]]:
    for share in plan.partition.shares:
        weights = format_bytes(plan.weight_bytes.get(share.device, 0))
        yield share.device, str(share.heads), str(share.rows), str(share.columns), weights
