"""The GEMM that decodes as it goes: every ISA, bits, segmentation, rows and epilogue, against float64."""

import numpy as np
import pytest

from pliant.kernels.coded.gemm import ACTIVATIONS, GemmArgs, gemm_ir, pack, scratch_bytes, units
from pliant.kernels.coded.gemm_args import BF16, F16, F32, SLICE_DTYPE
from pliant.kernels.coded.row import most_rows
from pliant.kernels.emit.isa import AVX512, AVX512_BF16, AVX512_VNNI, Isa
from pliant.kernels.runtime.jit import Library, compile_modules
from tests.kernels import reference
from tests.kernels.coded_matrices import Coded, coded
from tests.kernels.kernel_call import address, call, floats, guarded
from tests.rows import CODED_ROWS, isa_fixtures

isa, library = isa_fixtures(CODED_ROWS)


ALL = (1, 2, 3, 4, 5, 6, F16, BF16, F32)
# A sum of K products in float32 errs by at most K ulps of the sum of magnitudes; in practice by sqrt(K).
ULP = 2.0**-23


def run(library: Library, args: GemmArgs) -> None:
    isa = library.isa
    call(address(library, "gemm", gemm_ir), args, units(args.n_columns, isa), scratch_bytes(isa))


def product(library: Library, matrix: Coded, a: np.ndarray, **epilogue: object) -> np.ndarray:
    """A @ B by the kernel, from rows with gaps into rows with gaps that must stay as they are."""
    rows, columns = len(a), matrix.weights.shape[1]
    wide = guarded(rows, a.shape[1], a.shape[1] + 5)
    wide[:, : a.shape[1]] = a
    c = guarded(rows, columns, columns + 3)
    run(library, matrix.args(wide[:, : a.shape[1]], c[:, :columns], **epilogue))  # type: ignore[arg-type]
    assert (c[:, columns:] == 7.0).all(), "the kernel wrote past its columns"
    return c[:, :columns]


def assert_close(c: np.ndarray, a: np.ndarray, matrix: Coded, expected: np.ndarray) -> None:
    """Within sqrt(K) ulps, times 4 for the tails, of the sum of the products' magnitudes."""
    scale = np.abs(a).astype(np.float64) @ np.abs(matrix.weights) + np.abs(expected) + 1
    assert (np.abs(c - expected) <= 4 * ULP * np.sqrt(a.shape[1]) * scale).all()


@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize("bits", ALL)
def test_every_decoded_weight_is_its_centroid_or_outlier(library: Library, bits: int, rows: int) -> None:
    """Rows of A that pick one row of B each show B itself: it must be equal, not close."""
    K = 96
    matrix = coded(library.isa, K, 32, [bits, bits], outliers=0.02)
    for first in range(0, K, rows):
        n = min(rows, K - first)
        picks = np.zeros((n, K), np.float32)
        picks[range(n), range(first, first + n)] = 1.0
        c = product(library, matrix, picks)
        expected = matrix.weights[first : first + n]
        if n <= max(1, most_rows(library.isa)) and bits <= 6:
            # A few rows add an outlier as the sum of what was decoded and a difference.
            np.testing.assert_allclose(c, expected, rtol=0, atol=4 * ULP * np.abs(matrix.weights).max())
        else:
            np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("bits", range(1, 7))
def test_a_few_rows_decode_exactly_where_there_are_no_outliers(
    library: Library, bits: int, rows: int
) -> None:
    """The form that decodes in registers looks up the same centroids as the one through scratch."""
    matrix = coded(library.isa, 64, 16, [bits], outliers=())
    for first in range(65 - rows):
        picks = np.zeros((rows, 64), np.float32)
        picks[range(rows), range(first, first + rows)] = 1.0
        np.testing.assert_array_equal(product(library, matrix, picks), matrix.weights[first : first + rows])


@pytest.mark.parametrize("bits", range(1, 7))
def test_a_few_rows_share_what_is_decoded(library: Library, bits: int) -> None:
    """Every number of rows up to one that goes through scratch, in five column groups of two segments."""
    matrix = coded(library.isa, 448, 80, [bits, bits], along_rows=True, outliers=0.01)
    bias, residual = floats(80, seed=3), floats(9, 83, seed=4)[:, :80]
    for rows in range(1, 10):
        a = floats(rows, 448, seed=rows)
        c = product(library, matrix, a, bias=bias, residual=residual)
        assert_close(c, a, matrix, reference.gemm(a, matrix.weights, bias, None, residual[:rows]))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 17, 64, 129, 512])
def test_any_number_of_rows(library: Library, rows: int) -> None:
    """Tiles of every height occur, alone and after full ones; a sequence has any length."""
    matrix = coded(library.isa, 64, 32, [3, F32])
    a = floats(rows, 64, seed=rows)
    assert_close(product(library, matrix, a), a, matrix, reference.gemm(a, matrix.weights))


@pytest.mark.parametrize("rows", [1, 3, 6, 31])
@pytest.mark.parametrize("along_rows", [False, True], ids=["columns", "rows"])
def test_slices_of_different_bits_stand_side_by_side(library: Library, along_rows: bool, rows: int) -> None:
    """A plan gives every shard its own bits; both segmentations mix them in one matrix."""
    shape = (32 * len(ALL), 48) if along_rows else (96, 32 * len(ALL))
    matrix = coded(library.isa, *shape, ALL, along_rows=along_rows)
    a = floats(rows, shape[0])
    assert_close(product(library, matrix, a), a, matrix, reference.gemm(a, matrix.weights))


@pytest.mark.parametrize("columns", [16, 32, 48, 64, 80])
def test_any_number_of_column_groups(library: Library, columns: int) -> None:
    """Panels are one or three column groups: what is left over is a panel of its own."""
    matrix = coded(library.isa, 32, columns, [4])
    a = floats(7, 32)
    assert_close(product(library, matrix, a), a, matrix, reference.gemm(a, matrix.weights))


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize(("depth", "along_rows"), [(800, False), (1600, False), (1600, True), (4096, False)])
def test_deep_matrices_are_summed_in_blocks(
    library: Library, depth: int, along_rows: bool, rows: int
) -> None:
    """K beyond one block: sums continue from C, outliers are found in the middle of their list."""
    matrix = coded(library.isa, depth, 16 if not along_rows else 32, [5] * (2 if along_rows else 1),
                   along_rows=along_rows, outliers=0.01)  # fmt: skip
    a = floats(rows, depth)
    bias = floats(matrix.weights.shape[1], seed=1)
    c = product(library, matrix, a, bias=bias)
    assert_close(c, a, matrix, reference.gemm(a, matrix.weights, bias))


def test_outliers_at_the_edges_of_blocks_are_placed(library: Library) -> None:
    """The first and last weight of a group, a block, a column group, and none at all."""
    edges = [0, 15, 16, 511, 512, 384 * 16 - 1, 384 * 16, 768 * 16 - 1, 768 * 16, 800 * 16 - 1]
    for offsets in (edges, edges[:1], edges[-1:], []):
        matrix = coded(library.isa, 800, 32, [6], outliers=offsets)
        for rows in (1, 7):
            a = floats(rows, 800)
            assert_close(product(library, matrix, a), a, matrix, reference.gemm(a, matrix.weights))


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("name", [None, "gelu", "gelu_tanh", "relu", "tanh"])
def test_epilogues(library: Library, name: str | None, rows: int) -> None:
    """Bias and activation are part of the GEMM: the up and pooler matrices use them."""
    matrix = coded(library.isa, 64, 48, [4], outliers=0.01)
    a, bias = floats(rows, 64, scale=0.3), floats(48, seed=3)
    c = product(library, matrix, a, bias=bias, activation=ACTIVATIONS[name])
    expected = reference.gemm(a, matrix.weights, bias, name)
    # 1e-6 of the activation itself beside the error of its argument, whose slope is at most 1.13.
    scale = np.abs(a).astype(np.float64) @ np.abs(matrix.weights) + 1
    assert (np.abs(c - expected) <= 1e-6 + 5 * ULP * 8 * scale).all()


@pytest.mark.parametrize("rows", [1, 7, 12])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_residual_is_added(library: Library, has_bias: bool, rows: int) -> None:
    """Output and down add the block's input; C and the residual have strides of their own."""
    matrix = coded(library.isa, 896, 48, [2, 6], along_rows=True)
    a, residual = floats(rows, 896), floats(rows, 53, seed=5)[:, :48]
    bias = floats(48, seed=3) if has_bias else None
    c = product(library, matrix, a, bias=bias, residual=residual)
    assert_close(c, a, matrix, reference.gemm(a, matrix.weights, bias, None, residual))


@pytest.mark.parametrize("bits", [4, F32])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_stay_in_their_row(library: Library, value: float, bits: int) -> None:
    """A broken activation must show in the answer, and only in its own token's."""
    matrix = coded(library.isa, 64, 32, [bits], outliers=())
    for rows in (1, 8):
        a = floats(rows, 64)
        a[rows // 2, 5] = value
        c = product(library, matrix, a)
        with np.errstate(invalid="ignore"):
            expected = reference.gemm(a, matrix.weights)
        np.testing.assert_array_equal(np.isnan(c), np.isnan(expected))
        np.testing.assert_array_equal(np.isposinf(c), np.isposinf(expected))


def test_units_can_run_in_any_split(library: Library) -> None:
    """Threads take units one by one: any split gives bit-identical results."""
    matrix = coded(library.isa, 64, 112, [5])
    isa = library.isa
    for rows in (1, 9):
        a = floats(rows, 64)
        whole, parts = np.zeros((rows, 112), np.float32), np.zeros((rows, 112), np.float32)
        run(library, matrix.args(a, whole))
        args = matrix.args(a, parts)
        for unit in reversed(range(units(112, isa))):
            kernel = address(library, "gemm", gemm_ir)
            call(kernel, args, unit + 1, scratch_bytes(isa), first=unit)
        np.testing.assert_array_equal(parts, whole)


def test_a_packed_matrix_is_used_in_place(library: Library) -> None:
    """Plain float32 weights (pooler, classifier) run through the same kernel, as one slice."""
    weights = floats(96, 64)
    packed = pack(weights)
    slices = np.zeros(1, SLICE_DTYPE)
    slices["bits"], slices["full"] = F32, packed.ctypes.data
    matrix = Coded(weights, weights > 9, slices, 96, 1, 4, [packed])
    a = floats(5, 96)
    args = matrix.args(a, c := np.zeros((5, 64), np.float32))
    args.first_group = args.first_column_group = 0
    run(library, args)
    assert_close(c, a, matrix, reference.gemm(a, weights))


def test_units_cover_all_columns(isa: Isa) -> None:
    """Too few units would leave columns unwritten."""
    assert units(16, isa) == 1
    assert units(384, isa) * (48 if isa.name == "avx512" else 16) == 384
    assert units(64, isa) == (2 if isa.name == "avx512" else 4)


@pytest.mark.parametrize("bits", [2, 4, 6])
def test_one_row_is_exact_to_float32_s_own_error(library: Library, bits: int) -> None:
    """Also where each value is the sum of two bfloat16: at most 2**-18 a product, in either direction."""
    matrix = coded(library.isa, 2048, 48, [bits], outliers=0.001)
    a = floats(1, 2048)
    c = product(library, matrix, a)
    expected = reference.gemm(a, matrix.weights)
    # Four deviations of a sum of 2048 products, rounded in splitting and once each in adding up.
    deviation = np.sqrt(a.astype(np.float64) ** 2 @ matrix.weights**2)
    assert (np.abs(c - expected) <= 4 * (2.0**-18 + 8 * ULP) * deviation + ULP * np.abs(expected)).all()


@pytest.mark.parametrize("isa", [AVX512, AVX512_VNNI, AVX512_BF16], ids=["avx512", "vnni", "bf16"])
def test_native_rows_compile_on_any_cpu(isa: Isa) -> None:
    """Their own instructions stand in no portable form: LLVM must at least accept them here."""
    (data,) = compile_modules([gemm_ir(isa)], isa)
    assert len(data) > 10_000
