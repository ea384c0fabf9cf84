"""How short this machine is of cores and of memory, from scheduler statistics and pressure stall information.

Documentation/accounting/psi.rst describes the files of the latter.
"""

import os
import select
from contextlib import suppress
from pathlib import Path

from pliant.system.linux.kernel_files import PROC, kernel_text

CPU_PSI = Path("/proc/pressure/cpu")
MEMORY_PSI = Path("/proc/pressure/memory")
_TRIGGER = b"some 300000 2000000"
"""Tasks stalled on memory for 0.3 s in 2 s. Since Linux 6.5 unprivileged processes may watch too, with
windows that are multiples of 2 s.
"""


def waited_s() -> dict[int, float]:
    """Seconds for which each thread of this process has been ready and waited for a core, by its id.

    Empty where the kernel counts none.
    """
    waited: dict[int, float] = {}
    for path in (PROC / "task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # a thread may end meanwhile
            waited[int(path.parent.name)] = 1e-9 * int(path.read_text().split()[1])
    return waited


def cpu_pressure(psi: Path = CPU_PSI) -> float | None:
    """The share of the last ten seconds in which something on this machine waited for a core.

    None where the kernel offers no pressure stall information.
    """
    try:
        some = (kernel_text(psi) or "").split()
        return float(dict(word.split("=") for word in some[1:5])["avg10"]) / 100.0
    except (ValueError, KeyError):
        return None


def open_memory_pressure(psi: Path = MEMORY_PSI, trigger: bytes = _TRIGGER) -> int | None:
    """A descriptor for `wait_for_pressure`; None where the kernel reports none (to this user)."""
    try:
        fd = os.open(psi, os.O_RDWR | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        os.write(fd, trigger + b"\0")
    except OSError:
        os.close(fd)
        return None
    return fd


def wait_for_pressure(fd: int, wake: int) -> bool:
    """Wait until memory is short. False as soon as `wake` is readable, or if the kernel ends its reports."""
    poll = select.poll()
    poll.register(fd, select.POLLPRI)
    poll.register(wake, select.POLLIN | select.POLLHUP)
    ready = dict(poll.poll())
    return wake not in ready and not ready.get(fd, 0) & select.POLLERR
