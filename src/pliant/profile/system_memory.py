"""The memory that this process may use, and how much is free, by machine and control groups.

Files of control groups: Linux, Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst.
"""

from functools import cache
from pathlib import Path

import psutil

from pliant.cgroup import PROC, Cgroup, groups

_UNLIMITED_BYTES = 1 << 60  # version 1 writes the largest multiple of a page instead of "none"


@cache
def machine_bytes() -> int:
    """Return the memory of the whole machine, in bytes."""
    return int(psutil.virtual_memory().total)


def memory_bytes(proc: Path = PROC) -> int:
    """Return the memory this process may use: the machine's, or the least limit of its groups if less."""
    limits = (limit_bytes(group) for group in groups("memory", proc))
    return min([machine_bytes(), *(limit for limit in limits if limit is not None)])


def free_memory_bytes(proc: Path = PROC) -> int:
    """Return s_i (Hepti, Table 1a): the memory still available to this process, in its group and machine.

    The minimum of limit minus use over its groups, and of the system's available memory; not below 0.
    """
    free = [int(psutil.virtual_memory().available)]
    for group in groups("memory", proc):
        limit = limit_bytes(group)
        if limit is not None:
            free.append(max(0, limit - used_bytes(group)))
    return min(free)


def limit_bytes(group: Cgroup) -> int | None:
    """Return the memory limit of the group's processes together; None if unlimited."""
    found = group.number("memory.limit_in_bytes" if group.version == 1 else "memory.max")
    return None if found is None or found >= _UNLIMITED_BYTES else found


def used_bytes(group: Cgroup) -> int:
    """Return their memory use without unmapped file pages, which the kernel can drop."""
    if group.version == 1:
        held = group.number("memory.usage_in_bytes") or 0
        cached = _stat(group, "total_inactive_file", "total_active_file", "total_mapped_file")
    else:
        held = group.number("memory.current") or 0
        cached = _stat(group, "inactive_file", "active_file", "file_mapped")
    inactive, active, mapped = cached
    return max(0, held - max(0, inactive + active - mapped))


def _stat(group: Cgroup, *names: str) -> tuple[int, ...]:
    """Return the named rows of memory.stat, 0 for missing rows."""
    words = group.fields("memory.stat")
    rows = dict(zip(words[::2], words[1::2], strict=False))
    return tuple(int(rows.get(name, 0)) for name in names)
