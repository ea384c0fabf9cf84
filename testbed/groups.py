"""Control groups of version 1 and 2: make, limit, list, kill and remove them."""

import errno
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pliant.system.linux.control_groups import Cgroup, Controller, Hierarchy, hierarchies

_LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}
_NONE = {1: "-1", 2: "max"}
_PATIENCE_S = 60.0
"""A killed process may still give back memory, for seconds on a busy machine."""


def find_hierarchy(controller: Controller = "memory") -> Hierarchy | None:
    """The hierarchy in which this process can make groups of `controller`, below `own`; None if it cannot.

    Version 1: below its own group, so that its limits still apply. Version 2 does not allow children that
    share the controller below a group with processes, so the top group is used.
    """
    for tree in hierarchies(controller):
        if tree.own.version == 1 and os.access(tree.own.path, os.W_OK):
            return tree
        if tree.own.version == 2 and _offers(controller, tree.top.path):
            return Hierarchy(tree.top, tree.top)
    return None


def make_group(hierarchy: Hierarchy, name: str) -> Cgroup:
    """A new, empty group without a limit, in which nothing is swapped out."""
    group = Cgroup(hierarchy.own.path / name, hierarchy.own.version)
    group.path.mkdir()
    with suppress(OSError):  # missing in a kernel without swap
        (group.path / ("memory.swappiness" if group.version == 1 else "memory.swap.max")).write_text("0")
    return group


def limit_group(group: Cgroup, memory_bytes: int | None) -> None:
    """Set or remove the limit. Raises OSError (EBUSY, version 1) if its processes already use more."""
    text = _NONE[group.version] if memory_bytes is None else str(memory_bytes)
    (group.path / _LIMIT[group.version]).write_text(text)


def processes(group: Cgroup) -> tuple[int, ...]:
    """The ids of its processes; empty if the group does not exist."""
    try:
        return tuple(int(line) for line in (group.path / "cgroup.procs").read_text().split())
    except OSError:
        return ()


def signal_group(group: Cgroup, number: signal.Signals) -> None:
    """Send a signal to all its processes, including those started meanwhile."""
    told: set[int] = set()
    while new := set(processes(group)) - told:
        for process in new:
            with suppress(ProcessLookupError):
                os.kill(process, number)
        told |= new


def end_group(group: Cgroup) -> None:
    """Kill all its processes. Raises OSError if one does not end, e.g. with a hanging disk."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while processes(group):
        signal_group(group, signal.SIGKILL)
        if time.monotonic() > deadline_s:
            raise OSError(errno.EBUSY, f"processes {processes(group)} do not end", str(group.path))
        time.sleep(0.002)


def remove_group(group: Cgroup) -> None:
    """Kill all its processes and remove it; a no-op if it does not exist."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while group.path.is_dir():
        end_group(group)
        try:
            group.path.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline_s:
                raise
            time.sleep(0.01)  # a killed process needs a moment to free its memory


def named_groups(hierarchy: Hierarchy, prefix: str) -> Iterator[Cgroup]:
    """All groups of the hierarchy whose names start with `prefix`."""
    for path in hierarchy.top.path.rglob(f"{prefix}*"):
        if path.is_dir():
            yield Cgroup(path, hierarchy.top.version)


def _offers(controller: Controller, top: Path) -> bool:
    """Enable the controller for groups directly below `top`; returns whether they have it."""
    try:
        if controller not in (top / "cgroup.controllers").read_text().split():
            return False
        if controller not in (top / "cgroup.subtree_control").read_text().split():
            (top / "cgroup.subtree_control").write_text(f"+{controller}")
    except OSError:
        return False
    return True
