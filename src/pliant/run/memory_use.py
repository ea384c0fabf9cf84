"""The memory that a session adds to its process, predicted and measured.

The measured value counts the resident pages of the session's own arrays. Pages mapped from a file, such as a
word table, do not count towards the budget: the system reclaims them when memory is short, and reads them
again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

import numpy as np

from pliant.ir.text.table_text import table_lines
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.quantities import format_bytes
from pliant.system import is_file_map, resident_bytes


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """The bytes that a session holds now, of at most `most_bytes` (None: no limit).

    An answer loads `load_bytes` besides, None if unknown.
    """

    held_bytes: int
    most_bytes: int | None = None
    load_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One part of a session's memory; `predicted_bytes` is None where there is no prediction."""

    name: str
    predicted_bytes: int | None
    measured_bytes: int


@dataclass(frozen=True, slots=True, repr=False)
class MemoryUse:
    """Memory of one session. `parts` count towards `budget_bytes`, if it is given. It prints as a table.

    `beside` are parts that do not count towards the budget, since sessions share them or the system can
    reclaim them. `rss_bytes` is the whole process: interpreter, libraries, kernels, tokenizer and other
    sessions too.
    """

    budget_bytes: int | None
    parts: tuple[MemoryPart, ...]
    beside: tuple[MemoryPart, ...]
    rss_bytes: int

    @property
    def predicted_bytes(self) -> int:
        """Of all parts that count."""
        return sum(part.predicted_bytes or 0 for part in self.parts)

    @property
    def measured_bytes(self) -> int:
        """Of all parts that count."""
        return sum(part.measured_bytes for part in self.parts)

    def __str__(self) -> str:
        budget = "no bound" if self.budget_bytes is None else f"of {format_bytes(self.budget_bytes)}"
        lines = [f"memory: {format_bytes(self.measured_bytes)} {budget}", *table_lines(self._rows(), left=0)]
        return "\n".join(line.rstrip() for line in lines) + "\n"

    def __repr__(self) -> str:
        return (
            f"<MemoryUse {format_bytes(self.predicted_bytes)} predicted, "
            f"{format_bytes(self.measured_bytes)} measured>"
        )

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def _rows(self) -> tuple[tuple[str, ...], ...]:
        total = MemoryPart("in all", self.predicted_bytes, self.measured_bytes)
        beside = [MemoryPart(f"beside: {p.name}", p.predicted_bytes, p.measured_bytes) for p in self.beside]
        rss = MemoryPart("whole process", None, self.rss_bytes)
        cells = ((p.name, _shown(p.predicted_bytes), _shown(p.measured_bytes)) for p in (
            *self.parts, total, *beside, rss
        ))  # fmt: skip
        return (("part", "predicted", "measured"), *cells)


def measure_part(name: str, predicted_bytes: int | None, arrays: Iterable[np.ndarray]) -> MemoryPart:
    """A part made of these arrays, measured now; an array given twice counts once."""
    own = {array.ctypes.data: array for array in arrays}
    return MemoryPart(
        name, predicted_bytes, sum(resident_bytes(at, array.nbytes) for at, array in own.items())
    )


def scratch_part(pool: ThreadPool) -> MemoryPart:
    """The scratch of a pool's threads, which sessions share."""
    return measure_part(
        f"scratch of {pool.n_threads} threads", pool.n_threads * pool.scratch_bytes, [pool.scratch]
    )


def is_mapped(array: np.ndarray) -> bool:
    """Whether an array lies in a mapped file, whose memory the system can reclaim."""
    base: object = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return is_file_map(base)


def _shown(n_bytes: int | None) -> str:
    return "" if n_bytes is None else format_bytes(n_bytes)
