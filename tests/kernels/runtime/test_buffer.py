"""Memory for kernels: parts lie within it, and it stays for as long as a buffer of it is there."""

import gc
import weakref

import numpy as np
import pytest

from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.kernels.runtime.buffer import Buffer


def test_a_buffer_keeps_its_memory_alive() -> None:
    """A kernel that writes into memory that was freed corrupts whatever came to lie there."""
    array = aligned_bytes(256)
    owner, address = weakref.ref(array), array.ctypes.data
    buffer = Buffer.of(array).part(64)
    del array
    gc.collect()
    assert owner() is not None
    assert (buffer.address, buffer.n_bytes) == (address + 64, 192)
    del buffer
    gc.collect()
    assert owner() is None


@pytest.mark.parametrize(("offset", "n_bytes"), [(-1, 4), (17, None), (0, 17), (12, 5), (4, -1)])
def test_no_part_reaches_beyond_it(offset: int, n_bytes: int | None) -> None:
    """What is computed from sizes is checked where an address is made."""
    buffer = Buffer.of(np.zeros(4, np.float32))
    assert buffer.part(16) == Buffer(buffer.address + 16, 0, None)
    with pytest.raises(ValueError, match="are not in a buffer of 16"):
        buffer.part(offset, n_bytes)


def test_an_array_with_gaps_and_one_that_is_too_small_are_refused() -> None:
    """A kernel would read the gaps, or beyond the end."""
    with pytest.raises(ValueError, match="is no run of bytes"):
        Buffer.of(np.zeros((4, 4))[:, :2])
    with pytest.raises(ValueError, match="up takes 17 bytes, but its buffer has 16"):
        Buffer.of(np.zeros(16, np.uint8)).require(17, "up")
