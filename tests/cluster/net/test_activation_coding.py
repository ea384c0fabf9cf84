"""Activations as they travel: their size, and what is lost on the way."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.cluster.net.activation_coding import Coding, coded_bytes, decode, encode
from pliant.errors import InputError


def there_and_back(values: np.ndarray, coding: Coding) -> np.ndarray:
    data = encode(values, coding).reshape(-1).view(np.uint8)
    assert data.nbytes == coded_bytes((values.shape[0], values.shape[1]), coding)
    into = np.full_like(values, np.nan)
    decode(data, coding, into)
    return into


@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_the_error_of_every_coding_is_bounded(rows: int, columns: int, seed: int) -> None:
    """fp16 rounds to 11 bits, int8 to half of 1/127 of the row's largest: that is the accuracy cost."""
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal((rows, columns)) * 10 ** rng.uniform(-3, 3)).astype(np.float32)
    largest = np.abs(values).max(axis=1, keepdims=True)
    np.testing.assert_array_equal(there_and_back(values, "fp32"), values)
    assert np.all(np.abs(there_and_back(values, "fp16") - values) <= np.abs(values) * 2**-11 + 2**-25)
    assert np.all(np.abs(there_and_back(values, "int8") - values) <= largest / 127 * 0.5 * (1 + 1e-5))


@pytest.mark.parametrize("coding", ["fp32", "fp16", "int8"])
def test_a_view_with_strides_travels_as_what_it_shows(coding: Coding) -> None:
    """Columns of heads are cut out of wider tensors at both ends."""
    wide = np.arange(24, dtype=np.float32).reshape(4, 6)
    data = encode(wide[:, 2:5], coding).reshape(-1).view(np.uint8)
    into = np.zeros((4, 8), np.float32)
    decode(data, coding, into[:, 1:4])
    np.testing.assert_allclose(into[:, 1:4], wide[:, 2:5], atol=23 / 254)
    assert not into[:, 4:].any()


def test_a_row_of_zeros_stays_zero() -> None:
    """Its scale is 0, and nothing may be divided by it."""
    assert not there_and_back(np.zeros((2, 5), np.float32), "int8").any()


def test_what_float16_cannot_hold_is_an_error() -> None:
    """Infinity would spread through the model silently."""
    with pytest.raises(InputError, match="int8"):
        encode(np.full((1, 2), 70000.0, np.float32), "fp16")


@pytest.mark.parametrize("coding", ["fp16", "int8"])
def test_what_is_no_number_stays_none(coding: Coding) -> None:
    """A receiver has to see that something is wrong."""
    values = np.array([[1.0, np.nan]], np.float32)
    assert not np.isfinite(there_and_back(values, coding)).all()
