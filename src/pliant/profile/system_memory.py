"""The memory that this process may use, and how much is free, by machine and control groups."""

from collections.abc import Sequence
from functools import cache

import psutil

from pliant.system import MemoryLimit, memory_limits


@cache
def machine_bytes() -> int:
    """Return the memory of the whole machine, in bytes."""
    return int(psutil.virtual_memory().total)


def memory_bytes(limits: Sequence[MemoryLimit] | None = None) -> int:
    """Return the memory this process may use: the machine's, or the least of its `limits` if less."""
    found = memory_limits() if limits is None else limits
    return min([machine_bytes(), *(limit.limit_bytes for limit in found)])


def free_memory_bytes(limits: Sequence[MemoryLimit] | None = None) -> int:
    """Return s_i (Hepti, Table 1a): the memory still available to this process, in its group and machine.

    The minimum of limit minus use over its groups, and of the system's available memory; not below 0.
    """
    found = memory_limits() if limits is None else limits
    left = (max(0, limit.limit_bytes - limit.used_bytes) for limit in found)
    return min([int(psutil.virtual_memory().available), *left])
