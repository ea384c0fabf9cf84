"""Bit-planes against a slow loop that knows only the format's words."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import StoreError
from pliant.store.coding.planes import bit_position, decode, pack_planes, unpack_planes

# The format's table for rows 0..31, written out: where row v's bit lies in planes 4 and 5.
PLANE_4 = [4, 12, 20, 28, 5, 13, 21, 29, 30, 6, 14, 22, 31, 7, 15, 23, 8, 16, 24, 0, 9, 17, 25, 1]
PLANE_4 += [2, 10, 18, 26, 3, 11, 19, 27]


def random_codes(groups: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 64, (groups, 32, 16), np.uint8)


def slow_planes(codes: np.ndarray) -> np.ndarray:
    """One bit after the other, from the words of docs/format.md."""
    out = np.zeros((6, len(codes), 64), np.uint8)
    for g, group in enumerate(codes.tolist()):
        for row in range(32):
            w, b = row // 4, row % 4
            for column in range(16):
                for q in range(6):
                    if not group[row][column] & (32 >> q):
                        continue
                    position = 8 * b + (w ^ q) if q < 4 else PLANE_4[row] if q == 4 else 8 * b + w
                    out[q, g, 4 * column + position // 8] |= 1 << (position % 8)
    return out


def test_planes_are_as_the_format_says() -> None:
    """Kernels and stores on other machines were built on these positions."""
    codes = random_codes(3)
    np.testing.assert_array_equal(pack_planes(codes), slow_planes(codes))


@pytest.mark.parametrize("plane", range(6))
def test_every_bit_of_a_word_holds_one_row(plane: int) -> None:
    """Two rows on one bit would lose a weight."""
    assert sorted(bit_position(plane, row) for row in range(32)) == list(range(32))


@given(st.integers(0, 1100), st.integers(1, 6))
def test_the_first_k_planes_hold_the_top_k_bits(groups: int, k: int) -> None:
    """Reading fewer planes must give the coarser code and nothing else."""
    codes = random_codes(groups)
    np.testing.assert_array_equal(unpack_planes(pack_planes(codes)[:k]), codes >> (6 - k))


def test_decode_looks_values_up() -> None:
    """A decoded weight is the centroid of its code."""
    codes, codebook = random_codes(2), np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(decode(pack_planes(codes)[:3], codebook), codes >> 3)


def test_misfits_are_refused() -> None:
    """A seventh bit, or a codebook of another k, would decode to wrong weights."""
    with pytest.raises(StoreError, match="code 64"):
        pack_planes(np.full((1, 32, 16), 64, np.uint8))
    with pytest.raises(StoreError, match="2 planes need 4 centroids, not 8"):
        decode(pack_planes(random_codes(1))[:2], np.zeros(8, np.float32))
