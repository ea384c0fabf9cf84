"""Memory for intermediate tensors, shared by programs that do not run at the same time."""

from typing import final

import numpy as np

from pliant.arrays import UInt8
from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.kernels.runtime.buffer import Buffer


@final
class Arena:
    """One memory block, as large as the largest program needs. The owner serialises its programs."""

    def __init__(self) -> None:
        self._place(0)

    @property
    def n_bytes(self) -> int:
        return len(self._memory)

    @property
    def memory(self) -> UInt8[np.ndarray, " n"]:
        """The block, for measurement."""
        return self._memory

    def resize(self, n_bytes: int) -> None:
        """Resize the block to `n_bytes`. The block moves and loses its contents unless the size is
        unchanged.
        """
        if n_bytes != self.n_bytes:
            self._place(0)  # free the old block before allocating
            self._place(n_bytes)

    def hold(self, n_bytes: int) -> None:
        """Grow the block to at least `n_bytes`."""
        if n_bytes > self.n_bytes:
            self.resize(n_bytes)

    def _place(self, n_bytes: int) -> None:
        self._memory = aligned_bytes(n_bytes)
        self.buffer = Buffer.of(self._memory)
