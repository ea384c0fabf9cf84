"""Shared memory of two processes, allocated in blocks by one of them."""

from threading import Condition
from time import monotonic

from pliant.system import map_shared

_ALIGNMENT = 64


class SharedRegion:
    """Mapped memory of `pliant.system.shared_memory`; only one process may call `allocate` and `free`."""

    def __init__(self, fd: int, n_bytes: int) -> None:
        self.memory = map_shared(fd, n_bytes)
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
        return self.memory[offset : offset + n_bytes]
