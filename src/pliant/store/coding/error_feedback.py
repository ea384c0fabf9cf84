"""Round the rows of a matrix one after another, each correcting the errors of those before it.

For x @ matrix the squared error over the rows of X is the trace of E' H E, where E is the error of the
weights and H = X' X. With H = M' D M, M unit lower triangular and D diagonal, it is the sum of D times the
squares of M E, so that row k is best rounded after adding the errors of the rows before it, weighted by row k
of M (LDLQ of Chee et al. 2023, equal to GPTQ of Frantar et al. 2023).
"""

import numpy as np

from pliant.arrays import Bool, Float32, Float64, UInt8

_DAMPING = 0.1
"""The part of the mean of H's diagonal that is added to it: what other inputs than the examples may add."""
_BLOCK = 128
"""Rows whose corrections by the rows before the block are one product; within it there are no calls of BLAS,
whose threads would take longer to start than to multiply.
"""


def round_with_feedback(
    matrix: Float32[np.ndarray, "K N"],
    levels: Float32[np.ndarray, " levels"],
    alone: UInt8[np.ndarray, "K N"],
    is_exact: Bool[np.ndarray, "K N"],
    moments: Float32[np.ndarray, "K K"],
) -> tuple[UInt8[np.ndarray, "K N"], Float32[np.ndarray, "K N"]]:
    """The index into the ascending `levels` for each weight, and the corrected values of the `is_exact` ones.

    `moments` is X' X over the examples, finite and not all zero. `alone` has the codes without examples.
    Weights that are exact have code 0 and take their row's correction in full; `matrix` is returned
    elsewhere. Feedback can make the error over the examples larger, with few levels and few rows: such a
    column of the result has its codes of `alone` and its weights of `matrix`.
    """
    order = np.argsort(-np.diag(moments), kind="stable")  # large inputs first: later rows correct their error
    weights = matrix[order]
    feedback, borders = _feedback(moments[np.ix_(order, order)]), (levels[1:] + levels[:-1]) / 2
    codes, values, errors = np.zeros(matrix.shape, np.uint8), matrix.copy(), np.empty_like(weights)
    for start in range(0, len(order), _BLOCK):
        stop = min(start + _BLOCK, len(order))
        wanted = weights[start:stop] + feedback[start:stop, :start] @ errors[:start]
        for i, row in enumerate(wanted):
            k, at = start + i, order[start + i]
            exact, code = is_exact[at], np.searchsorted(borders, row)
            codes[at] = np.where(exact, 0, code)
            values[at] = np.where(exact, row, matrix[at])
            errors[k] = weights[k] - np.where(exact, row, levels[code])
            wanted[i + 1 :] += np.multiply.outer(feedback[k + 1 : stop, k], errors[k])
    made = _square_errors(np.where(is_exact, values, levels[codes]) - matrix, moments)
    is_worse = made > _square_errors(np.where(is_exact, matrix, levels[alone]) - matrix, moments)
    return np.where(is_worse & ~is_exact, alone, codes), np.where(is_worse, matrix, values)


def _square_errors(
    errors: Float32[np.ndarray, "K N"], moments: Float32[np.ndarray, "K K"]
) -> Float32[np.ndarray, " N"]:
    """The sum of squares of X @ errors over the examples, for each column."""
    squares: Float32[np.ndarray, " N"] = np.einsum("kn,kn->n", errors, moments @ errors)
    return squares


def _feedback(moments: Float32[np.ndarray, "K K"]) -> Float32[np.ndarray, "K K"]:
    """M of H = M' D M."""
    damped: Float64[np.ndarray, "K K"] = moments.astype(np.float64)
    damped[np.diag_indices(len(damped))] += _DAMPING * np.trace(damped) / len(damped)
    upper = np.linalg.cholesky(damped[::-1, ::-1])[::-1, ::-1]  # H = upper upper'
    lower: Float32[np.ndarray, "K K"] = (upper / np.diag(upper)).T.astype(np.float32)
    return np.ascontiguousarray(lower)
