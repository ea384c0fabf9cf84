"""Print predicted and measured spans as a table, and write them as a Chrome trace."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from pliant.ir.cost import Span, SpanState
from pliant.ir.program import Compute, Exchange, Load, Program, Work


def compare_table(program: Program, predicted: Sequence[Span], measured: Sequence[Span]) -> Table:
    """One row per step: its work, its predicted and its measured times, in milliseconds."""
    table = Table(title="predicted beside measured")
    for name in ("step", "lane"):
        table.add_column(name)
    table.add_column("work", overflow="ellipsis", max_width=44, no_wrap=True)
    for name in ("start", "predicted", "start", "measured", "ratio"):
        table.add_column(name + (" ms" if name != "ratio" else ""), justify="right")
    for step, before, after in zip(program.steps, predicted, measured, strict=True):
        ratio = f"{after.seconds / before.seconds:.2f}" if before.seconds else "-"
        took = f"{after.seconds * 1e3:.3f}" if after.state is SpanState.RAN else after.state.value
        table.add_row(
            str(before.step), step.lane, work_name(step.work),
            f"{before.start_s * 1e3:.3f}", f"{before.seconds * 1e3:.3f}",
            f"{after.start_s * 1e3:.3f}", took, ratio if after.state is SpanState.RAN else "-",
        )  # fmt: skip
    return table


def perfetto_trace(program: Program, **runs: Sequence[Span]) -> dict[str, Any]:
    """Chrome trace events (ui.perfetto.dev opens them): one process for each of `runs`, one thread a lane.

    >>> from pliant.ir.program import Compute, Program, Segment, Step
    >>> program = Program((Segment((Step("cpu", Compute("head")),)),))
    >>> trace = perfetto_trace(program, measured=[Span(0, "cpu", 0.0, 0.001)])
    >>> trace["traceEvents"][-1]["dur"]
    1000.0
    """
    events: list[dict[str, object]] = []
    steps = program.steps
    for pid, (name, spans) in enumerate(runs.items(), start=1):
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
        threads = {lane: tid for tid, lane in enumerate(program.lanes, start=1)}
        for lane, tid in threads.items():
            args = {"name": lane}
            events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": args})
        for span in spans:
            if span.state is SpanState.SKIPPED:
                continue
            events.append({
                "ph": "X", "name": work_name(steps[span.step].work), "cat": span.lane,
                "pid": pid, "tid": threads[span.lane],
                "ts": span.start_s * 1e6, "dur": span.seconds * 1e6,
                "args": {"step": span.step, "work": str(steps[span.step].work), "state": span.state.value},
            })  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_trace(path: Path, program: Program, **runs: Sequence[Span]) -> None:
    """Write `perfetto_trace` as JSON."""
    path.write_text(json.dumps(perfetto_trace(program, **runs)), encoding="utf-8")


def work_name(work: Work) -> str:
    """A short name for a row or a box: `layer 3`, `load 3: plane 0, plane 1`."""
    match work:
        case Compute(kernel=kernel, layer=layer):
            return kernel if layer is None else f"{kernel} {layer}"
        case Load(layer=layer, runs=runs):
            parts = dict.fromkeys("full" if run.part == 6 else str(run.part) for run in runs)
            return f"load {layer}: plane {' '.join(parts)}"
        case Exchange(tensor=tensor, src=src, dst=dst):
            return f"{tensor} {src}->{dst}"
