"""The least of many curves, with what the ways to them add, at all lengths at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from pliant.arrays import Float
from pliant.ir.curve import MAX_SECONDS, Curve, minimum, thinned

FEW = 6
"""So many curves are compared piece by piece."""
DENSE = 4096
"""Up to this length, a row of all lengths costs less than comparing many curves piece by piece."""
_ALIKE = 1.0 + 1e-9
_STRAIGHT = 1e-12


@dataclass(frozen=True, slots=True)
class WayCurve:
    """A curve, and the `fixed_s` + `per_item_s` * n seconds that the way adds to it."""

    curve: Curve
    fixed_s: float
    per_item_s: float

    @property
    def whole(self) -> Curve:
        return self.curve.plus(self.fixed_s, self.per_item_s)


def least(
    ways: Sequence[WayCurve], counts: Sequence[int], most_points: Sequence[int], max_n: int
) -> list[tuple[Curve, list[bool]]]:
    """For each of `counts`, rising: the minimum of the first so many `ways`, and which of them touch it.

    The curve has at most `most_points` points, and lengths are 0..`max_n`.
    """
    if len(ways) > FEW and max_n <= DENSE:
        return _dense(ways, counts, most_points, max_n)
    curves = [way.whole for way in ways]
    return [_piecewise(curves[:count], most, max_n) for count, most in zip(counts, most_points, strict=True)]


def _piecewise(curves: Sequence[Curve], most: int, max_n: int) -> tuple[Curve, list[bool]]:
    made = minimum(curves, max_n)
    touching = [any(curve.at(n) <= t * _ALIKE for n, t in made.points) for curve in curves]
    return thinned(made, most), touching


def _dense(
    ways: Sequence[WayCurve], counts: Sequence[int], most_points: Sequence[int], max_n: int
) -> list[tuple[Curve, list[bool]]]:
    times = _times(ways, max_n)
    rows = np.minimum.accumulate(times)[np.array(counts) - 1]
    touching = (times <= (rows * _ALIKE)[:, None]).any(2).tolist()
    is_point = np.ones(rows.shape, np.bool_)  # both ends, and where a row bends
    bends = np.abs(rows[:, 2:] - 2.0 * rows[:, 1:-1] + rows[:, :-2])
    np.greater(bends, _STRAIGHT * rows[:, 1:-1], out=is_point[:, 1:-1])
    points = zip(np.nonzero(is_point)[1].tolist(), rows[is_point].tolist(), strict=True)
    curves = [Curve(tuple(islice(points, n))) for n in is_point.sum(1).tolist()]
    return [
        (thinned(curve, most), of_all[:count])
        for curve, most, of_all, count in zip(curves, most_points, touching, counts, strict=True)
    ]


def _times(ways: Sequence[WayCurve], max_n: int) -> Float[np.ndarray, "ways n"]:
    lengths = np.arange(max_n + 1.0)
    times: Float[np.ndarray, "ways n"] = np.array([way.curve.over(lengths) for way in ways])
    times += np.array([way.fixed_s for way in ways])[:, None]
    per_item_s = np.array([way.per_item_s for way in ways])
    if per_item_s.any():
        times += per_item_s[:, None] * lengths
    np.minimum(times, MAX_SECONDS, out=times)
    return times
