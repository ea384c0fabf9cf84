"""The int8 GEMM: its integers are exact, its rounding is what it says, on every ISA."""

import ctypes

import numpy as np
import pytest

from pliant.kernels import reference
from pliant.kernels.decode import int8_scale
from pliant.kernels.gemm import ACTIVATIONS
from pliant.kernels.gemm_args import BF16, F16, F32
from pliant.kernels.gemm_int8 import (
    LARGEST_ACTIVATION,
    GemmInt8Args,
    QuantizeArgs,
    gemm_int8_ir,
    quantize_rows_ir,
    scratch_bytes_int8,
    units_int8,
)
from pliant.kernels.isa import AVX512_VNNI, Isa
from pliant.kernels.jit import Library, compile_modules
from tests.kernels.calling import address, call, floats, guarded
from tests.kernels.coded import Coded, codebooks, coded

ALL = (1, 2, 3, 4, 5, 6, F16, BF16, F32)
SCALE = int8_scale(codebooks()[6])


def quantized(library: Library, a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int16 rows (with a gap after each) and scales, by the kernel."""
    rows, columns = a.shape
    q, scales = np.full((rows, columns + 6), 7, np.int16), np.zeros(rows, np.float32)
    args = QuantizeArgs(
        a.ctypes.data, a.strides[0] // 4, columns, q.ctypes.data, columns + 6, scales.ctypes.data
    )
    call(address(library, "quantize_rows", quantize_rows_ir), args, rows)
    assert (q[:, columns:] == 7).all()
    return q[:, :columns], scales


def product(
    library: Library, matrix: Coded, q: np.ndarray, scales: np.ndarray, **epilogue: object
) -> np.ndarray:
    rows, columns = len(q), matrix.weights.shape[1]
    c = guarded(rows, columns, columns + 3)
    args = GemmInt8Args(matrix.args(q, c[:, :columns], **epilogue), scales.ctypes.data, SCALE)  # type: ignore[arg-type]
    args.gemm.lda = q.strides[0] // 2
    call(
        address(library, "gemm_int8", gemm_int8_ir),
        args,
        units_int8(columns),
        scratch_bytes_int8(matrix.weights.shape[0]),
    )
    assert (c[:, columns:] == 7.0).all()
    return c[:, :columns]


def steps(matrix: Coded) -> np.ndarray:
    """B in whole steps of the layer's scale, as the kernel rounds it."""
    scaled = matrix.weights * (np.float32(1) / np.float32(SCALE))
    return np.rint(np.clip(scaled, -32767, 32767)).astype(np.int64)


def integers(rows: int, depth: int, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return draw.integers(-LARGEST_ACTIVATION, LARGEST_ACTIVATION + 1, (rows, depth)).astype(np.int16)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6, 7, 11, 12, 13, 25, 512])
@pytest.mark.parametrize("along_rows", [False, True], ids=["columns", "rows"])
def test_integers_are_exact(library: Library, along_rows: bool, rows: int) -> None:
    """Every form of slice beside every other: the sums equal integer arithmetic, outliers included."""
    shape = (32 * len(ALL), 48) if along_rows else (96, 32 * len(ALL))
    matrix = coded(library.isa, *shape, ALL, along_rows=along_rows, is_int8=True)
    q = integers(rows, shape[0])
    c = product(library, matrix, q, np.full(rows, 1 / SCALE, np.float32))
    exact = q.astype(np.int64) @ steps(matrix)
    assert np.abs(exact).max() < 2**31
    # One rounding to float32, and that of 1 / SCALE * SCALE.
    np.testing.assert_allclose(c, exact, rtol=3 * 2.0**-24, atol=0)


@pytest.mark.parametrize("bits", range(1, 7))
def test_sums_do_not_overflow_at_their_largest(library: Library, bits: int) -> None:
    """4096 rows of the largest activation and the largest centroid fit 32 bits."""
    matrix = coded(library.isa, 4096, 16, [bits], outliers=(), is_int8=True)
    q = np.full((2, 4096), LARGEST_ACTIVATION, np.int16) * np.sign(steps(matrix)[:, 3]).astype(np.int16)
    c = product(library, matrix, q, np.full(2, 1 / SCALE, np.float32))
    exact = q.astype(np.int64) @ steps(matrix)
    np.testing.assert_allclose(c, exact, rtol=3 * 2.0**-24, atol=1)


@pytest.mark.parametrize("rows", [1, 7, 12])
@pytest.mark.parametrize("name", [None, "gelu", "gelu_tanh", "relu", "tanh"])
def test_epilogues(library: Library, name: str | None, rows: int) -> None:
    """The same epilogues as in float32, after the scales."""
    matrix = coded(library.isa, 64, 48, [4], is_int8=True)
    q, scales = integers(rows, 64), floats(rows, seed=2) ** 2 * 1e-4
    bias, residual = floats(48, seed=3), floats(rows, 50, seed=4)[:, :48]
    extra = {} if name else {"residual": residual}
    c = product(library, matrix, q, scales, bias=bias, activation=ACTIVATIONS[name], **extra)
    sums = (q.astype(np.int64) @ steps(matrix)) * scales[:, None].astype(np.float64) * np.float32(SCALE)
    expected = reference.gemm(np.eye(rows), sums, bias, name, None if name else residual)
    np.testing.assert_allclose(c, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 5])
def test_activations_are_rounded_to_their_row_s_scale(library: Library, rows: int) -> None:
    """Dynamic quantization: the largest value of a row is 2047 steps, each other the nearest step."""
    a = floats(rows, 64) * np.float32(10.0) ** np.arange(rows, dtype=np.float32)[:, None]
    q, scales = quantized(library, a)
    np.testing.assert_allclose(scales, np.abs(a).max(1) / LARGEST_ACTIVATION, rtol=1e-6)
    assert (np.abs(q).max(1) == LARGEST_ACTIVATION).all()
    assert (np.abs(q * scales[:, None] - a) <= scales[:, None] * 0.501).all()


def test_a_row_of_zeros_stays_zero(library: Library) -> None:
    """Its scale is 0, and nothing divides by it."""
    q, scales = quantized(library, np.zeros((2, 32), np.float32))
    assert not q.any()
    assert not scales.any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_make_their_row_nan(library: Library, value: float) -> None:
    """Integers hold neither: the row's scale carries them on, other rows keep theirs."""
    a = floats(3, 64)
    a[1, 9] = value
    q, scales = quantized(library, a)
    np.testing.assert_array_equal(np.isnan(scales), [False, True, False])
    matrix = coded(library.isa, 64, 16, [4], is_int8=True)
    np.testing.assert_array_equal(np.isnan(product(library, matrix, q, scales)).all(1), [False, True, False])


@pytest.mark.parametrize("bits", [2, 4, 6, F32])
def test_rounding_costs_no_more_than_half_a_step(library: Library, bits: int) -> None:
    """Against float64 with the same weights, outliers unclipped: independent errors of half a step."""
    matrix = coded(library.isa, 384, 64, [bits], is_int8=True, outliers=0.01)
    a = floats(9, 384)
    expected = reference.gemm(a, matrix.weights)
    error = product(library, matrix, *quantized(library, a)) - expected
    bound = 0.5 * SCALE / np.sqrt((matrix.weights**2).mean()) + 0.5 * np.abs(a).max() / LARGEST_ACTIVATION
    assert np.sqrt((error**2).mean()) <= bound * np.sqrt((expected**2).mean())


def test_the_vnni_row_compiles() -> None:
    """No CPU here may have VNNI, but its kernel must be one that LLVM accepts for it."""
    (data,) = compile_modules([gemm_int8_ir(AVX512_VNNI)], AVX512_VNNI)
    assert len(data) > 1000


def test_args_begin_with_those_of_the_float_gemm() -> None:
    """Kernels read both from one address."""
    assert GemmInt8Args.gemm.offset == 0
    assert ctypes.sizeof(GemmInt8Args) % 8 == 0


def test_units_are_column_groups(isa: Isa) -> None:
    """On every ISA."""
    assert units_int8(384) == 24
