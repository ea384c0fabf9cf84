"""Let this process work on a device for a while."""

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

    Objects opened in the block must be closed in it. The process does not join the device's memory group, so
    the limit, `freeze` and `kill` do not apply to it. Raises BedError if the system refuses.
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
