"""The int8 GEMM: its integers are exact, its rounding is what it says, on every ISA."""

import ctypes

import numpy as np
import pytest

from pliant.kernels.coded.decode import int8_scale
from pliant.kernels.coded.gemm import ACTIVATIONS
from pliant.kernels.coded.gemm_args import BF16, F16, F32
from pliant.kernels.coded.gemm_int8 import (
    GemmInt8Args,
    QuantizeArgs,
    gemm_int8_ir,
    quantize_rows_ir,
    scratch_bytes_int8,
    units_int8,
)
from pliant.kernels.coded.int8_form import int8_form
from pliant.kernels.emit.isa import ISAS, Isa
from pliant.kernels.runtime.jit import Library
from tests.kernels import reference
from tests.kernels.calling import address, call, floats, guarded
from tests.kernels.coded_matrices import Coded, codebooks, coded
from tests.rows import INTEGER_ROWS, integer_name

ALL = (1, 2, 3, 4, 5, 6, F16, BF16, F32)
SCALE = np.array([int8_scale(codebooks()[6])], np.float32)


def step(isa: Isa) -> np.float32:
    """What one step of a weight is worth."""
    return SCALE[0] * np.float32(127 / int8_form(isa).centroid)


def stored(library: Library, whole: np.ndarray) -> np.ndarray:
    """Signed integers as the kernel keeps them: int16 rows, or bytes above their zero in half of each."""
    form = int8_form(library.isa)
    if not form.is_bytes:
        return whole.astype(np.int16)
    out = np.full((len(whole), 2 * whole.shape[1]), 7, np.uint8)
    out[:, : whole.shape[1]] = whole + form.zero
    return out.view(np.int16)


def quantized(library: Library, a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Signed integers and scales of rows, by the kernel."""
    rows, columns = a.shape
    form = int8_form(library.isa)
    q, scales = np.full((rows, columns + 6), 0x0707, np.int16), np.zeros(rows, np.float32)
    args = QuantizeArgs(
        a.ctypes.data, a.strides[0] // 4, columns, q.ctypes.data, columns + 6, scales.ctypes.data
    )
    call(address(library, "quantize_rows", quantize_rows_ir), args, rows)
    kept = q.view(np.uint8 if form.zero else np.int8) if form.is_bytes else q
    assert (kept[:, columns:] == (7 if form.is_bytes else 0x0707)).all(), "the kernel wrote past its columns"
    return kept[:, :columns].astype(np.int64) - form.zero, scales


def product(
    library: Library, matrix: Coded, whole: np.ndarray, scales: np.ndarray, **epilogue: object
) -> np.ndarray:
    """The GEMM of signed integers, by the kernel."""
    rows, columns = len(whole), matrix.weights.shape[1]
    q = stored(library, whole)
    c = guarded(rows, columns, columns + 3)
    args = GemmInt8Args(matrix.args(q, c[:, :columns], **epilogue), scales.ctypes.data, SCALE.ctypes.data)  # type: ignore[arg-type]
    args.gemm.lda = q.strides[0] // 2
    kernel = address(library, "gemm_int8", gemm_int8_ir)
    call(kernel, args, units_int8(columns), scratch_bytes_int8(matrix.weights.shape[0]))
    assert (c[:, columns:] == 7.0).all(), "the kernel wrote past its columns"
    return c[:, :columns]


def steps(isa: Isa, matrix: Coded) -> np.ndarray:
    """B in steps as the kernel holds it: whole, but for what outliers have beyond the largest weight."""
    scaled = matrix.weights * (np.float32(1) / step(isa))
    most = int8_form(isa).weight
    whole = np.rint(np.clip(scaled, -most, most)).astype(np.float64)
    is_beyond = matrix.is_outlier & (np.abs(scaled) > most)
    return np.where(is_beyond, matrix.weights.astype(np.float64) / step(isa), whole)


def integers(isa: Isa, rows: int, depth: int, seed: int = 0) -> np.ndarray:
    most = int8_form(isa).activation
    return np.random.default_rng(seed).integers(-most, most + 1, (rows, depth))


@pytest.fixture(
    scope="session",
    params=INTEGER_ROWS,
    ids=integer_name,
)
def isa(request: pytest.FixtureRequest) -> Isa:
    """Also the rows whose bytes are multiplied at once, where need be through their portable lowering."""
    found: Isa = request.param
    return found


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6, 7, 11, 12, 13, 25, 512])
@pytest.mark.parametrize("along_rows", [False, True], ids=["columns", "rows"])
def test_integers_are_exact(library: Library, along_rows: bool, rows: int) -> None:
    """Every form of slice beside every other: the sums equal integer arithmetic, outliers included."""
    shape = (32 * len(ALL), 48) if along_rows else (96, 32 * len(ALL))
    matrix = coded(library.isa, *shape, ALL, along_rows=along_rows, is_int8=True)
    q = integers(library.isa, rows, shape[0])
    c = product(library, matrix, q, np.full(rows, 1 / step(library.isa), np.float32))
    exact = q @ steps(library.isa, matrix)
    assert np.abs(exact).max() < 2**31
    # Rounded once to float32, times 1 / step * step; remainders are sums in float32.
    np.testing.assert_allclose(c, exact, rtol=4 * 2.0**-24, atol=2.0**-20 * np.abs(exact).max())


@pytest.mark.parametrize("isa", ISAS, ids=integer_name)
def test_no_sum_can_saturate(isa: Isa) -> None:
    """Pairs of bytes are summed in 16 bits, two pairs together; 8192 rows in 32."""
    form = int8_form(isa)
    largest = form.activation + form.zero
    if form.is_bytes and not isa.has_dot:
        assert 4 * largest * form.weight < 2**15
    if form.is_bytes:
        assert largest < 2**8
        assert form.weight < 2**7
    assert 8192 * largest * min(form.weight, 127) < 2**31


@pytest.mark.parametrize("bits", range(1, 7))
def test_sums_do_not_overflow_at_their_largest(library: Library, bits: int) -> None:
    """4096 rows of the largest activation and the largest centroid fit 32 bits."""
    matrix = coded(library.isa, 4096, 16, [bits], outliers=(), is_int8=True)
    whole = steps(library.isa, matrix)
    q = np.tile(np.sign(whole[:, 3]) * int8_form(library.isa).activation, (2, 1)).astype(np.int64)
    c = product(library, matrix, q, np.full(2, 1 / step(library.isa), np.float32))
    np.testing.assert_allclose(c, q @ whole, rtol=4 * 2.0**-24, atol=1)


@pytest.mark.parametrize("rows", [1, 7, 12])
@pytest.mark.parametrize("name", [None, "gelu", "gelu_tanh", "relu", "tanh"])
def test_epilogues(library: Library, name: str | None, rows: int) -> None:
    """The same epilogues as in float32, after the scales."""
    matrix = coded(library.isa, 64, 48, [4], is_int8=True)
    q, scales = integers(library.isa, rows, 64), floats(rows, seed=2) ** 2 * 1e-3
    bias, residual = floats(48, seed=3), floats(rows, 50, seed=4)[:, :48]
    extra = {} if name else {"residual": residual}
    c = product(library, matrix, q, scales, bias=bias, activation=ACTIVATIONS[name], **extra)
    sums = (q @ steps(library.isa, matrix)) * scales[:, None].astype(np.float64) * step(library.isa)
    expected = reference.gemm(np.eye(rows), sums, bias, name, None if name else residual)
    np.testing.assert_allclose(c, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 5])
def test_activations_are_rounded_to_their_row_s_scale(library: Library, rows: int) -> None:
    """Dynamic quantization: the largest value of a row is all steps, each other the nearest step."""
    a = floats(rows, 64) * np.float32(10.0) ** np.arange(rows, dtype=np.float32)[:, None]
    q, scales = quantized(library, a)
    most = int8_form(library.isa).activation
    np.testing.assert_allclose(scales, np.abs(a).max(1) / most, rtol=1e-6)
    assert (np.abs(q).max(1) == most).all()
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


@pytest.mark.parametrize("bits", [2, 4, 6])
def test_rounding_costs_no_more_than_half_a_step(library: Library, bits: int) -> None:
    """Against float64 with the same weights, outliers unclipped: independent errors of half a step."""
    matrix = coded(library.isa, 384, 64, [bits], is_int8=True, outliers=0.01)
    a = floats(9, 384)
    expected = reference.gemm(a, matrix.weights)
    error = product(library, matrix, *quantized(library, a)) - expected
    weight = 0.5 * step(library.isa) / np.sqrt((matrix.weights**2).mean())
    bound = weight + 0.5 * np.abs(a).max() / int8_form(library.isa).activation
    assert np.sqrt((error**2).mean()) <= bound * np.sqrt((expected**2).mean())


def test_args_begin_with_those_of_the_float_gemm() -> None:
    """Kernels read both from one address."""
    assert GemmInt8Args.gemm.offset == 0
    assert ctypes.sizeof(GemmInt8Args) % 8 == 0


def test_units_are_column_groups(isa: Isa) -> None:
    """On every ISA."""
    assert units_int8(384) == 24
