"""A plan as a picture: bits, AIBs, predicted timeline. Imports matplotlib on first use."""

from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from pliant.errors import InputError
from pliant.ir.bitwidths import FULL_BITS
from pliant.ir.program import Compute, Load, Work
from pliant.plan.plan import Plan

_COLUMN_OF_BITS = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, FULL_BITS: 7}


def draw_plan(plan: Plan, path: Path) -> None:
    """Write `plan` to `path`, as SVG, PNG or PDF by its suffix.

    Raises InputError if matplotlib is not installed or the suffix is unsupported.
    """
    if path.suffix not in (".svg", ".png", ".pdf"):
        raise InputError(f"a picture ends in .svg, .png or .pdf, not {path.name!r}.")
    if not can_draw():
        raise InputError("drawing needs matplotlib: pip install 'pliant[plot]'.")
    _figure(plan).savefig(path)


def plan_svg(plan: Plan) -> str:
    """Return `plan` as an `<svg>` element to embed in a page. Needs matplotlib (see `can_draw`)."""
    return figure_svg(_figure(plan))


def figure_svg(figure: Any) -> str:
    """Return a matplotlib figure as an `<svg>` element."""
    written = StringIO()
    figure.savefig(written, format="svg")
    text = written.getvalue()
    return text[text.index("<svg") :]  # no XML declaration, which must begin a document


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def _figure(plan: Plan) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 7), layout="constrained")
    grid, aib, lanes = figure.subplot_mosaic([["grid", "aib"], ["lanes", "lanes"]]).values()
    target_s = plan.budget.requested_s
    target = "" if target_s is None else f" of {target_s * 1e3:.1f} ms"
    figure.suptitle(
        f"{plan.name}: {plan.n}x{plan.width}, predicted {plan.latency_s * 1e3:.1f} ms{target}, "
        f"{plan.memory.preload_bytes / 1e3:.0f} KB preloaded"
    )
    _draw_bits(grid, plan)
    _draw_aibs(aib, plan)
    _draw_lanes(lanes, plan)
    return figure


def _draw_bits(axes: Any, plan: Plan) -> None:
    shade = np.array([[_COLUMN_OF_BITS[b] for b in row] for row in plan.bits])
    axes.imshow(shade, cmap="viridis", vmin=0, vmax=7, aspect="auto")
    for k, (row, held) in enumerate(zip(plan.bits, plan.held, strict=True)):
        for s, (bits, planes) in enumerate(zip(row, held, strict=True)):
            text = f"{bits}" + (f"\n({planes})" if planes else "")
            axes.text(
                s, k, text, ha="center", va="center", fontsize=7, color="black" if bits > 4 else "white"
            )
    axes.set(title="bits of each shard (held before the run)", xlabel="slice", ylabel="layer")
    axes.set_xticks(range(plan.width))
    axes.set_yticks(range(plan.n), labels=[str(layer) for layer in plan.layers])


def _draw_aibs(axes: Any, plan: Plan) -> None:
    at = np.arange(plan.n)
    axes.barh(at - 0.2, np.array(plan.aib_start_s) * 1e3, 0.4, label="before debits, preload bonus included")
    axes.barh(at + 0.2, np.array(plan.aib_s) * 1e3, 0.4, label="left")
    axes.set(title="accumulated IO budgets", xlabel="ms", ylabel="layer")
    axes.set_yticks(at, labels=[str(layer) for layer in plan.layers])
    axes.invert_yaxis()
    axes.legend(fontsize=7)


def _draw_lanes(axes: Any, plan: Plan) -> None:
    steps = plan.program.steps
    rows = {"io": 0, "cpu": 1}
    for span in plan.spans:
        work = steps[span.step].work
        axes.barh(
            rows[span.lane], span.seconds * 1e3, 0.8, span.start_s * 1e3,
            color=f"C{_layer(work) % 10}", edgecolor="white", linewidth=0.4,
        )  # fmt: skip
        if isinstance(work, Compute) and work.layer is not None:
            middle_ms = (span.start_s + span.end_s) * 5e2
            axes.text(middle_ms, 1, str(work.layer), ha="center", va="center", color="white", fontsize=8)
    title, target_s = "predicted timeline", plan.budget.requested_s
    if target_s is not None:
        deadline_ms = (target_s - (plan.latency_s - max(s.end_s for s in plan.spans))) * 1e3
        axes.axvline(deadline_ms, color="black", linestyle="--", linewidth=1)
        title += " (dashed: target)"
    axes.set(title=title, xlabel="ms from the end of tokenising")
    axes.set_yticks(list(rows.values()), labels=list(rows))


def _layer(work: Work) -> int:
    match work:
        case Compute(layer=int(layer)) | Load(layer=layer):
            return layer
        case _:
            return 9
