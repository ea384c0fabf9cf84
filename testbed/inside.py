"""Let this very process work on a device for a while. Knows no worker."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.commands import BedError
from testbed.network import Device

_CLONE_NEWNET = 0x40000000


@contextmanager
def inside(device: Device) -> Iterator[None]:
    """Within the block, this thread and those it starts are in the device's namespace.

    What a block opens must be closed in it. The process stays out of the device's memory group, so no limit
    holds for it, and `freeze` and `kill` do not reach it. Raises BedError where the system refuses.
    """
    with Path("/proc/thread-self/ns/net").open("rb") as outside:
        with Path(f"/run/netns/{device.namespace}").open("rb") as namespace:
            _enter(namespace.fileno())
        try:
            yield
        finally:
            _enter(outside.fileno())


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET):
        raise BedError(f"this process cannot enter a namespace: {os.strerror(ctypes.get_errno())}.")
