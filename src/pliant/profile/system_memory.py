"""The memory that this process may use and what of it is free, by the machine and by control groups.

Files of groups: Linux, Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst.
"""

from functools import cache
from pathlib import Path

import psutil

from pliant.cgroup import PROC, Cgroup, groups

_UNLIMITED_BYTES = 1 << 60  # version 1 writes the largest multiple of a page instead of "none"


@cache
def machine_bytes() -> int:
    """The memory of the whole machine."""
    return int(psutil.virtual_memory().total)


def memory_bytes(proc: Path = PROC) -> int:
    """The memory this process may use: the machine's, or the least limit of its groups when that is less."""
    limits = (limit_bytes(group) for group in groups("memory", proc))
    return min([machine_bytes(), *(limit for limit in limits if limit is not None)])


def free_memory_bytes(proc: Path = PROC) -> int:
    """s_i (Hepti, Table 1a): what this process could still take, in its group and on the machine.

    The least, over its groups, of limit minus use, and what the system says is available; not below 0.
    """
    free = [int(psutil.virtual_memory().available)]
    for group in groups("memory", proc):
        limit = limit_bytes(group)
        if limit is not None:
            free.append(max(0, limit - used_bytes(group)))
    return min(free)


def limit_bytes(group: Cgroup) -> int | None:
    """What the group's processes may hold together; None where nothing bounds them."""
    found = group.number("memory.limit_in_bytes" if group.version == 1 else "memory.max")
    return None if found is None or found >= _UNLIMITED_BYTES else found


def used_bytes(group: Cgroup) -> int:
    """What they hold, without the pages of files that nobody has mapped: those can be dropped."""
    if group.version == 1:
        held = group.number("memory.usage_in_bytes") or 0
        cached = _stat(group, "total_inactive_file", "total_active_file", "total_mapped_file")
    else:
        held = group.number("memory.current") or 0
        cached = _stat(group, "inactive_file", "active_file", "file_mapped")
    inactive, active, mapped = cached
    return max(0, held - max(0, inactive + active - mapped))


def _stat(group: Cgroup, *names: str) -> tuple[int, ...]:
    """The named rows of memory.stat, 0 for those it has not."""
    words = group.fields("memory.stat")
    rows = dict(zip(words[::2], words[1::2], strict=False))
    return tuple(int(rows.get(name, 0)) for name in names)
