"""Spans of a program as a text timeline, for people."""

from collections.abc import Sequence

from pliant.ir.cost import Span, SpanState
from pliant.ir.program import Compute, Load, Program, Work


def timeline_text(program: Program, spans: Sequence[Span], columns: int = 72) -> str:
    """Return one line per lane, time to the right; a step is a run of its layer's number, a blank is a wait.

    A mark belongs to the step that held its lane for most of that column's time.
    """
    end_s = max((s.end_s for s in spans), default=0.0)
    if not end_s:
        return "(nothing ran)\n"
    steps = program.steps
    lines = []
    width = max(8, *map(len, program.lanes))
    for lane in program.lanes:
        cells = [" "] * columns
        held_s = [0.0] * columns
        for span in spans:
            if span.lane == lane and span.state is not SpanState.SKIPPED:
                _paint(cells, held_s, span, end_s, _mark(steps[span.step].work))
        lines.append(f"{lane:>{width}} |{''.join(cells)}|")
    scale = f"{'ms':>{width}} |0{f'{end_s * 1e3:.2f}':>{columns - 1}}|"
    return "\n".join([*lines, scale]) + "\n"


def _mark(work: Work) -> str:
    match work:
        case Compute(layer=int(layer)) | Load(layer=layer):
            return "0123456789abcdefghijklmnopqrstuvwxyz"[layer % 36]
        case _:
            return "*"


def _paint(cells: list[str], held_s: list[float], span: Span, end_s: float, mark: str) -> None:
    width_s = end_s / len(cells)
    first = min(int(span.start_s / width_s), len(cells) - 1)
    last = min(int(span.end_s / width_s), len(cells) - 1)
    for column in range(first, last + 1):
        share_s = min(span.end_s, (column + 1) * width_s) - max(span.start_s, column * width_s)
        if share_s > held_s[column]:
            held_s[column] = share_s
            cells[column] = mark
