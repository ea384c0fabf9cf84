"""The memory a process may use and what of it is free, by the machine and by control groups.

Knows no model and no plan. Layout of the files: Linux, Documentation/admin-guide/cgroup-v1/memory.rst and
cgroup-v2.rst.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

Version = Literal[1, 2]
_PROC = Path("/proc/self")
_UNLIMITED_BYTES = 1 << 60  # version 1 writes the largest multiple of a page instead of "none"


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A control group that may bound memory: its directory and the version that names its files."""

    path: Path
    version: Version

    @property
    def limit_bytes(self) -> int | None:
        """What its processes may hold together; None where nothing bounds them."""
        found = _number(self.path / ("memory.limit_in_bytes" if self.version == 1 else "memory.max"))
        return None if found is None or found >= _UNLIMITED_BYTES else found

    @property
    def used_bytes(self) -> int:
        """What they hold, without the pages of files that nobody has mapped: they can be dropped."""
        if self.version == 1:
            held = _number(self.path / "memory.usage_in_bytes") or 0
            cached = _stat(self.path, "total_inactive_file", "total_active_file", "total_mapped_file")
        else:
            held = _number(self.path / "memory.current") or 0
            cached = _stat(self.path, "inactive_file", "active_file", "file_mapped")
        inactive, active, mapped = cached
        return max(0, held - max(0, inactive + active - mapped))


def memory_bytes(proc: Path = _PROC) -> int:
    """The memory this process may use: the machine's, or the least limit of its groups when that is less."""
    limits = (group.limit_bytes for group in groups(proc))
    return min([int(psutil.virtual_memory().total), *(limit for limit in limits if limit is not None)])


def free_memory_bytes(proc: Path = _PROC) -> int:
    """s_i (Hepti, Table 1a): what this process could still take, in its group and on the machine.

    The least, over its groups, of limit minus use, and what the system says is available; not below 0.
    """
    free = [int(psutil.virtual_memory().available)]
    for group in groups(proc):
        limit = group.limit_bytes
        if limit is not None:
            free.append(max(0, limit - group.used_bytes))
    return min(free)


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted tree of groups: the topmost that is seen, and the one that the process is in."""

    top: MemoryGroup
    own: MemoryGroup


def groups(proc: Path = _PROC) -> tuple[MemoryGroup, ...]:
    """The memory groups of the process, its own first: a limit on any of them bounds it."""
    found = []
    for tree in hierarchies(proc):
        path, version = tree.own.path, tree.own.version
        while path != tree.top.path:
            found.append(MemoryGroup(path, version))
            path = path.parent
        found.append(tree.top)
    return tuple(found)


def hierarchies(proc: Path = _PROC) -> tuple[Hierarchy, ...]:
    """The trees that may hold memory controllers, as the process sees them; none where there is no Linux.

    A container sees only part of a tree: where the process's own group is not in it, the top stands for it.
    """
    try:
        own = _own_paths((proc / "cgroup").read_text())
        lines = (proc / "mountinfo").read_text().splitlines()
    except OSError:
        return ()
    found = []
    for line in lines:
        place, _, kind = line.partition(" - ")
        root, mount = place.split()[3:5]
        version = _version(kind)
        if version is None or version not in own:
            continue
        path = own[version]
        seen = Path(mount) / path.relative_to(root) if path.is_relative_to(root) else Path(mount)
        top = MemoryGroup(Path(mount), version)
        found.append(Hierarchy(top, MemoryGroup(seen, version) if seen.is_dir() else top))
    return tuple(found)


def _own_paths(cgroup: str) -> dict[Version, Path]:
    """For each version, the path of the process's group, from the text of /proc/self/cgroup."""
    own: dict[Version, Path] = {}
    for line in cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            own[2] = Path(path)
        elif "memory" in controllers.split(","):
            own[1] = Path(path)
    return own


def _version(kind: str) -> Version | None:
    """Which version's tree is mounted, from the end of a line of mountinfo; None of anything else."""
    system, _, options = kind.split(maxsplit=2)
    if system == "cgroup2":
        return 2
    return 1 if system == "cgroup" and "memory" in options.split(",") else None


def _number(path: Path) -> int | None:
    """The number in a file; None where there is no such file, or "max" in it."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _stat(group: Path, *names: str) -> tuple[int, ...]:
    """The named rows of memory.stat, 0 for those it has not."""
    try:
        rows = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        rows = {}
    return tuple(int(rows.get(name, 0)) for name in names)
