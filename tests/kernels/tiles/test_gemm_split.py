"""Float32 products as sums of bfloat16 ones, against float64: bits, rows, columns, depths, epilogues."""

from dataclasses import replace

import numpy as np
import pytest

from pliant.kernels.coded.gemm import ACTIVATIONS
from pliant.kernels.coded.gemm_args import BF16, BF16_PAIRS, F16, F32
from pliant.kernels.runtime.jit import Library
from pliant.kernels.tiles.gemm_split import (
    SplitRowsArgs,
    gemm_split_ir,
    scratch_bytes_split,
    split_rows_ir,
    units_split,
)
from tests.kernels import reference
from tests.kernels.coded_matrices import Coded, coded
from tests.kernels.kernel_call import address, call, floats, guarded
from tests.rows import TILE_ROWS, isa_fixtures

isa, library = isa_fixtures(TILE_ROWS)

ALL = (1, 2, 3, 4, 5, 6, F16, BF16, BF16_PAIRS, F32)
# A number less the two that stand for it is at most 2**-17 of it, the product of the lower parts 2**-16.
SPLIT_ERROR = 2.0**-15
ULP = 2.0**-23


def split(library: Library, a: np.ndarray, depth: int, *, in_tiles: bool = False) -> np.ndarray:
    """Rows of A by the kernel: uint16 [rows, 2, depth]."""
    rows, columns = a.shape
    q = np.full((rows + 1, 2, depth), 7, np.uint16)
    places = (rows if in_tiles else 0, 2 * depth, depth)
    args = SplitRowsArgs(a.ctypes.data, a.strides[0] // 4, columns, q.ctypes.data, depth, *places)
    call(address(library, "split_rows", split_rows_ir), args, rows)
    assert (q[rows:] == 7).all(), "the kernel wrote past its rows"
    return q[:rows]


def product(library: Library, matrix: Coded, a: np.ndarray, **epilogue: object) -> np.ndarray:
    """A @ B by the kernels, into rows with gaps that must stay as they are."""
    columns = matrix.weights.shape[1]
    c = guarded(len(a), columns, columns + 3)
    args = matrix.args(a, c[:, :columns], **epilogue)  # type: ignore[arg-type]
    q = split(library, a, a.shape[1], in_tiles=True)
    args.a = q.ctypes.data
    kernel = address(library, "gemm_split", gemm_split_ir)
    call(kernel, args, units_split(columns), scratch_bytes_split())
    assert (c[:, columns:] == 7.0).all(), "the kernel wrote past its columns"
    return c[:, :columns]


def assert_close(c: np.ndarray, a: np.ndarray, matrix: Coded, *epilogue: object) -> None:
    """Within what splitting leaves of each product, and what float32's sums do."""
    weights = matrix.weights.astype(np.float64)
    expected = reference.gemm(a, weights, *epilogue)  # type: ignore[arg-type]
    scale = np.abs(a.astype(np.float64)) @ np.abs(weights) + np.abs(expected) + 1
    assert (np.abs(c - expected) <= (SPLIT_ERROR + 4 * ULP * np.sqrt(a.shape[1])) * scale).all()


@pytest.mark.parametrize("columns", [64, 61, 3])
def test_two_numbers_nearly_are_the_one(library: Library, columns: int) -> None:
    """Of any size; what pads a row is zero."""
    a = floats(5, columns) * np.float32(10.0) ** np.arange(-2, 3, dtype=np.float32)[:, None]
    parts = (split(library, a, 64).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    assert (np.abs(parts[:, :, :columns].sum(1) - a) <= 2.0**-17 * np.abs(a)).all()
    assert not parts[:, :, columns:].any()


@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("bits", ALL)
def test_every_form_of_slice(library: Library, bits: int, rows: int) -> None:
    """Outliers and full fidelity have lower parts, centroids have none."""
    for outliers in (0.02, ()):
        matrix = coded(library.isa, 96, 64, [bits, bits], outliers=outliers, is_bf16=True)
        a = floats(rows, 96)
        assert_close(product(library, matrix, a), a, matrix)


@pytest.mark.parametrize("rows", [1, 7, 16, 17, 33, 300])
@pytest.mark.parametrize("along_rows", [False, True], ids=["columns", "rows"])
def test_slices_of_different_bits_stand_side_by_side(library: Library, along_rows: bool, rows: int) -> None:
    """A plan gives every shard its own bits; both segmentations mix them in one matrix."""
    shape = (32 * len(ALL), 80) if along_rows else (96, 32 * len(ALL))
    matrix = coded(library.isa, *shape, ALL, along_rows=along_rows, is_bf16=True)
    a = floats(rows, shape[0])
    assert_close(product(library, matrix, a), a, matrix)


@pytest.mark.parametrize("columns", [16, 40, 100])
@pytest.mark.parametrize("depth", [32, 1600])
def test_the_last_columns_are_made_beside_their_place(library: Library, depth: int, columns: int) -> None:
    """C may end within a column group, and K be deeper than a block."""
    matrix = coded(library.isa, depth, -(-columns // 16) * 16, [5], is_bf16=True)
    matrix = replace(matrix, weights=matrix.weights[:, :columns])
    a, bias, residual = floats(18, depth), floats(columns, seed=3), floats(18, columns, seed=4)
    c = product(library, matrix, a, bias=bias, residual=residual)
    assert_close(c, a, matrix, bias, None, residual)


@pytest.mark.parametrize("name", ["gelu", "relu"])
def test_epilogues(library: Library, name: str) -> None:
    """The same epilogues as in float32."""
    matrix = coded(library.isa, 64, 64, [4], is_bf16=True)
    a, bias = floats(12, 64), floats(64, seed=3)
    c = product(library, matrix, a, bias=bias, activation=ACTIVATIONS[name])
    expected = reference.gemm(a, matrix.weights, bias, name)
    np.testing.assert_allclose(c, expected, rtol=2e-5, atol=1e-4)


@pytest.mark.parametrize(("bits", "most"), [(6, 3e-6), (F32, 5e-6)])
def test_errors_are_a_few_millionths(library: Library, bits: int, most: float) -> None:
    """What `compute="fp32"` may promise of it: relative to the result's size, on normal numbers."""
    matrix = coded(library.isa, 768, 64, [bits], is_bf16=True)
    a = floats(32, 768)
    expected = a.astype(np.float64) @ matrix.weights
    error = product(library, matrix, a) - expected
    assert np.sqrt((error**2).mean() / (expected**2).mean()) < most
