"""A matrix in codes: what its planes, codebook and outliers say is what the quantizer found, at any shape."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.errors import StoreError
from pliant.store.coding.matrix import CodedMatrix, blank_matrix, code_matrix, coded_bytes
from pliant.store.coding.planes import unpack_planes
from pliant.store.coding.quantize import fit


def weights(rows: int, columns: int, seed: int = 0, scale: float = 0.04) -> np.ndarray:
    """Normal weights with some far out."""
    draw = np.random.default_rng(seed)
    values = draw.standard_normal((rows, columns)) * scale
    values[draw.random((rows, columns)) < 0.003] *= 6
    return values.astype(np.float32)


def meant(matrix: np.ndarray, bits: int) -> np.ndarray:
    """What the store's quantizer, told of this matrix alone, makes of it: by its own documentation."""
    fitted = fit(np.ascontiguousarray(matrix).reshape(-1))
    coded = fitted.code.codebooks[bits][fitted.codes >> (6 - bits)]
    return np.where(fitted.is_outlier, matrix.reshape(-1), coded).reshape(matrix.shape)


def read(coded: CodedMatrix, shape: tuple[int, int]) -> np.ndarray:
    """What the arrays say, element by element as CodedMatrix documents them."""
    depth, columns = shape
    column_groups, row_groups = -(-columns // 16), coded.segment_rows // 32
    groups = coded.planes.reshape(len(coded.planes), -1, 64)
    codes = unpack_planes(groups[:, : coded.n_segments * column_groups * row_groups])
    values = coded.codebook[codes].reshape(coded.n_segments, column_groups, row_groups, 32, 16)
    whole = values.transpose(0, 2, 3, 1, 4).reshape(-1, 16 * column_groups).copy()
    for place in range(coded.n_segments * column_groups):
        segment, group = divmod(place, column_groups)
        for i in range(coded.outlier_rows[place], coded.outlier_rows[place + 1]):
            row, column = divmod(int(coded.outlier_offsets[i]), 16)
            whole[segment * coded.segment_rows + row, 16 * group + column] = coded.outlier_values[i]
    return whole[:depth, :columns]


@settings(max_examples=30)
@given(st.integers(1, 90), st.integers(1, 70), st.integers(1, 6), st.integers(0, 9))
def test_the_arrays_say_what_the_quantizer_found(rows: int, columns: int, bits: int, seed: int) -> None:
    """Ragged rows and columns are padded; every real weight is where the kernels will look for it."""
    matrix = weights(rows, columns, seed)
    np.testing.assert_array_equal(read(code_matrix(matrix, bits), matrix.shape), meant(matrix, bits))


def test_deep_matrices_are_cut_into_segments() -> None:
    """An outlier's offset has 16 bits: 4096 rows."""
    matrix = weights(9000, 20)
    coded = code_matrix(matrix, 4)
    assert (coded.n_segments, coded.segment_rows) == (3, 3008)
    np.testing.assert_array_equal(read(coded, matrix.shape), meant(matrix, 4))


@pytest.mark.parametrize(
    ("shape", "padding"), [((1024, 2048), 31), ((2048, 1024), 37), ((8192, 512), 37), ((2048, 1008), 0)]
)
def test_large_planes_of_whole_pages_stand_apart(shape: tuple[int, int], padding: int) -> None:
    """Streams a multiple of 4 KB apart share cache sets; what is between them is less than a column group."""
    matrix = weights(*shape)
    coded = code_matrix(matrix, 2)
    assert coded.planes.shape[1] == shape[0] * shape[1] // 8 + 64 * padding
    assert coded.planes.shape == blank_matrix(*shape, 2).planes.shape
    assert coded.planes.size <= coded_bytes(*shape, 2, 0.0)
    np.testing.assert_array_equal(read(coded, shape), meant(matrix, 2))


def test_outliers_ascend_within_their_group() -> None:
    """Kernels find a block's first outlier by halving."""
    coded = code_matrix(weights(400, 64), 3)
    for begin, end in zip(coded.outlier_rows[:-1], coded.outlier_rows[1:], strict=True):
        assert (np.diff(coded.outlier_offsets[begin:end].astype(int)) > 0).all()


def test_the_largest_integer_stands_for_no_less_than_the_largest_centroid() -> None:
    """And leaves at most one weight in 32768 beyond it, unless that took more than half as much again."""
    for scale in (0.01, 0.04, 0.2):
        matrix = weights(512, 256, scale=scale)
        coded = code_matrix(matrix, 6)
        top = np.abs(coded.codebook).max()
        assert top <= coded.largest <= 1.5 * top * (1 + 1e-6)
        n_beyond = np.count_nonzero(np.abs(coded.outlier_values) > coded.largest)
        assert n_beyond <= matrix.size // 32768 or coded.largest > 1.49 * top


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(value: float) -> None:
    """No code stands for it."""
    matrix = weights(32, 16)
    matrix[3, 4] = value
    with pytest.raises(StoreError, match="finite"):
        code_matrix(matrix, 6)
