"""A plan as a readable page: as text, and as HTML for notebooks."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from pliant.ir.text.table_text import table_html, table_lines
from pliant.ir.text.timeline_text import timeline_text
from pliant.plan.plan import Plan
from pliant.plan.plan_figure import can_draw, plan_svg
from pliant.quantities import format_bytes, format_seconds

_COLUMNS = ("layer", "bits of its slices", "reads", "AIB before", "after")
_BITS = "bits: `6*` all planes in memory before the run, `6(2)` two of them, `6` none; the others are read."
_AIB = "AIB: accumulated IO budget, the IO time left up to a layer, before and after what it reads."


def plan_page(plan: Plan) -> str:
    """Return the page: submodel, times, memory, accuracy; each layer's bits and reads; timeline; reasons.

    Equal plans give equal text.
    """
    lines = [
        *_summary(plan),
        "",
        *table_lines(tuple(_table(plan)), left=1),
        *(f"  {line}" for line in _legend(plan)),
        "",
    ]
    lines += ["predicted timeline, by layer (* is embedding and head):", *_timeline(plan), "", "why:"]
    lines += [f"  - {reason}" for reason in plan.reasons]
    return "\n".join(lines) + "\n"


def plan_html(plan: Plan) -> str:
    """Return the page as HTML: a picture as inline SVG with matplotlib, else table and timeline."""
    summary = "<br>".join(map(escape, _summary(plan)))
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in plan.reasons)
    shown = plan_svg(plan) if can_draw() else _html_table(plan)
    return f"<div><p>{summary}</p>{shown}<ul>{reasons}</ul></div>"


def _summary(plan: Plan) -> Iterator[str]:
    memory, budget = plan.memory, plan.budget
    yield (
        f"submodel: {plan.n} of {plan.shape.n_layers} layers x {plan.width} of {plan.shape.n_slices} slices "
        f"(planner: {plan.name})"
    )
    target = "" if budget.requested_s is None else f" of {format_seconds(budget.requested_s)}"
    yield (
        f"time: {format_seconds(plan.latency_s)} predicted{target}"
        f"{'' if plan.meets_target else ', which it MISSES'}; 95 of 100 answers within "
        f"{format_seconds(plan.latency_p95_s)}"
    )
    yield (
        f"  compute {format_seconds(plan.compute_s)}, IO {format_seconds(plan.io_s)}, of which compute waits "
        f"for {format_seconds(plan.wait_s)}"
    )
    interval = plan.accuracy_interval
    if plan.expected_accuracy is not None and interval is not None:
        yield (
            f"accuracy: {100 * plan.expected_accuracy:.1f} % expected (95 % interval "
            f"{100 * interval.low:.1f} to {100 * interval.high:.1f} %)"
        )
    limit = budget.working_bytes
    most = "" if limit is None else f"at most {format_bytes(limit)}, "
    yield (
        f"memory: weights {format_bytes(memory.weight_bytes)}: {format_bytes(memory.preload_bytes)} of "
        f"{format_bytes(budget.preload_bytes)} preloaded, {format_bytes(memory.working_bytes)} working "
        f"({most}window of {plan.window} layers); activations {format_bytes(memory.arena_bytes)}"
    )
    if memory.fixed_bytes:
        within = "" if budget.memory_bytes is None else f" of {format_bytes(budget.memory_bytes)}"
        yield (
            f"  codebooks, embeddings and head {format_bytes(memory.fixed_bytes)}; in all "
            f"{format_bytes(memory.total_bytes)}{within}"
        )


def _table(plan: Plan) -> Iterator[tuple[str, ...]]:
    """Yield the column names, then the cells of each layer. Without a target there is no IO budget."""
    budgets = () if plan.budget.requested_s is None else (plan.aib_start_s, plan.aib_s)
    yield _COLUMNS[: 3 + len(budgets)]
    for k, layer in enumerate(plan.layers):
        yield (
            str(layer),
            _bits(plan.bits[k], plan.held[k]),
            format_bytes(plan.load_bytes(k)),
            *(f"{budget[k] * 1e3:.2f} ms" for budget in budgets),
        )


def _legend(plan: Plan) -> tuple[str, ...]:
    return (_BITS,) if plan.budget.requested_s is None else (_BITS, _AIB)


def _timeline(plan: Plan) -> list[str]:
    return timeline_text(plan.program, plan.spans).splitlines()


def _html_table(plan: Plan) -> str:
    legend = "<br>".join(map(escape, _legend(plan)))
    timeline = escape("\n".join(_timeline(plan)))
    return f"{table_html(tuple(_table(plan)))}<p>{legend}</p><pre>{timeline}</pre>"


def _bits(bits: Sequence[int], held: Sequence[int]) -> str:
    """Return `3 x 32, 2 x 6(2), 6*`: consecutive equal slices are counted."""
    cells = [_cell(b, h) for b, h in zip(bits, held, strict=True)]
    counts = [(cell, len(list(same))) for cell, same in groupby(cells)]
    return ", ".join(cell if n == 1 else f"{n} x {cell}" for cell, n in counts)


def _cell(bits: int, held: int) -> str:
    """Return `6(2)` for 6 bits with 2 planes held, `6*` with all planes held, `6` with all planes read."""
    if held >= bits:
        return f"{bits}*"
    return f"{bits}({held})" if held else f"{bits}"
