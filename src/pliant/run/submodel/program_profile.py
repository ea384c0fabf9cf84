"""Where an elastic session's time goes, step by step: predicted beside measured, as a table and a trace."""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from pliant.ir.cost import Span
from pliant.ir.program import Program
from pliant.ir.reply import Reply
from pliant.ir.timeline_text import timeline_text
from pliant.quantities import format_seconds
from pliant.run.submodel.details import ElasticDetails
from pliant.run.trace import compare_table, perfetto_trace

_WIDTH = 132


@dataclass(frozen=True, slots=True)
class ProgramProfile:
    """`runs` answers to one text: median and fastest, in seconds from text to answer.

    `spans` are the steps of the fastest answer's `program`, `predicted` the same steps by the profile's
    medians, and `predicted_s` what that answer was predicted to take.
    """

    program: Program
    spans: tuple[Span, ...]
    predicted: tuple[Span, ...]
    predicted_s: float
    runs: int
    n_threads: int
    median_s: float
    min_s: float

    def tables(self) -> tuple[Table, ...]:
        """One row a step: when it was predicted to run, and when it ran."""
        return (compare_table(self.program, self.predicted, self.spans),)

    def __str__(self) -> str:
        text = io.StringIO()
        text.write(timeline_text(self.program, self.spans))
        for table in self.tables():
            Console(file=text, width=_WIDTH).print(table)
        text.write(self.summary)
        return text.getvalue()

    @property
    def summary(self) -> str:
        """One line: how long, as predicted, how often, on how many threads."""
        return (
            f"{format_seconds(self.median_s)} median, {format_seconds(self.min_s)} fastest of {self.runs} "
            f"runs, {format_seconds(self.predicted_s)} predicted, {len(self.spans)} steps, {self.n_threads} "
            "threads"
        )

    def chrome_trace(self) -> dict[str, Any]:
        """Prediction and fastest answer as Chrome trace events, which ui.perfetto.dev opens."""
        return perfetto_trace(self.program, predicted=self.predicted, measured=self.spans)

    def write_trace(self, path: Path) -> None:
        """Write `chrome_trace` as JSON."""
        path.write_text(json.dumps(self.chrome_trace()), encoding="utf-8")


def profile_of(replies: Sequence[Reply[ElasticDetails]], n_threads: int) -> ProgramProfile:
    """The profile of some answers to the same text; at least one."""
    seconds = [reply.seconds - reply.waited_s for reply in replies]
    fastest = int(np.argmin(seconds))
    details = replies[fastest].details
    return ProgramProfile(
        details.program,
        details.spans,
        details.predicted_spans,
        details.predicted_s,
        len(replies),
        n_threads,
        float(np.median(seconds)),
        seconds[fastest],
    )
