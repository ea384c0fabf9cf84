"""The control groups that this process is in: their directories, and the numbers in their files.

Layout of the files: Linux, Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Version = Literal[1, 2]
Controller = Literal["cpu", "memory"]
PROC = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A control group: its directory, and the version that names the files in it."""

    path: Path
    version: Version

    def fields(self, file: str) -> tuple[str, ...]:
        """The words in one of its files; none where there is no such file."""
        try:
            return tuple((self.path / file).read_text().split())
        except OSError:
            return ()

    def number(self, file: str) -> int | None:
        """The number in one of its files; None where there is no such file, or "max" in it."""
        found = self.fields(file)
        try:
            return int(found[0]) if found else None
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted tree of groups: the topmost that is visible, and the one that the process is in."""

    top: Cgroup
    own: Cgroup


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
    try:
        own = _own_paths((proc / "cgroup").read_text(), controller)
        lines = (proc / "mountinfo").read_text().splitlines()
    except OSError:
        return ()
    found, tops = [], []
    for line in lines:
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
