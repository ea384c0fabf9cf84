"""Names that no other process gives, and what was left by processes that are gone. Knows no shaping."""

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
    """Make the namespace of a new network's switch; its name, which starts the names of all that is its own.

    The name carries the process and when it began, so that parallel runs never meet and what a killed one
    leaves is known.
    """
    process = os.getpid()
    taken = set(namespaces())
    start = f"{_PREFIX}{process}-{_started(process)}-"
    number = next(n for n in range(len(taken) + 1) if f"{start}{n}" not in taken)
    run("ip", "netns", "add", f"{start}{number}")
    return f"{start}{number}"


def remove_stale() -> None:
    """End the processes and remove the namespaces and groups of networks whose process is gone."""
    for name in namespaces():
        if _is_stale(name):
            remove_namespace(name)
    hierarchy = find_hierarchy()
    if hierarchy is None:
        return
    for group in named_groups(hierarchy, _PREFIX):
        if _is_stale(group.path.name):
            with suppress(OSError):  # another process may be at it
                remove_group(group)


def remove_namespace(name: str) -> None:
    """End what runs in the namespace and delete it; no error when it is gone."""
    with suppress(RuntimeError):
        for process in run("ip", "netns", "pids", name).split():
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
    attempt("ip", "netns", "del", name)


def _is_stale(name: str) -> bool:
    match = _NAME.fullmatch(name)
    return match is not None and _started(int(match[1])) != match[2]


def _started(process: int) -> str | None:
    """When a process began, in clock ticks since the machine did; None when there is none of that id."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]
