"""Shared memory of two processes, allocated in blocks by one of them."""

import mmap
import os
import tempfile
from threading import Condition
from time import monotonic

_ALIGNMENT = 64


def shared_file(n_bytes: int) -> int:
    """Return a descriptor of `n_bytes` of anonymous memory, freed when no process holds it any more."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("pliant")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, n_bytes)  # pages are allocated on first access
    os.set_inheritable(fd, True)
    return fd


class SharedRegion:
    """A mapped shared file; only one process may allocate, with `allocate` and `free`."""

    def __init__(self, fd: int, n_bytes: int) -> None:
        self.memory = mmap.mmap(fd, n_bytes)
        self._free = [(0, n_bytes)]  # (offset, size), sorted by offset; adjacent blocks are merged
        self._taken: dict[int, int] = {}
        self._changed = Condition()

    def allocate(self, n_bytes: int, until_s: float | None = None) -> int | None:
        """Allocate a block and return its offset; None if none is free by `until_s` (monotonic)."""
        size = max(1, -(-n_bytes // _ALIGNMENT)) * _ALIGNMENT
        with self._changed:
            while True:
                for i, (offset, free) in enumerate(self._free):
                    if free >= size:
                        rest = [(offset + size, free - size)] if free > size else []
                        self._free[i : i + 1] = rest
                        self._taken[offset] = size
                        return offset
                left_s = None if until_s is None else until_s - monotonic()
                if left_s is not None and left_s <= 0:
                    return None
                self._changed.wait(left_s)

    def free(self, offset: int) -> None:
        """Free an allocated block."""
        with self._changed:
            blocks = sorted([*self._free, (offset, self._taken.pop(offset))])
            joined = blocks[:1]
            for start, size in blocks[1:]:
                last, length = joined[-1]
                if last + length == start:
                    joined[-1] = (last, length + size)
                else:
                    joined.append((start, size))
            self._free = joined
            self._changed.notify_all()

    def view(self, offset: int, n_bytes: int) -> memoryview:
        """The bytes of a block."""
        return memoryview(self.memory)[offset : offset + n_bytes]
