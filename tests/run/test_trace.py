"""Traces say what ran, where and when, in a form that Perfetto reads."""

import json
from pathlib import Path

from rich.console import Console

from pliant.ir.cost import Span, SpanState
from pliant.ir.program import Compute, Load, Program, Segment, SliceRun, Step
from pliant.ir.text.timeline_text import timeline_text
from pliant.run.trace import compare_table, perfetto_trace, write_trace

LOAD = Load(3, (SliceRun(3, 0, 0, 12), SliceRun(3, 6, 1, 1)), 100)
PROGRAM = Program(
    (Segment((Step("io", LOAD), Step("io", LOAD), Step("cpu", Compute("layer", 3, 12), (0,)))),)
)
PREDICTED = (Span(0, "io", 0.0, 0.002), Span(1, "io", 0.002, 0.004), Span(2, "cpu", 0.004, 0.008))
MEASURED = (
    Span(0, "io", 0.0, 0.003),
    Span(1, "io", 0.003, 0.003, SpanState.SKIPPED),
    Span(2, "cpu", 0.004, 0.010),
)


def test_the_trace_has_a_process_each_and_a_thread_for_each_lane(tmp_path: Path) -> None:
    """Predicted beside measured in ui.perfetto.dev: microseconds, skipped steps left out."""
    write_trace(tmp_path / "t.json", PROGRAM, predicted=PREDICTED, measured=MEASURED)
    trace = json.loads((tmp_path / "t.json").read_text())
    assert trace == perfetto_trace(PROGRAM, predicted=PREDICTED, measured=MEASURED)
    events = trace["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {1: "predicted", 2: "measured"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert threads == {(1, 1): "io", (1, 2): "cpu", (2, 1): "io", (2, 2): "cpu"}
    boxes = [(e["pid"], e["tid"], e["ts"], round(e["dur"], 6)) for e in events if e["ph"] == "X"]
    assert boxes == [
        (1, 1, 0, 2000),
        (1, 1, 2000, 2000),
        (1, 2, 4000, 4000),
        (2, 1, 0, 3000),
        (2, 2, 4000, 6000),
    ]


def test_the_table_puts_both_times_and_their_ratio_in_one_row() -> None:
    """The first question about a plan is how wrong it was."""
    console = Console(width=150)
    with console.capture() as capture:
        console.print(compare_table(PROGRAM, PREDICTED, MEASURED))
    text = capture.get()
    row = next(line for line in text.splitlines() if "layer 3" in line)
    assert [cell for cell in row.replace("│", " ").split() if cell[0].isdigit()] == [
        "2", "3", "4.000", "4.000", "4.000", "6.000", "1.50",
    ]  # fmt: skip
    assert "skipped" in text
    assert "load 3: plane 0 full" in text


def test_the_timeline_draws_each_step_for_as_long_as_it_ran() -> None:
    """A picture for the terminal: the layer's number while it loads and while it computes."""
    assert timeline_text(PROGRAM, MEASURED, 10) == (
        "      io |333       |\n     cpu |    333333|\n      ms |0    10.00|\n"
    )
    assert timeline_text(Program(()), ()) == "(nothing ran)\n"


def test_lanes_of_a_cluster_stand_under_each_other() -> None:
    """Their names are longer than those of one device's lanes."""
    steps = (Step("net:primary->kitchen", Compute("head")), Step("cpu", Compute("head")))
    spans = [Span(0, "net:primary->kitchen", 0.0, 0.5), Span(1, "cpu", 0.5, 1.0)]
    text = timeline_text(Program((Segment(steps),)), spans, 10)
    assert {line.index("|") for line in text.splitlines()} == {21}
