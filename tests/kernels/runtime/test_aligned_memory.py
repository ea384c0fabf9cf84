"""Addresses of arrays of every kind."""

import ml_dtypes
import numpy as np

from pliant.kernels.runtime.aligned_memory import address


def test_an_address_is_that_of_the_first_element() -> None:
    """It is read as compiled extensions read it, by an ABI that must not change unnoticed."""
    fixed = np.arange(6.0)
    fixed.flags.writeable = False
    arrays = [
        *(np.zeros((3, 4), dtype) for dtype in (np.float32, np.int64, np.bool_, np.complex64)),
        np.zeros((2, 3, 0)),
        np.array(5),
        np.arange(24.0).reshape(4, 6)[2:],
        np.zeros(3, ml_dtypes.bfloat16),
        fixed,
    ]
    for array in arrays:
        assert address(array) == array.ctypes.data, array.dtype
