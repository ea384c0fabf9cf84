"""Memory for kernels: an address, its size, and the object that keeps it alive."""

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True)
class Buffer:
    """`n_bytes` from `address` on, valid as long as `owner` is alive."""

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
        """The part of `n_bytes` from byte `offset` on, by default up to the end. Raises ValueError if it is
        out of bounds.
        """
        left = self.n_bytes - offset
        size = left if n_bytes is None else n_bytes
        if offset < 0 or not 0 <= size <= left:
            raise ValueError(f"bytes {offset} to {offset + size} are not in a buffer of {self.n_bytes}.")
        return Buffer(self.address + offset, size, self.owner)

    def require(self, n_bytes: int, name: str) -> None:
        """Raise ValueError if the buffer is smaller than the `n_bytes` of tensor `name`."""
        if n_bytes > self.n_bytes:
            raise ValueError(f"{name} takes {n_bytes} bytes, but its buffer has {self.n_bytes}.")
