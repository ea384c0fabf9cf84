"""A cluster's plan as a picture: the predicted timeline, one row per device and link."""

from typing import TYPE_CHECKING, Any

from pliant.ir.cost import SpanState
from pliant.ir.program import Compute, Load, Work
from pliant.plan.plan_figure import figure_svg

if TYPE_CHECKING:  # avoids a cycle: ClusterPlan shows itself with this module
    from pliant.cluster.session.cluster_plan import ClusterPlan


def partition_svg(plan: "ClusterPlan") -> str:
    """Return `plan` as an `<svg>` element for a page. Needs matplotlib (see `plan.plan_figure.can_draw`)."""
    return figure_svg(_figure(plan))


def _figure(plan: "ClusterPlan") -> Any:
    from matplotlib.figure import Figure

    lanes = plan.program.lanes
    figure = Figure(figsize=(12, 1.5 + 0.35 * len(lanes)), layout="constrained")
    axes = figure.subplots()
    rows, steps = {lane: i for i, lane in enumerate(lanes)}, plan.program.steps
    for span in plan.spans:
        if span.state is not SpanState.SKIPPED:
            axes.barh(
                rows[span.lane], span.seconds * 1e3, 0.8, span.start_s * 1e3,
                color=_color(steps[span.step].work), edgecolor="white", linewidth=0.3,
            )  # fmt: skip
    if plan.deadline_s is not None:
        axes.axvline(plan.deadline_s * 1e3, color="black", linestyle="--", linewidth=1)
    axes.set(title=f"predicted timeline, mode {plan.mode} (a color for each layer)", xlabel="ms")
    axes.set_yticks(list(rows.values()), labels=list(rows))
    axes.invert_yaxis()
    return figure


def _color(work: Work) -> str:
    match work:
        case Compute(layer=int(layer)) | Load(layer=layer):
            return f"C{layer % 10}"
        case _:
            return "gray"
