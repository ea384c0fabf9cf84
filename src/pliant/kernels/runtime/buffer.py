"""Memory that kernels are pointed at: an address, how far it goes, and what keeps it alive."""

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True)
class Buffer:
    """`n_bytes` from `address` on, which are there for as long as `owner` is."""

    address: int
    n_bytes: int
    owner: object = field(repr=False, compare=False)

    @classmethod
    def of(cls, array: np.ndarray) -> "Buffer":
        """The bytes of an array, mapped or not. Raises ValueError for one with gaps."""
        if not array.flags.c_contiguous:
            raise ValueError(f"an array of {array.shape} with strides {array.strides} is no run of bytes.")
        return cls(array.ctypes.data, array.nbytes, array)

    def part(self, offset: int, n_bytes: int | None = None) -> "Buffer":
        """`n_bytes` of it from byte `offset` on, or all that follow. Raises ValueError beyond its end."""
        left = self.n_bytes - offset
        size = left if n_bytes is None else n_bytes
        if offset < 0 or not 0 <= size <= left:
            raise ValueError(f"bytes {offset} to {offset + size} are not in a buffer of {self.n_bytes}.")
        return Buffer(self.address + offset, size, self.owner)

    def require(self, n_bytes: int, name: str) -> None:
        """Raise ValueError for a buffer in which a tensor, called `name`, has no room."""
        if n_bytes > self.n_bytes:
            raise ValueError(f"{name} takes {n_bytes} bytes, but its buffer has {self.n_bytes}.")
