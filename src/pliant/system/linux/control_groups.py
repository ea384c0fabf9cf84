"""The control groups that this process is in: their directories, and their limits of CPU time and memory.

Layout of the files: Linux, Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pliant.system.linux.kernel_files import PROC, kernel_text

Version = Literal[1, 2]
Controller = Literal["cpu", "memory"]
_UNLIMITED_BYTES = 1 << 60  # version 1 writes the largest multiple of a page instead of "none"


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A control group: its directory, and the version that names the files in it."""

    path: Path
    version: Version

    def fields(self, file: str) -> tuple[str, ...]:
        """The words in one of its files; none where there is no such file."""
        return tuple((kernel_text(self.path / file) or "").split())

    def number(self, file: str) -> int | None:
        """The number in one of its files; None where there is no such file, or "max" in it."""
        found = self.fields(file)
        try:
            return int(found[0]) if found else None
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The most memory that a group's processes may use together, and what they use, in bytes."""

    limit_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted tree of groups: the topmost that is visible, and the one that the process is in."""

    top: Cgroup
    own: Cgroup


def cpu_quota(proc: Path = PROC) -> float | None:
    """The smallest CPU quota, in cores, of the process's control groups; None if there is none."""
    quotas = [quota for group in groups("cpu", proc) if (quota := _quota(group)) is not None]
    return min(quotas, default=None)


def memory_limits(proc: Path = PROC) -> tuple[MemoryLimit, ...]:
    """The memory limits of the process's control groups, without groups that have none."""
    limits = ((_limit_bytes(group), group) for group in groups("memory", proc))
    return tuple(MemoryLimit(limit, used_bytes(group)) for limit, group in limits if limit is not None)


def used_bytes(group: Cgroup) -> int:
    """The memory that its processes use, without unmapped file pages, which the kernel can drop."""
    if group.version == 1:
        held = group.number("memory.usage_in_bytes") or 0
        cached = _stat(group, "total_inactive_file", "total_active_file", "total_mapped_file")
    else:
        held = group.number("memory.current") or 0
        cached = _stat(group, "inactive_file", "active_file", "file_mapped")
    inactive, active, mapped = cached
    return max(0, held - max(0, inactive + active - mapped))


def groups(controller: Controller, proc: Path = PROC) -> tuple[Cgroup, ...]:
    """The groups of the process that `controller` may act on, its own first: a limit on any bounds it."""
    found = []
    for tree in hierarchies(controller, proc):
        path, version = tree.own.path, tree.own.version
        while path != tree.top.path:
            found.append(Cgroup(path, version))
            path = path.parent
        found.append(tree.top)
    return tuple(found)


def hierarchies(controller: Controller, proc: Path = PROC) -> tuple[Hierarchy, ...]:
    """The mounted trees that may hold `controller`; none on a system without control groups.

    A container sees only part of a tree: where no mount of a version has the process's own group, their tops
    stand for it. Other mounts of that version, as of another container's part, do not limit the process.
    """
    own = _own_paths(kernel_text(proc / "cgroup") or "", controller)
    found, tops = [], []
    for line in (kernel_text(proc / "mountinfo") or "").splitlines():
        place, _, kind = line.partition(" - ")
        version, where = _version(kind, controller), place.split()[3:5]
        if version is None or version not in own or len(where) < 2:
            continue
        path, root, top = own[version], where[0], Cgroup(Path(where[1]), version)
        visible = top.path / path.relative_to(root) if path.is_relative_to(root) else None
        if visible is not None and visible.is_dir():
            found.append(Hierarchy(top, Cgroup(visible, version)))
        else:
            tops.append(Hierarchy(top, top))
    versions = {tree.top.version for tree in found}
    return (*found, *(tree for tree in tops if tree.top.version not in versions))


def _own_paths(cgroup: str, controller: Controller) -> dict[Version, Path]:
    """For each version, the path of the process's group, from the text of /proc/self/cgroup."""
    own: dict[Version, Path] = {}
    for line in cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            own[2] = Path(path)
        elif controller in controllers.split(","):
            own[1] = Path(path)
    return own


def _version(kind: str, controller: Controller) -> Version | None:
    """Which version's tree is mounted, from the end of a line of mountinfo; None of anything else.

    The fields there are the type, the source, which may be empty, and the options.
    """
    fields = kind.split(" ", 2)
    if len(fields) < 3:
        return None
    if fields[0] == "cgroup2":
        return 2
    return 1 if fields[0] == "cgroup" and controller in fields[2].split(",") else None


def _quota(group: Cgroup) -> float | None:
    """CPU time per period: `cpu.max` ("150000 100000", "max 100000") in version 2, two files in version 1."""
    if group.version == 2:
        words = group.fields("cpu.max")
    else:
        words = group.fields("cpu.cfs_quota_us") + group.fields("cpu.cfs_period_us")
    try:
        quota_us, period_us = (int(word) for word in words)
    except ValueError:  # "max", or no such file
        return None
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None


def _limit_bytes(group: Cgroup) -> int | None:
    """The memory limit of the group's processes together; None if unlimited."""
    found = group.number("memory.limit_in_bytes" if group.version == 1 else "memory.max")
    return None if found is None or found >= _UNLIMITED_BYTES else found


def _stat(group: Cgroup, *names: str) -> tuple[int, ...]:
    """The named rows of memory.stat, 0 for missing rows."""
    words = group.fields("memory.stat")
    rows = dict(zip(words[::2], words[1::2], strict=False))
    return tuple(int(rows.get(name, 0)) for name in names)
