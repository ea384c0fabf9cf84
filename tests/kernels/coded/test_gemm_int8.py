"""The int8 GEMM: its integers are exact, its rounding is what it says, on every ISA."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from pliant.kernels.coded.decode import int8_step, round_to_steps
from pliant.kernels.coded.gemm import ACTIVATIONS
from pliant.kernels.coded.gemm_args import BF16, F16, F32
from pliant.kernels.coded.int8.gemm_int8 import GemmInt8Args, gemm_int8_ir, scratch_bytes_int8, units_int8
from pliant.kernels.coded.int8.round_rows import RoundRowsArgs, round_rows_ir
from pliant.kernels.coded.int8.tile_int8 import tile_shape
from pliant.kernels.coded.int8_form import int8_form
from pliant.kernels.emit.isa import ISAS, Isa
from pliant.kernels.runtime.jit import Library
from tests.kernels import reference
from tests.kernels.coded_matrices import Coded, codebooks, coded
from tests.kernels.kernel_call import address, call, floats, guarded
from tests.rows import INTEGER_ROWS, integer_name, isa_fixtures

isa, library = isa_fixtures(INTEGER_ROWS)

ALL = (1, 2, 3, 4, 5, 6, F16, BF16, F32)


def step(isa: Isa) -> np.float32:
    """What one step of a weight is worth."""
    return np.float32(int8_step(codebooks()[6], np.zeros(0, np.float32), isa))


def height_of(isa: Isa, rows: int) -> int:
    """Rows that stand together: those of a vector tile, or one where tile registers hold the sums."""
    return 1 if isa.has_tiles and rows > 8 else tile_shape(isa).rows


def stored(isa: Isa, whole: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """Signed integers as the kernel keeps them: above their row's zero point, packed as tiles are high."""
    form, height = int8_form(isa), height_of(isa, len(whole))
    element = np.int16 if not form.is_bytes else np.uint8 if form.lowest == 0 else np.int8
    moved = (whole + zeros[:, None]).astype(element)
    blocks = [moved[i : i + height] for i in range(0, len(moved), height)]
    packed = [b.reshape(len(b), -1, form.packing).transpose(1, 0, 2).reshape(-1) for b in blocks]
    return np.concatenate(packed)


def pairs(scales: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """Scales and zero points as `RoundRowsArgs` has them."""
    return np.stack([scales.astype(np.float32), zeros.astype(np.int32).view(np.float32)], 1)


def rounded(
    library: Library, a: np.ndarray, depth: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Signed integers, scales and zero points of rows, by the kernel."""
    rows, columns = a.shape
    form, height = int8_form(library.isa), height_of(library.isa, rows)
    depth = depth or columns
    size = rows * depth * 4 // form.packing
    q, scales = np.full(size + 64, 7, np.uint8), np.zeros((rows, 2), np.float32)
    args = RoundRowsArgs(
        *(a.ctypes.data, a.strides[0] // 4, rows, columns, q.ctypes.data, depth, scales.ctypes.data)
    )
    call(address(library, "round_rows", round_rows_ir), args, rows)
    assert (q[size:] == 7).all(), "the kernel wrote past its rows"
    element = np.int16 if not form.is_bytes else np.uint8 if form.lowest == 0 else np.int8
    zeros = np.ascontiguousarray(scales[:, 1]).view(np.int32)
    flat, out = q[:size].view(element), np.zeros((rows, depth), np.int64)
    for i in range(0, rows, height):
        n = min(height, rows - i)
        block = flat[i * depth : (i + n) * depth].reshape(-1, n, form.packing)
        out[i : i + n] = block.transpose(1, 0, 2).reshape(n, depth)
    return out - zeros[:, None], np.ascontiguousarray(scales[:, 0]), zeros


def product(
    library: Library,
    matrix: Coded,
    whole: np.ndarray,
    scales: np.ndarray,
    zeros: np.ndarray | None = None,
    *,
    has_sums: bool = False,
    off_by: int = 0,
    **epilogue: object,
) -> np.ndarray:
    """The GEMM of signed integers, by the kernel; `zeros` are the rows' zero points, else in the middle.

    Sums of columns that are given are `off_by` too large; others are checked after the kernel wrote them.
    """
    isa, (rows, columns) = library.isa, (len(whole), matrix.weights.shape[1])
    form = int8_form(isa)
    if zeros is None:
        zeros = np.full(rows, form.lowest + form.activation + 1 if form.is_bytes else 0)
    q = stored(isa, whole, zeros)
    c = guarded(rows, columns, columns + 3)
    most = form.most_steps(len(matrix.weights))
    sums = np.clip(np.rint(matrix.weights * (np.float32(1) / step(isa))), -most, most).sum(0)
    given = np.full(-(-columns // 16) * 16, -999, np.int32)
    if has_sums:
        given[:columns] = sums + off_by
    flag = np.array([has_sums], np.int32)
    a_scales, worth = pairs(scales, zeros), np.array([step(isa)])
    args = GemmInt8Args(
        *(matrix.args(whole, c[:, :columns], **epilogue), a_scales.ctypes.data),  # type: ignore[arg-type]
        *(worth.ctypes.data, given.ctypes.data, flag.ctypes.data),
    )
    args.gemm.a = q.ctypes.data
    kernel = address(library, "gemm_int8", gemm_int8_ir)
    call(kernel, args, units_int8(columns), scratch_bytes_int8(matrix.weights.shape[0], isa))
    assert (c[:, columns:] == 7.0).all(), "the kernel wrote past its columns"
    if form.is_bytes and not off_by:
        np.testing.assert_array_equal(given[:columns], sums)
    return c[:, :columns]


def steps(isa: Isa, matrix: Coded) -> np.ndarray:
    """B in steps as the kernel holds it: whole, but for what outliers have beyond the largest weight."""
    scaled = matrix.weights * (np.float32(1) / step(isa))
    most = int8_form(isa).most_steps(len(matrix.weights))
    whole = np.rint(np.clip(scaled, -most, most)).astype(np.float64)
    is_beyond = matrix.is_outlier & (np.abs(scaled) > most)
    return np.where(is_beyond, matrix.weights.astype(np.float64) / step(isa), whole)


def integers(isa: Isa, rows: int, depth: int, seed: int = 0) -> np.ndarray:
    most = int8_form(isa).activation
    return np.random.default_rng(seed).integers(-most, most + 1, (rows, depth))


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
    largest = 2 * form.activation + 1 if form.is_bytes and form.lowest == 0 else form.activation
    if form.is_bytes and not isa.has_dot:
        assert 4 * largest * form.weight < 2**15
    if form.is_bytes:
        assert largest < 2**8
        assert form.weight < 2**7
    assert 8192 * largest * min(form.weight, 127) < 2**31
    for depth in (32, 768, 8192, 9000, 66_311):
        steps = form.levels(depth) if not form.is_bytes else largest
        assert depth * steps * form.most_steps(depth) < 2**31
        assert form.most_steps(depth) >= form.centroid


@pytest.mark.parametrize("isa", ISAS, ids=integer_name)
def test_a_layer_of_outliers_alone_has_steps(isa: Isa) -> None:
    """A codebook of zeros says nothing of the weights: the largest outlier has a centroid's steps."""
    values = np.array([0.75, -0.25], np.float32)
    worth = int8_step(np.zeros(64, np.float32), values, isa)
    most = int8_form(isa).centroid
    assert round_to_steps(values, worth).tolist() == [most, -round(most / 3)]
    assert int8_step(np.zeros(64, np.float32), values[:0], isa) == 1.0


@pytest.mark.parametrize("share", [0.003, 0.1], ids=["listed", "too many to list"])
def test_remainders_are_added_before_the_activation(library: Library, share: float) -> None:
    """A few are added to each tile, many at the end; the last tile is lower, the last panel narrower."""
    matrix = coded(library.isa, 256, 112, [4], is_int8=True, outliers=share)
    q, scales = integers(library.isa, 45, 256), np.full(45, 1 / step(library.isa), np.float32)
    bias = floats(112, seed=3) * np.float32(1e5)
    c = product(library, matrix, q, scales, bias=bias, activation=ACTIVATIONS["relu"])
    exact = q @ steps(library.isa, matrix) + bias
    np.testing.assert_allclose(c, np.maximum(exact, 0), rtol=1e-6, atol=2.0**-20 * np.abs(exact).max())


@pytest.mark.parametrize("share", [1e-3, 0.1], ids=["listed", "too many to list"])
@pytest.mark.parametrize("rows", [1, 45])
def test_huge_outliers_are_exact(library: Library, rows: int, share: float) -> None:
    """Of more steps than integers hold or sums can: every form adds what is beyond in float32."""
    matrix = coded(library.isa, 256, 112, [4], is_int8=True, outliers=share, outlier_scale=4e5)
    assert np.abs(steps(library.isa, matrix)).max() > 2**20
    q, scales = integers(library.isa, rows, 256), np.full(rows, 1 / step(library.isa), np.float32)
    bias = floats(112, seed=3) * np.float32(1e5)
    c = product(library, matrix, q, scales, bias=bias, activation=ACTIVATIONS["relu"])
    exact = q @ steps(library.isa, matrix) + bias
    np.testing.assert_allclose(c, np.maximum(exact, 0), rtol=1e-6, atol=2.0**-20 * np.abs(exact).max())


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


@pytest.mark.parametrize("has_sums", [False, True], ids=["sums made", "sums given"])
@pytest.mark.parametrize("rows", [1, 9])
def test_every_row_has_a_zero_point_of_its_own(library: Library, rows: int, has_sums: bool) -> None:
    """Rows from all negative to all positive; the columns' sums may come with the weights."""
    form = int8_form(library.isa)
    matrix = coded(library.isa, 64, 112, [3], is_int8=True, outliers=())
    levels = 2 * form.activation + 1 if form.is_bytes else 0
    zeros = form.lowest + np.linspace(0, levels, rows).astype(np.int64)
    draw = np.random.default_rng(1)
    whole = draw.integers(form.lowest, form.lowest + levels + 1, (rows, 64)) - zeros[:, None]
    scales = np.full(rows, 1 / step(library.isa), np.float32)
    c = product(library, matrix, whole, scales, zeros=zeros, has_sums=has_sums)
    np.testing.assert_allclose(c, whole @ steps(library.isa, matrix), rtol=4 * 2.0**-24)


@pytest.mark.parametrize("rows", [1, 2, 8, 9])
def test_given_sums_of_columns_are_read(library: Library, rows: int) -> None:
    """They are constants, and making them takes as many multiplications as a row of A."""
    form = int8_form(library.isa)
    matrix = coded(library.isa, 64, 32, [4], is_int8=True, outliers=())
    zeros = np.full(rows, form.lowest + form.activation + 1)
    q, scales = integers(library.isa, rows, 64), np.full(rows, 1 / step(library.isa), np.float32)
    right, other = (
        product(library, matrix, q, scales, zeros, has_sums=True, off_by=n) for n in (0, 3 * form.is_bytes)
    )
    np.testing.assert_allclose(right - other, np.full((rows, 32), 3 * form.is_bytes * zeros[0]), rtol=1e-3)


@pytest.mark.parametrize("has_sums", [False, True], ids=["sums made", "sums given"])
@pytest.mark.parametrize("bits", range(1, 7))
def test_a_few_rows_are_each_as_one(library: Library, bits: int, has_sums: bool) -> None:
    """They share what is decoded: each has the numbers of float64, and to the bit those that it has alone.

    Given sums of columns hold the outliers, of which some are beyond a byte, and decoded codes do not.
    """
    isa, columns = library.isa, 75
    whole_groups = coded(isa, 192, 80, [bits, bits], along_rows=True, is_int8=True, outliers=0.03)
    weights, is_outlier = whole_groups.weights[:, :columns], whole_groups.is_outlier[:, :columns]
    matrix = replace(whole_groups, weights=weights, is_outlier=is_outlier)
    largest = int8_form(isa).weight * step(isa)
    assert (is_outlier & (np.abs(weights) > largest)).any() or not int8_form(isa).is_bytes
    bias, residual = floats(columns, seed=3), floats(9, columns + 2, seed=4)[:, :columns]
    q, scales, zeros = rounded(library, floats(9, 192))
    expected = (q @ steps(isa, matrix)) * scales[:, None].astype(np.float64) * step(isa) + bias + residual
    alone = np.concatenate(
        [
            product(
                *(library, matrix, q[i : i + 1], scales[i : i + 1], zeros[i : i + 1]),
                has_sums=has_sums,
                bias=bias,
                residual=residual[i : i + 1],
            )
            for i in range(9)
        ]
    )
    for rows in range(1, 10):
        c = product(
            *(library, matrix, q[:rows], scales[:rows], zeros[:rows]),
            has_sums=has_sums,
            bias=bias,
            residual=residual[:rows],
        )
        np.testing.assert_allclose(c, expected[:rows], rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(c, alone[:rows])


@pytest.mark.parametrize("columns", [16, 40, 64, 100])
@pytest.mark.parametrize("rows", [2, 17])
def test_the_last_columns_are_made_beside_their_place(library: Library, rows: int, columns: int) -> None:
    """Tiles are some column groups wide; C has what is left, with bias and residual."""
    matrix = coded(library.isa, 64, -(-columns // 16) * 16, [5], is_int8=True)
    q, scales = integers(library.isa, rows, 64), floats(rows, seed=2) ** 2 * 1e-3
    bias, residual = floats(columns, seed=3), floats(rows, columns, seed=4)
    narrow = replace(matrix, weights=matrix.weights[:, :columns], is_outlier=matrix.is_outlier[:, :columns])
    c = product(library, narrow, q, scales, bias=bias, residual=residual)
    sums = (q @ steps(library.isa, narrow)) * scales[:, None].astype(np.float64) * step(library.isa)
    np.testing.assert_allclose(c, sums + bias + residual, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("columns", [64, 61])
@pytest.mark.parametrize("rows", [1, 5, 8, 19])
def test_activations_are_rounded_between_their_row_s_extremes(
    library: Library, rows: int, columns: int
) -> None:
    """Dynamic quantization: each value is the nearest step, and what pads a row is zero."""
    a = floats(rows, columns) * np.float32(10.0) ** np.arange(rows, dtype=np.float32)[:, None]
    a[::2] = np.abs(a[::2])
    q, scales, _ = rounded(library, a, 64)
    form = int8_form(library.isa)
    low, high = np.minimum(a.min(1), 0), np.maximum(a.max(1), 0)
    if form.is_bytes:
        expected = (high - low) / (2 * form.activation + 1)
    else:
        expected = np.maximum(high, -low) / form.activation
    np.testing.assert_allclose(scales, expected, rtol=1e-6)
    # At one end a value may be clipped by the half step that both ends were rounded outwards.
    assert (np.abs(q[:, :columns] * scales[:, None] - a) <= scales[:, None] * 1.001).all()
    assert (np.abs(q[:, :columns] * scales[:, None] - a) > scales[:, None] * 0.501).sum() <= rows
    assert not q[:, columns:].any()


def test_a_row_of_zeros_stays_zero(library: Library) -> None:
    """Its scale is 0, and nothing divides by it."""
    q, scales, _ = rounded(library, np.zeros((2, 32), np.float32))
    assert not q.any()
    assert not scales.any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_make_their_row_nan(library: Library, value: float) -> None:
    """Integers hold neither: the row's scale carries them on, other rows keep theirs."""
    a = floats(3, 64)
    a[1, 9] = value
    q, scales, zeros = rounded(library, a)
    np.testing.assert_array_equal(np.isnan(scales), [False, True, False])
    matrix = coded(library.isa, 64, 16, [4], is_int8=True)
    np.testing.assert_array_equal(
        np.isnan(product(library, matrix, q, scales, zeros)).all(1), [False, True, False]
    )


@pytest.mark.parametrize("bits", [2, 4, 6])
def test_rounding_costs_no_more_than_half_a_step(library: Library, bits: int) -> None:
    """Against float64 with the same weights, outliers unclipped: independent errors of half a step."""
    matrix = coded(library.isa, 384, 64, [bits], is_int8=True, outliers=0.01)
    a = floats(9, 384)
    expected = reference.gemm(a, matrix.weights)
    error = product(library, matrix, *rounded(library, a)) - expected
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
