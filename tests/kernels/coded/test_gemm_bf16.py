"""The bfloat16 GEMM against float64 on the same rounded numbers: bits, segments, rows, tails, epilogues."""

import numpy as np
import pytest

from pliant.kernels.coded.gemm import ACTIVATIONS
from pliant.kernels.coded.gemm_args import BF16, BF16_PAIRS, F16, F32, GemmArgs
from pliant.kernels.coded.gemm_bf16 import (
    gemm_bf16_ir,
    pack_pairs,
    pairs_shape,
    scratch_bytes_bf16,
    units_bf16,
)
from pliant.kernels.coded.round_bf16 import RoundBf16Args, round_bf16_ir
from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.kernels.runtime.jit import Library
from tests.kernels import reference
from tests.kernels.coded_matrices import Coded, coded
from tests.kernels.kernel_call import address, call, floats, guarded
from tests.rows import BF16_ROWS, isa_fixtures

isa, library = isa_fixtures(BF16_ROWS)

ALL = (1, 2, 3, 4, 5, 6, F16, BF16, BF16_PAIRS, F32)
ULP = 2.0**-23


def nearest(x: np.ndarray) -> np.ndarray:
    """The nearest bfloat16, ties to even, by arithmetic: eight bits of mantissa, in float64."""
    x = np.asarray(x, np.float64)
    mantissa, exponent = np.frexp(x)
    out: np.ndarray = np.ldexp(np.rint(mantissa * 256), exponent - 8)
    return out


def rounded(library: Library, a: np.ndarray, depth: int, *, in_tiles: bool = False) -> np.ndarray:
    """Rows of A by the kernel: uint16 [rows, depth]."""
    rows, columns = a.shape
    q = np.full((rows + 1, depth), 7, np.uint16)
    n_rows = rows if in_tiles else 0
    args = RoundBf16Args(a.ctypes.data, a.strides[0] // 4, columns, q.ctypes.data, depth, n_rows)
    call(address(library, "round_bf16", round_bf16_ir), args, rows)
    assert (q[rows:] == 7).all(), "the kernel wrote past its rows"
    return q[:rows]


def run(library: Library, args: GemmArgs, q: np.ndarray) -> None:
    isa, (_, depth) = library.isa, q.shape
    args.a, args.lda = q.ctypes.data, depth // 2
    kernel = address(library, "gemm_bf16", gemm_bf16_ir)
    call(kernel, args, units_bf16(args.n_columns, isa), scratch_bytes_bf16(depth, isa))


def product(
    library: Library, matrix: Coded, a: np.ndarray, n_columns: int | None = None, **epilogue: object
) -> np.ndarray:
    """A @ B by the kernel, into rows with gaps that must stay as they are."""
    columns = n_columns or matrix.weights.shape[1]
    c = guarded(len(a), columns, columns + 3)
    args = matrix.args(a, c[:, :columns], **epilogue)  # type: ignore[arg-type]
    args.n_columns = columns
    run(library, args, rounded(library, a, a.shape[1], in_tiles=library.isa.has_tiles))
    assert (c[:, columns:] == 7.0).all(), "the kernel wrote past its columns"
    return c[:, :columns]


def assert_close(c: np.ndarray, a: np.ndarray, weights: np.ndarray, expected: np.ndarray) -> None:
    """Only float32's sums err: within sqrt(K) ulps, times 4 for the tails, of the sum of magnitudes."""
    scale = np.abs(nearest(a)) @ np.abs(nearest(weights)) + np.abs(expected) + 1
    assert (np.abs(c - expected) <= 4 * ULP * np.sqrt(a.shape[1]) * scale).all()


def expected_of(a: np.ndarray, matrix: Coded, *epilogue: object) -> np.ndarray:
    return reference.gemm(nearest(a), nearest(matrix.weights), *epilogue)  # type: ignore[arg-type]


@pytest.mark.parametrize("columns", [64, 61, 32, 3])
@pytest.mark.parametrize("rows", [1, 5])
def test_activations_become_the_nearest_bfloat16(library: Library, rows: int, columns: int) -> None:
    """Of any size, ties to even; what pads a row is zero."""
    a = floats(rows, columns) * np.float32(10.0) ** np.arange(rows, dtype=np.float32)[:, None]
    a[0, :3] = np.array([0x3F808000, 0x3F818000, 0x7F7F7FFF], np.uint32).view(np.float32)
    q = rounded(library, a, 64)
    np.testing.assert_array_equal((q.astype(np.uint32) << 16).view(np.float32)[:, :columns], nearest(a))
    assert not q[:, columns:].any()


@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize("bits", ALL)
def test_every_weight_is_its_centroid_or_outlier_rounded(library: Library, bits: int, rows: int) -> None:
    """Rows of A that pick one row of B each show B itself: it must be equal, not close."""
    K = 96
    matrix = coded(library.isa, K, 32, [bits, bits], outliers=0.02, is_bf16=True)
    weights = nearest(matrix.weights)
    weights[np.abs(weights) < 2.0**-126] = 0  # subnormal
    for first in range(0, K, rows):
        n = min(rows, K - first)
        picks = np.zeros((n, K), np.float32)
        picks[range(n), range(first, first + n)] = 1.0
        np.testing.assert_array_equal(product(library, matrix, picks), weights[first : first + n])


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 17, 64, 129])
def test_any_number_of_rows(library: Library, rows: int) -> None:
    """Tiles of every height occur, alone and after full ones."""
    matrix = coded(library.isa, 64, 32, [3, F32], is_bf16=True)
    a = floats(rows, 64, seed=rows)
    assert_close(product(library, matrix, a), a, matrix.weights, expected_of(a, matrix))


@pytest.mark.parametrize("rows", [1, 3, 31])
@pytest.mark.parametrize("along_rows", [False, True], ids=["columns", "rows"])
def test_slices_of_different_bits_stand_side_by_side(library: Library, along_rows: bool, rows: int) -> None:
    """A plan gives every shard its own bits; both segmentations mix them in one matrix."""
    shape = (32 * len(ALL), 48) if along_rows else (96, 32 * len(ALL))
    matrix = coded(library.isa, *shape, ALL, along_rows=along_rows, is_bf16=True)
    a = floats(rows, shape[0])
    assert_close(product(library, matrix, a), a, matrix.weights, expected_of(a, matrix))


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize(("depth", "along_rows"), [(1600, False), (3200, True), (4096, False)])
def test_deep_matrices_are_summed_in_blocks(
    library: Library, depth: int, along_rows: bool, rows: int
) -> None:
    """K beyond one block: sums continue from C, outliers are found in the middle of their list."""
    width, bits = (32, [5, 5]) if along_rows else (16, [5])
    matrix = coded(library.isa, depth, width, bits, along_rows=along_rows, is_bf16=True)
    a, bias = floats(rows, depth), floats(width, seed=1)
    c = product(library, matrix, a, bias=bias)
    assert_close(c, a, matrix.weights, expected_of(a, matrix, bias))


@pytest.mark.parametrize("depth", [64, 1600])
@pytest.mark.parametrize("columns", [16, 40, 48, 64, 100])
@pytest.mark.parametrize("rows", [1, 2, 17, 250])
def test_the_last_columns_are_made_beside_their_place(
    library: Library, rows: int, columns: int, depth: int
) -> None:
    """Tiles are some column groups wide; C has what is left, with bias and residual."""
    matrix = coded(library.isa, depth, -(-columns // 16) * 16, [5], is_bf16=True)
    a, bias, residual = floats(rows, depth), floats(columns, seed=3), floats(rows, columns, seed=4)
    c = product(library, matrix, a, columns, bias=bias, residual=residual)
    weights = matrix.weights[:, :columns]
    expected = reference.gemm(nearest(a), nearest(weights), bias, None, residual)
    assert_close(c, a, weights, expected)


@pytest.mark.parametrize("rows", [1, 12])
@pytest.mark.parametrize("name", [None, "gelu", "gelu_tanh", "relu", "tanh"])
def test_epilogues(library: Library, name: str | None, rows: int) -> None:
    """The same epilogues as in float32."""
    matrix = coded(library.isa, 64, 64, [4], is_bf16=True)
    a, bias, residual = floats(rows, 64), floats(64, seed=3), floats(rows, 66, seed=4)[:, :64]
    extra = {} if name else {"residual": residual}
    c = product(library, matrix, a, bias=bias, activation=ACTIVATIONS[name], **extra)
    expected = expected_of(a, matrix, bias, name, None if name else residual)
    np.testing.assert_allclose(c, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_stay_in_their_row(library: Library, value: float) -> None:
    """bfloat16 holds both."""
    matrix = coded(library.isa, 64, 16, [4], is_bf16=True)
    a = floats(3, 64)
    a[1, 9] = value
    is_finite = np.isfinite(product(library, matrix, a))
    np.testing.assert_array_equal(is_finite.all(1), [True, False, True])


@pytest.mark.parametrize(("depth", "columns"), [(64, 48), (33, 20), (1, 1)])
@pytest.mark.parametrize("rows", [1, 9])
def test_resident_pairs_are_packed_once(library: Library, rows: int, depth: int, columns: int) -> None:
    """A plain matrix of any size, rounded as activations are."""
    weights, a = floats(depth, columns, seed=2), floats(rows, depth)
    shape = pairs_shape(depth, columns)
    pairs = aligned_bytes(2 * int(np.prod(shape))).view(np.uint16).reshape(shape)
    pack_pairs(weights, pairs)
    padded = 2 * shape[1]
    args = GemmArgs(n_rows=rows, n_columns=columns, segment_rows=padded, n_segments=1)
    args.column_groups_per_slice = shape[0]
    args.own.bits, args.own.full = BF16_PAIRS, pairs.ctypes.data
    c = guarded(rows, columns, columns + 3)
    args.c, args.ldc = c.ctypes.data, columns + 3
    run(library, args, rounded(library, a, padded, in_tiles=library.isa.has_tiles))
    assert_close(c[:, :columns], a, weights, reference.gemm(nearest(a), nearest(weights)))
