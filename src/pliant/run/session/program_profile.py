"""Profile of a session that runs a program, step by step, with predicted and measured times."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from rich.table import Table

from pliant.ir.cost import Span
from pliant.ir.program import Program
from pliant.ir.reply import Reply
from pliant.ir.text.timeline_text import timeline_text
from pliant.quantities import format_seconds
from pliant.run.session.step_profile import StepProfile
from pliant.run.trace import compare_table, perfetto_trace


class ProgramDetails(Protocol):
    """The details of a reply made by a program: its steps with measured and predicted times."""

    @property
    def program(self) -> Program: ...
    @property
    def spans(self) -> tuple[Span, ...]: ...
    @property
    def predicted_spans(self) -> tuple[Span, ...]: ...
    @property
    def predicted_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class ProgramProfile(StepProfile):
    """`runs` answers to one input: median and fastest, in seconds from the input to the answer.

    `fastest` is the program of the fastest answer, with its times. `where` names the processor, e.g. "2
    threads".
    """

    fastest: ProgramDetails
    runs: int
    where: str
    median_s: float
    min_s: float

    def tables(self) -> tuple[Table, ...]:
        """One row per step with its predicted and measured times."""
        ran = self.fastest
        return (compare_table(ran.program, ran.predicted_spans, ran.spans),)

    @property
    def summary(self) -> str:
        """One line: measured and predicted time, number of runs, processor."""
        return (
            f"{format_seconds(self.median_s)} median, {format_seconds(self.min_s)} fastest of {self.runs} "
            f"runs, {format_seconds(self.fastest.predicted_s)} predicted, {len(self.fastest.spans)} steps, "
            f"{self.where}"
        )

    def chrome_trace(self) -> dict[str, Any]:
        """The prediction and the fastest answer as Chrome trace events, which ui.perfetto.dev opens."""
        ran = self.fastest
        return perfetto_trace(ran.program, predicted=ran.predicted_spans, measured=ran.spans)

    def _timeline(self) -> str:
        return timeline_text(self.fastest.program, self.fastest.spans)


def profile_of(replies: Sequence[Reply[ProgramDetails]], where: str) -> ProgramProfile:
    """The profile of one or more answers to the same input."""
    seconds = [reply.seconds - reply.waited_s for reply in replies]
    fastest = int(np.argmin(seconds))
    median_s = float(np.median(seconds))
    return ProgramProfile(replies[fastest].details, len(replies), where, median_s, seconds[fastest])
