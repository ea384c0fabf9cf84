"""Compute the input positions and weights of every output position of a resized axis.

Coordinates, filters and rounding are those of ONNX's Resize at opset 19; a filter is decomposed into taps.
"""

from dataclasses import dataclass
from math import floor

import numpy as np

from pliant.arrays import Float32, Int32

_HALFWAY = 1e-6
"""A coordinate counts as halfway between two positions within this tolerance, as in onnxruntime."""


@dataclass(frozen=True, slots=True)
class ResizeOptions:
    """The attributes of a Resize node."""

    mode: str
    coordinates: str
    rounding: str
    cubic: float
    is_antialias: bool
    is_inside_only: bool
    outside: float


@dataclass(frozen=True, slots=True)
class AxisScaling:
    """The factor of one axis, the result's length before rounding, and the region that is read."""

    scale: float = 1.0
    length: float = 1.0
    start: float = 0.0
    end: float = 1.0

    @property
    def is_identity(self) -> bool:
        return self.scale == 1 and (self.start, self.end) == (0.0, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class AxisTaps:
    """Output position p is `shifts[p]` plus the sum over t of `weights[p, t]` times input `places[p, t]`."""

    places: Int32[np.ndarray, "n t"]
    weights: Float32[np.ndarray, "n t"]
    shifts: Float32[np.ndarray, " n"]

    @property
    def is_selection(self) -> bool:
        """Whether each position is one input position, unchanged."""
        return self.places.shape[1] == 1 and bool((self.weights == 1).all() and (self.shifts == 0).all())


def make_taps(n_in: int, n_out: int, scaling: AxisScaling, options: ResizeOptions) -> AxisTaps:
    """The taps of one axis."""
    if options.mode == "nearest":
        x = _single(n_in, n_out, scaling, options.coordinates)
        rounding = options.rounding
        if rounding == "simple":
            rounding = "ceil" if scaling.scale < 1 else "floor"
        places = _round(x, rounding)[:, None]
        weights = np.ones(places.shape)
    else:
        x = _coordinates(n_in, n_out, scaling, options.coordinates)
        base = np.ceil(x) - 1  # so that an integer is its base plus one
        radius = 1 if options.mode == "linear" else 2
        squeeze = min(scaling.scale, 1.0) if options.is_antialias else 1.0
        first = floor(-radius / squeeze) + 1
        steps = np.arange(first, 2 - first)
        distance = (steps[None, :] - (x - base)[:, None]) * squeeze
        weights = _triangle(distance) if radius == 1 else _cubic(distance, options.cubic)
        places = base.astype(np.int64)[:, None] + steps[None, :]
        if options.is_inside_only:
            weights = np.where((places >= 0) & (places < n_in), weights, 0)
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
    shifts = np.zeros(n_out)
    if options.coordinates == "tf_crop_and_resize":
        is_outside = (x < 0) | (x > n_in - 1)
        weights = np.where(is_outside[:, None], 0, weights)
        shifts = np.where(is_outside, options.outside, 0)
    return AxisTaps(
        np.clip(places, 0, n_in - 1).astype(np.int32), weights.astype(np.float32), shifts.astype(np.float32)
    )


def _coordinates(n_in: int, n_out: int, scaling: AxisScaling, mode: str) -> np.ndarray:
    """The input coordinates of output positions, float64."""
    y = np.arange(n_out, dtype=np.float64)
    scale, length = scaling.scale, scaling.length
    is_one = length == 1
    if mode == "asymmetric":
        return y / scale
    if mode == "align_corners":
        return y * 0 if is_one else y * (n_in - 1) / (length - 1)
    if mode == "tf_crop_and_resize":
        span = (scaling.end - scaling.start) * (n_in - 1)
        return scaling.start * (n_in - 1) + (y * 0 + span / 2 if is_one else y * span / (length - 1))
    if mode == "pytorch_half_pixel" and n_out == 1:
        return y * 0
    if mode == "tf_half_pixel_for_nn":
        return (y + 0.5) / scale
    offset = n_in / 2 * (1 - n_out / length) if mode == "half_pixel_symmetric" else 0.0
    return offset + (y + 0.5) / scale - 0.5


def _single(n_in: int, n_out: int, scaling: AxisScaling, mode: str) -> np.ndarray:
    """As `_coordinates` in float32, with the same steps as onnxruntime, so that halfway coordinates round to
    the same side.
    """
    y = np.arange(n_out, dtype=np.float32)
    scale, length = np.float32(scaling.scale), np.float32(scaling.length)
    half, one, n = np.float32(0.5), np.float32(1), np.float32(n_in)
    start, end = np.float32(scaling.start), np.float32(scaling.end)
    is_one = length == 1
    if mode == "asymmetric":
        return y / scale
    if mode == "align_corners":
        return y * 0 if is_one else y * (n - one) / (length - one)
    if mode == "tf_crop_and_resize" and is_one:
        return y + half * (start + end) * (n - one)
    if mode == "tf_crop_and_resize":
        return start * (n - one) + y * (end - start) * (n - one) / (length - one)
    if mode == "half_pixel_symmetric":
        offset = n / 2 * (one - np.float32(n_out) / (scale * n))
        return (offset + (y + half) / np.float64(scale) - 0.5).astype(np.float32)
    if mode == "pytorch_half_pixel" and n_out == 1:
        return y
    if mode == "tf_half_pixel_for_nn":
        return (y + half) / scale
    return (y + half) / scale - half


def _round(x: np.ndarray, mode: str) -> np.ndarray:
    low, high = np.floor(x), np.ceil(x)
    rounded: dict[str, np.ndarray] = {
        "floor": low,
        "ceil": high,
        "round_prefer_ceil": low + (x - low >= 0.5 - _HALFWAY),
        "round_prefer_floor": low + (x - low > 0.5 + _HALFWAY),
    }
    return rounded[mode]


def _triangle(distance: np.ndarray) -> np.ndarray:
    weights: np.ndarray = np.clip(1 - np.abs(distance), 0, 1)
    return weights


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic convolution with parameter `a`."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = a * (((d - 5) * d + 8) * d - 4)
    return np.where(d <= 1, near, np.where(d < 2, far, 0))
