"""Names that are unique to a process, and the removal of leftovers of dead processes."""

import os
import re
import signal
from contextlib import suppress
from pathlib import Path

from testbed.commands import attempt, namespaces, run
from testbed.groups import find_hierarchy, named_groups, remove_group

_PREFIX = "pliant-bed-"
_NAME = re.compile(r"pliant-bed-(\d+)-(\d+)-.*")


def claim_switch() -> str:
    """Make the namespace of a new network's switch; returns its name, the prefix of all names of the network.

    The name has the process id and its start time, so that parallel runs do not conflict and leftovers of a
    killed process are recognised.
    """
    process = os.getpid()
    taken = set(namespaces())
    start = f"{_PREFIX}{process}-{_started(process)}-"
    number = next(n for n in range(len(taken) + 1) if f"{start}{n}" not in taken)
    run("ip", "netns", "add", f"{start}{number}")
    return f"{start}{number}"


def remove_stale() -> None:
    """Kill the processes and remove the namespaces and groups of networks whose process has ended."""
    for name in namespaces():
        if _is_stale(name):
            remove_namespace(name)
    hierarchy = find_hierarchy()
    if hierarchy is None:
        return
    for group in named_groups(hierarchy, _PREFIX):
        if _is_stale(group.path.name):
            with suppress(OSError):  # another process may be removing it
                remove_group(group)


def remove_namespace(name: str) -> None:
    """Kill the processes in the namespace and delete it; a no-op if it does not exist."""
    with suppress(RuntimeError):
        for process in run("ip", "netns", "pids", name).split():
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
    attempt("ip", "netns", "del", name)


def _is_stale(name: str) -> bool:
    match = _NAME.fullmatch(name)
    return match is not None and _started(int(match[1])) != match[2]


def _started(process: int) -> str | None:
    """The start time of a process in clock ticks since boot; None if there is no such process."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]
