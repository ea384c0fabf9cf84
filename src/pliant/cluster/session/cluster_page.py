"""A cluster's plan as a readable page: as text, and as HTML for notebooks."""

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from pliant.cluster.session.partition_plot import partition_svg
from pliant.ir.text.table_text import table_html, table_lines
from pliant.ir.text.timeline_text import timeline_text
from pliant.plan.plan_figure import can_draw
from pliant.quantities import format_bytes, format_seconds

if TYPE_CHECKING:  # avoids a cycle: ClusterPlan prints itself with this module
    from pliant.cluster.session.cluster_plan import ClusterPlan

_COLUMNS = ("device", "heads", "rows", "columns", "weights")
_TIMELINE = "predicted timeline, by layer:"


def cluster_page(plan: "ClusterPlan") -> str:
    """Return mode and times, each device's share and weights, the predicted timeline, misfits and reasons."""
    lines = [
        *_summary(plan),
        "",
        *table_lines((_COLUMNS, *_rows(plan)), left=0),
        "",
        _TIMELINE,
        *timeline_text(plan.program, plan.spans).splitlines(),
    ]
    if plan.misfits or plan.reasons:
        lines += ["", "why:", *(f"  ! {line}" for line in plan.misfits), *(f"  - {x}" for x in plan.reasons)]
    return "\n".join(lines) + "\n"


def cluster_html(plan: "ClusterPlan") -> str:
    """Return the page as HTML: the timeline as inline SVG if matplotlib is installed, else as text."""
    summary = "<br>".join(map(escape, _summary(plan)))
    timeline = (
        partition_svg(plan)
        if can_draw()
        else f"<p>{_TIMELINE}</p><pre>{escape(timeline_text(plan.program, plan.spans))}</pre>"
    )
    reasons = "".join(f"<li>{escape(line)}</li>" for line in (*plan.misfits, *plan.reasons))
    return f"<div><p>{summary}</p>{table_html((_COLUMNS, *_rows(plan)))}{timeline}<ul>{reasons}</ul></div>"


def _summary(plan: "ClusterPlan") -> Iterator[str]:
    deadline = "" if plan.deadline_s is None else f" of {format_seconds(plan.deadline_s)}"
    late = ", which it MISSES: no plan that was found is quicker" if plan.met is False else ""
    yield f"mode: {plan.mode}"
    if plan.partition.bits:
        yield f"weights: in codes, bits by layer: {' '.join(map(str, plan.partition.bits))}"
    yield (
        f"time: {format_seconds(plan.predicted_s)} predicted{deadline}{late}; 95 of 100 runs within "
        f"{format_seconds(plan.bound_s)}; {format_seconds(plan.layer_s)} a layer"
    )


def _rows(plan: "ClusterPlan") -> Iterator[tuple[str, ...]]:
    for share in plan.partition.shares:
        weights = format_bytes(plan.weight_bytes.get(share.device, 0))
        yield share.device, str(share.heads), str(share.rows), str(share.columns), weights
