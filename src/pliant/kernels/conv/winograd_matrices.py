"""Winograd's F(4x4, 3x3) as matrices, and weights in its form.

A tile of 4 x 4 outputs takes 36 products per channel instead of 144. With points 0, +-sqrt(1/2), +-sqrt(2)
and infinity the error is about twice that of plain summation; with the usual points +-1, +-2 it is four
times. Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2016.
"""

import numpy as np

from pliant.arrays import Float
from pliant.kernels.conv.conv_tile import COLUMNS

OUTPUTS, INPUTS = 4, 6
PLACES = INPUTS * INPUTS
_POINTS = (0.0, 0.5**0.5, -(0.5**0.5), 2.0**0.5, -(2.0**0.5))


def output_matrix() -> Float[np.ndarray, "4 6"]:
    """A^T, which sums six products; rows are powers of the points."""
    rows = [[point**i for point in _POINTS] + [float(i == OUTPUTS - 1)] for i in range(OUTPUTS)]
    return np.array(rows)


def input_matrix() -> Float[np.ndarray, "6 6"]:
    """B^T: each row is the polynomial that is zero at all points except its own, lowest power first."""
    rows = [np.append(np.poly(_without(i))[::-1], 0.0) for i in range(len(_POINTS))]
    return np.array([*rows, np.poly(_POINTS)[::-1]])


def weight_matrix() -> Float[np.ndarray, "6 3"]:
    """G: the three weights' polynomial at each point, divided by the other points' polynomial there."""
    rows = [
        [point**j / np.prod([point - other for other in _without(i)]) for j in range(3)]
        for i, point in enumerate(_POINTS)
    ]
    return np.array([*rows, [0.0, 0.0, 1.0]])


def pack(w: Float[np.ndarray, "outs channels 3 3"]) -> Float[np.ndarray, "panels 36 channels 16"]:
    """Weights at all 36 places, as panels of 16 output channels; rounded once, from float64."""
    outs, channels = w.shape[:2]
    both = np.kron(weight_matrix(), weight_matrix())
    panels = np.empty((outs // COLUMNS, PLACES, channels, COLUMNS), np.float32)
    for i, panel in enumerate(panels):
        part = w[i * COLUMNS : (i + 1) * COLUMNS].reshape(COLUMNS, channels, 9).astype(np.float64)
        panel[:] = (both @ part.transpose(2, 1, 0).reshape(9, -1)).reshape(panel.shape)
    return panels


def _without(i: int) -> list[float]:
    return [*_POINTS[:i], *_POINTS[i + 1 :]]
