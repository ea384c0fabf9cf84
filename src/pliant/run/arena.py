"""The memory of intermediate tensors, for programs that run in turns."""

from typing import final

import numpy as np

from pliant.arrays import UInt8
from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.kernels.runtime.buffer import Buffer


@final
class Arena:
    """One block, as large as the largest program that uses it; its owner lets them take turns.

    Nothing in it outlasts a run, so that it may move between two.
    """

    def __init__(self) -> None:
        self._place(0)

    @property
    def n_bytes(self) -> int:
        return len(self._memory)

    @property
    def memory(self) -> UInt8[np.ndarray, " n"]:
        """The block, to be measured."""
        return self._memory

    def resize(self, n_bytes: int) -> None:
        """Hold exactly `n_bytes` from now on, elsewhere unless it does already; what was in it is lost."""
        if n_bytes != self.n_bytes:
            self._place(0)  # the old block goes before the new one comes
            self._place(n_bytes)

    def hold(self, n_bytes: int) -> None:
        """Hold at least `n_bytes` from now on."""
        if n_bytes > self.n_bytes:
            self.resize(n_bytes)

    def _place(self, n_bytes: int) -> None:
        self._memory = aligned_bytes(n_bytes)
        self.buffer = Buffer.of(self._memory)
