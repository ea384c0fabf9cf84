"""The minimum of many curves, including the ways to them, at all lengths at once."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import numpy as np

from pliant.arrays import Float
from pliant.ir.curve import MAX_SECONDS, Curve, minimum

FEW = 6
"""Up to this many curves are compared piece by piece."""
DENSE = 4096
"""Up to this length, evaluating all lengths is cheaper than comparing many curves piece by piece."""
_ALIKE = 1.0 + 1e-9
_STRAIGHT = 1e-12


class WayCurve(NamedTuple):
    """A curve, and the `fixed_s` + `per_item_s` * n seconds that the way adds to it."""

    curve: Curve
    fixed_s: float
    per_item_s: float

    @property
    def total(self) -> Curve:
        return self.curve.plus(self.fixed_s, self.per_item_s)


def lower_envelope(
    kinds: Sequence[Sequence[WayCurve]], counts: Sequence[int], max_n: int
) -> tuple[list[list[Curve]], list[bool]]:
    """Return the minimum of the first `count` ways at lengths 0..`max_n`, per kind and count.

    `kinds` are kinds of times of the same ways; `counts` increase up to the number of ways. Also returns
    which ways touch any of the minima of the first kind.
    """
    if len(kinds[0]) > FEW and max_n <= DENSE:
        return _dense(kinds, counts, max_n)
    curves = [[way.total for way in ways] for ways in kinds]
    found = [[minimum(of_kind[:count], max_n) for count in counts] for of_kind in curves]
    touching = [
        any(_touches(curve, made) for made, count in zip(found[0], counts, strict=True) if i < count)
        for i, curve in enumerate(curves[0])
    ]
    return found, touching


def _touches(curve: Curve, envelope: Curve) -> bool:
    return any(curve.at(n) <= seconds * _ALIKE for n, seconds in envelope.points)


def _dense(
    kinds: Sequence[Sequence[WayCurve]], counts: Sequence[int], max_n: int
) -> tuple[list[list[Curve]], list[bool]]:
    times = _times(kinds, max_n)
    last = np.array(counts) - 1
    rows = np.minimum.accumulate(times, axis=1)[:, last]
    is_touching = (times[0] <= (rows[0] * _ALIKE)[:, None]).any(-1)  # counts, ways
    is_touching &= np.arange(times.shape[1]) <= last[:, None]
    is_point = np.ones(rows.shape, np.bool_)  # both ends, and where a row bends
    bends = np.abs(rows[..., 2:] - 2.0 * rows[..., 1:-1] + rows[..., :-2])
    np.greater(bends, _STRAIGHT * rows[..., 1:-1], out=is_point[..., 1:-1])
    points = zip(np.nonzero(is_point)[-1].tolist(), rows[is_point].tolist(), strict=True)
    found = [[Curve(tuple(islice(points, n))) for n in of_kind] for of_kind in is_point.sum(-1).tolist()]
    return found, is_touching.any(0).tolist()


def _times(kinds: Sequence[Sequence[WayCurve]], max_n: int) -> Float[np.ndarray, "kinds ways n"]:
    every = [way for ways in kinds for way in ways]
    times = _over([way.curve for way in every], max_n)
    fixed_s, per_item_s = np.array([(way.fixed_s, way.per_item_s) for way in every]).T
    times += fixed_s[:, None]
    times += per_item_s[:, None] * _lengths(max_n)
    np.minimum(times, MAX_SECONDS, out=times)
    return times.reshape(len(kinds), -1, max_n + 1)


def _over(curves: Sequence[Curve], max_n: int) -> Float[np.ndarray, "curves n"]:
    """Return each curve at all lengths: one interpolation, over the lengths of one curve after another."""
    spans = [_span(curve, max_n) for curve in curves]
    lengths = [i * (max_n + 1) + n for i, points in enumerate(spans) for n, _ in points]
    seconds = [s for points in spans for _, s in points]
    times: Float[np.ndarray, " n"] = np.interp(_lengths(len(spans) * (max_n + 1) - 1), lengths, seconds)
    return times.reshape(len(spans), -1)


def _span(curve: Curve, max_n: int) -> Sequence[tuple[float, float]]:
    """Return the points of `curve`, with those at both ends of 0..`max_n`."""
    points = curve.points
    if points[0][0] == 0 and points[-1][0] == max_n:
        return points
    return [(0, curve.at(0)), *(one for one in points if 0 < one[0] < max_n), (max_n, curve.at(max_n))]


@lru_cache(8)
def _lengths(max_n: int) -> Float[np.ndarray, " n"]:
    return np.arange(max_n + 1.0)
