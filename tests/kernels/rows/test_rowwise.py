"""Row kernels against the float64 oracle: odd sizes, strides, padding, NaN and infinity."""

import numpy as np
import pytest

from pliant.kernels.rows.rowwise import (
    LAYER_NORM,
    MEAN,
    MOST,
    SOFTMAX,
    LayerNormArgs,
    MeanArgs,
    RowArgs,
    layer_norm_ir,
    maximum_ir,
    mean_ir,
    mean_units,
    softmax_ir,
)
from pliant.kernels.runtime.jit import Library
from tests.kernels import reference
from tests.kernels.kernel_call import address, call, floats, guarded

SIZES = (1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 384, 1000)


def _layer_norm(
    library: Library, x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float, n_padded: int
) -> np.ndarray:
    rows, n = x.shape
    out = guarded(rows, n_padded, n_padded + 5)
    args = LayerNormArgs(
        *(x.ctypes.data, x.strides[0] // 4, out.ctypes.data, n_padded + 5),
        *(weight.ctypes.data, bias.ctypes.data, n, n_padded, eps),
    )
    call(address(library, LAYER_NORM, layer_norm_ir), args, rows)
    assert (out[:, n_padded:] == 7).all()
    assert (out[:, n:n_padded] == 0).all()
    return out[:, :n]


@pytest.mark.parametrize("n", SIZES)
def test_layer_norm_matches_float64(library: Library, n: int) -> None:
    """Normalised values are of size 1 to sqrt(n): a few roundings of 6e-8 each, times weight 1 to 3."""
    x, weight, bias = floats(5, n, seed=n, scale=3.0), floats(n, seed=1) + 2, floats(n, seed=2)
    y = _layer_norm(library, x, weight, bias, 1e-12, -(-n // 32) * 32)
    expected = reference.layer_norm(x, weight, bias, 1e-12)
    np.testing.assert_allclose(y, expected, rtol=2e-6, atol=2e-6)


def test_a_large_mean_costs_layer_norm_no_accuracy(library: Library) -> None:
    """A variance from sums of squares would lose all digits at mean 1000, deviation 1.

    The rounded mean is corrected by the mean of what it leaves; centred values of size 1 to 4 are then
    exact to a unit or two of float32 at 4.
    """
    x, one, zero = floats(4, 384) + 1000, np.ones(384, np.float32), np.zeros(384, np.float32)
    y = _layer_norm(library, x, one, zero, 1e-12, 384)
    np.testing.assert_allclose(y, reference.layer_norm(x, one, zero, 1e-12), atol=2e-6)


def test_layer_norm_of_a_constant_row_is_the_bias(library: Library) -> None:
    """Variance 0: only eps stands between this and a division by zero."""
    weight, bias = np.full(40, 2, np.float32), floats(40)
    y = _layer_norm(library, np.full((2, 40), 0.5, np.float32), weight, bias, 1e-12, 64)
    np.testing.assert_allclose(y, np.stack([bias, bias]), atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_number_spoils_its_row_of_a_layer_norm_and_no_other(library: Library, bad: float) -> None:
    """NaN must stay visible, and stay where it is."""
    x, weight, bias = floats(3, 50), np.ones(50, np.float32), np.zeros(50, np.float32)
    x[1, 49] = bad
    y = _layer_norm(library, x, weight, bias, 1e-5, 64)
    assert np.isnan(y[1]).all()
    assert np.isfinite(y[[0, 2]]).all()


def test_layer_norm_works_in_place(library: Library) -> None:
    """The arena often gives input and output the same bytes."""
    x, weight, bias = floats(6, 100), floats(100, seed=1), floats(100, seed=2)
    expected = reference.layer_norm(x, weight, bias, 1e-5)
    args = LayerNormArgs(
        x.ctypes.data, 100, x.ctypes.data, 100, weight.ctypes.data, bias.ctypes.data, 100, 100, 1e-5
    )
    call(address(library, LAYER_NORM, layer_norm_ir), args, 6)
    np.testing.assert_allclose(x, expected, rtol=2e-6, atol=2e-6)


def _rowwise(kernel: int, x: np.ndarray) -> np.ndarray:
    rows, n = x.shape
    out = guarded(rows, n, n + 3)
    args = RowArgs(x.ctypes.data, n, out.ctypes.data, n + 3, n)
    call(kernel, args, rows)
    assert (out[:, n:] == 7).all()
    return out[:, :n]


@pytest.mark.parametrize("n", SIZES)
def test_softmax_matches_float64(library: Library, n: int) -> None:
    """The shift rounds arguments up to 80 to half a unit, 4e-6; exp adds 2e-7, the sum about 1e-6."""
    x = floats(4, n, seed=n, scale=10.0)
    y = _rowwise(address(library, SOFTMAX, softmax_ir), x)
    np.testing.assert_allclose(y, reference.softmax(x), rtol=6e-6, atol=1e-37)
    np.testing.assert_allclose(y.sum(axis=1), 1, atol=1e-6)


def test_softmax_survives_any_finite_size_and_masks(library: Library) -> None:
    """Shifted by the maximum, 1e30 does not overflow, and -inf is a weight of 0."""
    x = np.float32([[1e30, 1e30, -1e30, 0, 5], [-np.inf, 0, 0, -np.inf, 0], [-3e38] * 5])
    y = _rowwise(address(library, SOFTMAX, softmax_ir), x)
    np.testing.assert_allclose(
        y, [[0.5, 0.5, 0, 0, 0], [0, 1 / 3, 1 / 3, 0, 1 / 3], [0.2] * 5], rtol=1e-6, atol=1e-37
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 18])
def test_a_bad_number_spoils_its_row_of_a_softmax(library: Library, bad: float, place: int) -> None:
    """Wherever it stands: a maximum must not lose a NaN."""
    x = floats(3, 19)
    x[1, place] = bad
    y = _rowwise(address(library, SOFTMAX, softmax_ir), x)
    assert np.isnan(y[1]).all()
    assert np.isfinite(y[[0, 2]]).all()


@pytest.mark.parametrize(("rows", "n"), [(1, 1), (1, 64), (2, 65), (7, 100), (128, 384), (3, 200)])
def test_the_mean_over_rows_matches_float64(library: Library, rows: int, n: int) -> None:
    """128 additions of numbers of size 1: at most 128 * 6e-8 * 12 in the sum, a hundredth in the mean."""
    x, out = floats(rows, n + 3), np.full(n + 2, 7, np.float32)
    args = MeanArgs(x.ctypes.data, n + 3, rows, out.ctypes.data, n)
    call(address(library, MEAN, mean_ir), args, mean_units(n))
    np.testing.assert_allclose(out[:n], reference.mean(x[:, :n]), atol=1e-6)
    assert (out[n:] == 7).all()


@pytest.mark.parametrize(("rows", "n"), [(1, 1), (1, 64), (2, 65), (7, 100), (128, 384), (3, 200)])
def test_the_greatest_over_rows_is_exact(library: Library, rows: int, n: int) -> None:
    """Nothing is rounded, -inf and negative rows included; nothing is written past the columns."""
    x, out = floats(rows, n + 3) - 5, np.full(n + 2, 7, np.float32)
    x[0, 0] = -np.inf
    args = MeanArgs(x.ctypes.data, n + 3, rows, out.ctypes.data, n)
    call(address(library, MOST, maximum_ir), args, mean_units(n))
    np.testing.assert_array_equal(out[:n], x[:, :n].max(axis=0))
    assert (out[n:] == 7).all()


@pytest.mark.parametrize("n", [1, 64, 100, 200])
def test_rows_of_several_texts_are_pooled_by_text(library: Library, n: int) -> None:
    """A row of the output for each, in any order, of all column blocks; nothing is written past them."""
    lengths, starts = np.int32([3, 1, 70]), np.int32([71, 75, 0])
    x = floats(76, n + 3)
    for name, ir, wanted in ((MEAN, mean_ir, np.mean), (MOST, maximum_ir, np.max)):
        out = np.full((4, n), 7, np.float32)
        args = MeanArgs(x.ctypes.data, n + 3, 0, out.ctypes.data, n, starts.ctypes.data, lengths.ctypes.data)
        call(address(library, name, ir), args, mean_units(n, len(lengths)))
        for start, length, found in zip(starts, lengths, out, strict=False):
            rows = x[start : start + length, :n].astype(np.float64)
            np.testing.assert_allclose(found, wanted(rows, axis=0), atol=1e-6)
        assert (out[3] == 7).all()
