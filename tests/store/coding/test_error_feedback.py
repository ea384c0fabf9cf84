"""Rounding with error feedback: against GPTQ as its paper writes it, and by the error of products."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pliant.store.coding.error_feedback import round_with_feedback
from pliant.store.coding.matrix import code_matrix
from tests.store.coding.test_matrix import meant, read, weights

DAMPING = 0.1


def rows(n: int, depth: int, seed: int = 0, rank: int = 4) -> np.ndarray:
    """Inputs of a product: a few directions that all columns share, and noise of a tenth."""
    draw = np.random.default_rng(seed)
    shared = draw.standard_normal((n, rank)) @ draw.standard_normal((rank, depth))
    return (shared + 0.1 * draw.standard_normal((n, depth))).astype(np.float32)


def gptq(matrix: np.ndarray, levels: np.ndarray, is_exact: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """Frantar et al. 2023, algorithm 1, in float64 with blocks of one: errors divided by the diagonal of the
    Cholesky factor of H's inverse are subtracted from all later rows.
    """
    order = np.argsort(-np.diag(moments), kind="stable")
    h = moments.astype(np.float64)[np.ix_(order, order)]
    h += np.eye(len(h)) * DAMPING * np.trace(h) / len(h)
    factor = np.linalg.cholesky(np.linalg.inv(h)).T
    left, made = matrix.astype(np.float64)[order], np.empty(matrix.shape)
    for k in range(len(h)):
        nearest = levels[np.abs(left[k][:, None] - levels).argmin(1)]
        made[k] = np.where(is_exact[order[k]], left[k], nearest)
        left[k + 1 :] -= np.outer(factor[k, k + 1 :], (left[k] - made[k]) / factor[k, k])
    unordered = np.empty_like(made)
    unordered[order] = made
    return unordered


def squares(x: np.ndarray, difference: np.ndarray) -> float:
    return float(np.square(x.astype(np.float64) @ difference).sum())


@pytest.mark.parametrize("bits", [2, 4, 6])
def test_it_is_gptq(bits: int) -> None:
    """The same weights as from the inverse of H, except where float32 rounds a tie differently, which the
    rows after it then correct in another way: few of them, and no larger error.
    """
    matrix, x = weights(150, 24), rows(400, 150)
    draw = np.random.default_rng(1)
    is_exact = draw.random(matrix.shape) < 0.02
    levels = np.sort(draw.standard_normal(1 << bits) * 0.04).astype(np.float32)
    alone = np.abs(matrix[..., None] - levels).argmin(-1).astype(np.uint8)
    codes, values = round_with_feedback(matrix, levels, alone, is_exact, x.T @ x)
    made, wanted = np.where(is_exact, values, levels[codes]), gptq(matrix, levels, is_exact, x.T @ x)
    assert np.isclose(made, wanted, atol=1e-5).mean() > 0.97
    assert squares(x, made - matrix) == pytest.approx(squares(x, wanted - matrix), rel=0.05)


def test_inputs_without_correlation_leave_each_weight_at_its_level() -> None:
    """There is nothing that another row could correct."""
    matrix, levels = weights(64, 20), np.linspace(-0.1, 0.1, 16).astype(np.float32)
    none, nearest = np.zeros(matrix.shape, bool), np.abs(matrix[..., None] - levels).argmin(-1)
    zeros = np.zeros(matrix.shape, np.uint8)
    codes, values = round_with_feedback(matrix, levels, zeros, none, np.eye(64, dtype=np.float32))
    np.testing.assert_array_equal(codes, nearest)
    np.testing.assert_array_equal(values, matrix)


@settings(max_examples=25)
@given(st.integers(1, 90), st.integers(1, 40), st.integers(1, 200), st.integers(1, 6), st.integers(0, 99))
@example(18, 1, 72, 1, 18)  # feedback alone doubles the error
def test_codes_for_inputs_have_no_larger_error_on_them(
    depth: int, columns: int, n: int, bits: int, seed: int
) -> None:
    """Whatever their correlation, but for what float32 rounds."""
    matrix, x = weights(depth, columns, seed), rows(n, depth, seed)
    made = read(code_matrix(matrix, bits, x.T @ x), matrix.shape)
    plain = meant(matrix, bits)
    assert squares(x, made - matrix) <= 1.0001 * squares(x, plain - matrix) + 1e-9


def test_correlated_inputs_have_half_the_error_on_others() -> None:
    """The rows of four directions, in a matrix of 256 inputs; measured on rows that were no examples."""
    matrix, x = weights(256, 64), rows(2000, 256)
    made = read(code_matrix(matrix, 6, x[:1000].T @ x[:1000]), matrix.shape)
    others = x[1000:]
    assert squares(others, made - matrix) < 0.25 * squares(others, meant(matrix, 6) - matrix)


def test_codes_for_int8_fit_its_steps() -> None:
    """int8 kernels round centroids to steps, which has a larger part in the error than the rest."""
    matrix, x = weights(256, 64), rows(1000, 256)

    def error(steps: int | None) -> float:
        coded = code_matrix(matrix, 6, x.T @ x, steps)
        step = coded.largest / 63
        made = read(coded, matrix.shape)
        is_coded = np.abs(made) <= np.abs(coded.codebook).max()
        return squares(x, np.where(is_coded, np.rint(made / step) * step, made) - matrix)

    assert error(63) < 0.5 * error(None)


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_moments_that_say_nothing_are_ignored(bad: float) -> None:
    """Examples of zeros, or that overflow: the codes of a matrix without examples."""
    matrix = weights(64, 32)
    coded = code_matrix(matrix, 5, np.full((64, 64), bad, np.float32))
    np.testing.assert_array_equal(read(coded, matrix.shape), meant(matrix, 5))
