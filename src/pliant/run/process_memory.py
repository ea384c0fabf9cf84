"""The memory of this process, and one budget that several sessions share."""

import resource
import weakref
from pathlib import Path
from types import TracebackType

from pliant.errors import BudgetError
from pliant.kernels.runtime.turns import Turns
from pliant.quantities import format_bytes, parse_bytes

_STATUS = Path("/proc/self/status")


def bound_of(memory: "Memory | None") -> int | None:
    """What bounds one session alone; None for no bound, or one that sessions share. Raises InputError."""
    return None if memory is None or isinstance(memory, MemoryBudget) else parse_bytes(memory)


def preload_of(preload: str | int | None, memory: "Memory | None") -> int | None:
    """The preload buffer that was asked for: none without a bound to split, else the planner's choice."""
    if preload is None:
        return 0 if bound_of(memory) is None else None
    return parse_bytes(preload)


def peak_rss_bytes() -> int:
    """The largest resident set this process has had, in bytes."""
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class MemoryBudget:
    """Bytes that all sessions of a process may hold together; each reserves its share before it takes it.

    Sessions of several threads may share it. The share of an owner that is dropped is free again.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self._reserved: dict[int, int] = {}
        self._turns = Turns()

    @property
    def free_bytes(self) -> int:
        return self.total_bytes - sum(list(self._reserved.values()))

    def reserve(self, owner: object, n_bytes: int) -> None:
        """Set `owner`'s share to `n_bytes`. Raises BudgetError, and changes nothing, when it does not fit."""
        with self._turns.lock:
            held = self._reserved.get(id(owner), 0)
            if n_bytes - held > self.free_bytes:
                raise BudgetError(
                    f"{format_bytes(n_bytes)} were asked for, but of the {format_bytes(self.total_bytes)} "
                    f"that all models share only {format_bytes(self.free_bytes + held)} are free. "
                    "Lower this model's preload buffer, or close another model."
                )
            if id(owner) not in self._reserved:
                weakref.finalize(owner, self._reserved.pop, id(owner), None).atexit = False
            self._reserved[id(owner)] = n_bytes

    def release(self, owner: object) -> None:
        """Give `owner`'s share back; an owner without one is no error."""
        self._reserved.pop(id(owner), None)

    def __enter__(self) -> "MemoryBudget":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reserved.clear()


Memory = str | int | MemoryBudget
"""A bound of what one session adds to its process, such as "8MB", or one that several sessions share."""


def _status(field: str) -> int:
    try:
        text = _STATUS.read_text()
    except OSError:
        return 0
    line = next((row for row in text.splitlines() if row.startswith(field + ":")), None)
    return int(line.split()[1]) * 1024 if line else 0
