"""Whether two instruction sets gave the same answer: whole numbers to the bit, floats within rounding."""

import numpy as np

# Sums in another order, and a multiply and add rounded once or twice: a few units in the last place.
_UNIT = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def assert_same(result: np.ndarray, right: np.ndarray, name: str = "") -> None:
    """Raises AssertionError naming the tensor."""
    assert result.shape == right.shape, name
    if right.dtype.name not in _UNIT:
        np.testing.assert_array_equal(result, right, err_msg=name)
        return
    wide, unit = right.astype(np.float64), _UNIT[right.dtype.name]
    largest = np.abs(wide[np.isfinite(wide)]).max(initial=0.0)
    np.testing.assert_allclose(
        result.astype(np.float64), wide, rtol=64 * unit, atol=64 * unit * largest, err_msg=name
    )
