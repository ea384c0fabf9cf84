"""Run system tools, and check whether this machine supports the testbed."""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from testbed.groups import find_hierarchy

_PROBE = "pliant-probe"


class BedError(RuntimeError):
    """A system tool or call of the testbed failed."""


@cache
def why_not() -> str | None:
    """The reason why no testbed can be built here; None if one can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc", "nsenter") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found: install iproute2 and util-linux"
    if find_hierarchy() is None:
        return "no memory control groups can be made here"
    name = f"{_PROBE}-{os.getpid()}"
    try:
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "add", "name", "sw0", "type", "bridge")
        run("tc", "-n", name, "qdisc", "replace", "dev", "lo", "root", *tbf(1e6))
    except BedError as error:
        return f"this kernel makes no namespaces with bridges and token buckets: {error}"
    finally:
        attempt("ip", "netns", "del", name)
    return None


def run(*command: str) -> str:
    """Run `command` and return its output. Raises BedError with its error output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BedError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def attempt(*command: str) -> None:
    """Run `command` and ignore a failure, for removing what may not exist."""
    subprocess.run(command, capture_output=True, check=False)


def namespaces() -> list[str]:
    """The names of all network namespaces."""
    try:
        return sorted(path.name for path in Path("/run/netns").iterdir())
    except FileNotFoundError:  # no namespace exists yet
        return []


def tbf(bandwidth_Bps: float) -> tuple[str, ...]:
    """The `tc tbf` arguments for a token bucket of `bandwidth_Bps`.

    A burst is not limited, so it must be small against an exchange; but a burst shorter than the timer's
    delay, some 0.2 ms on a busy machine, loses bandwidth. Measured with 100 KB messages: up to 200 Mbit/s,
    0.2 ms give 0.95 of the rate (2 ms would give 1.7); at 470 Mbit/s, 0.5 ms give 0.99 to 1.08. The queue
    holds 50 ms, as in a switch, and at least 64 frames.
    """
    frame = 1514
    burst = max(2 * frame, int(bandwidth_Bps * (2e-4 if bandwidth_Bps <= 25e6 else 5e-4)))
    limit = max(64 * frame, int(bandwidth_Bps * 0.05)) + burst
    return ("tbf", "rate", f"{round(bandwidth_Bps * 8)}bit", "burst", str(burst), "limit", str(limit))
