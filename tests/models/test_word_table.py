"""The 6-bit embedding table decodes to exactly the codebook's values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import ModelError
from pliant.models.word_table import QuantizedTable, pack_codes


def random_table(rows: int, columns: int, seed: int) -> tuple[QuantizedTable, np.ndarray]:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 64, (rows, columns)).astype(np.uint8)
    codebook = rng.standard_normal(64).astype(np.float32)
    return QuantizedTable(pack_codes(codes), codebook, columns), codebook[codes]


@given(st.integers(1, 30), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_every_row_decodes_to_its_codebook_values(rows: int, columns: int, seed: int) -> None:
    """Columns that are no multiple of 8 leave bits unused, which must not leak in."""
    table, values = random_table(rows, columns, seed)
    picked = np.random.default_rng(seed).integers(0, rows, 7)
    assert np.array_equal(table.decode(picked), values[picked])
    assert np.array_equal(table.decode_all(), values)


def test_the_planes_lie_as_the_format_says() -> None:
    """Kernels read these bytes: code 0b100001 at column 9 sets bit 1 of byte 1 in planes 0 and 5."""
    codes = np.zeros((1, 12), np.uint8)
    codes[0, 9] = 0b100001
    packed = pack_codes(codes)
    assert packed.shape == (1, 6, 2)
    assert packed[0].tolist() == [[0, 2], [0, 0], [0, 0], [0, 0], [0, 0], [0, 2]]


def test_tables_of_many_rows_decode_block_by_block() -> None:
    """The whole table is decoded in blocks; the seams must not show."""
    table, values = random_table(2500, 9, 1)
    assert np.array_equal(table.decode_all(), values)


def test_a_table_that_does_not_fit_its_own_sizes_is_refused() -> None:
    """Codes and codebook come from a file."""
    codes = np.zeros((3, 6, 2), np.uint8)
    with pytest.raises(ModelError, match="17 columns"):
        QuantizedTable(codes, np.zeros(64, np.float32), 17)
    with pytest.raises(ModelError, match="NaN"):
        QuantizedTable(codes, np.full(64, np.nan, np.float32), 16)
    with pytest.raises(ModelError, match="6 bits"):
        pack_codes(np.full((1, 1), 64, np.uint8))
