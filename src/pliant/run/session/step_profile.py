"""The base class of session profiles: they print as a table of steps, and write a trace."""

import io
import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

_WIDTH = 132


class StepProfile(ABC):
    """The profile of some runs. `median_s` and `min_s` are of whole runs."""

    __slots__ = ()
    median_s: float
    min_s: float

    def __str__(self) -> str:
        text = io.StringIO()
        text.write(self._timeline())
        for table in self.tables():
            Console(file=text, width=_WIDTH).print(table)
        text.write(self.summary)
        return text.getvalue()

    @abstractmethod
    def tables(self) -> tuple[Table, ...]:
        """`rich` tables, the table of steps last."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """One line: times, number of runs, processor."""

    @abstractmethod
    def chrome_trace(self) -> dict[str, Any]:
        """The fastest run as Chrome trace events, which ui.perfetto.dev opens."""

    def write_trace(self, path: Path) -> None:
        """Write `chrome_trace` as JSON."""
        path.write_text(json.dumps(self.chrome_trace()), encoding="utf-8")

    def _timeline(self) -> str:
        """The fastest run as a text diagram, for a program of several lanes; else empty."""
        return ""
