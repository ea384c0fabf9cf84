"""The least of many curves at all lengths at once; rows and results are kept while they stay."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from pliant.arrays import Float
from pliant.ir.curve import MAX_SECONDS, Curve, minimum, thinned

FEW = 6
"""So many curves are compared piece by piece."""
DENSE = 4096
"""Up to this length, a row of all lengths costs less than comparing many curves piece by piece."""
_ALIKE = 1.0 + 1e-9
_STRAIGHT = 1e-12
_MOST_KEPT = 64


@dataclass(frozen=True, slots=True)
class WayCurve:
    """A curve, and the `fixed_s` + `per_item_s` * n seconds that the way adds to it."""

    curve: Curve
    fixed_s: float
    per_item_s: float

    @property
    def whole(self) -> Curve:
        return self.curve.plus(self.fixed_s, self.per_item_s)


@final
class WayTimes:
    """Lengths are 0..`max_n`. An advert is made often, and most of the curves are those of the last one."""

    def __init__(self, max_n: int) -> None:
        self._max_n = max_n
        self._lengths = np.arange(max_n + 1.0 if max_n <= DENSE else 0.0)
        self._rows: dict[int, tuple[Curve, Float[np.ndarray, " n"]]] = {}
        """By the id of a curve, which is held here so that no other has it."""
        self._made: dict[tuple[int, int, int], tuple[Float[np.ndarray, " n"], Curve]] = {}

    def least(
        self, ways: Sequence[WayCurve], counts: Sequence[int], most_points: Sequence[int]
    ) -> list[tuple[Curve, list[bool]]]:
        """For each of `counts`, rising: the minimum of the first so many `ways`, and which of them touch it.

        The curve has at most `most_points` points.
        """
        if len(ways) <= FEW or self._max_n > DENSE:
            return [
                self._piecewise([way.whole for way in ways[:count]], most)
                for count, most in zip(counts, most_points, strict=True)
            ]
        times, found, done = self._times(ways), [], 0
        least = np.full(len(self._lengths), np.inf)
        for count, most in zip(counts, most_points, strict=True):
            least = np.minimum(least, times[done:count].min(0)) if count > done else least
            done = count
            touching: list[bool] = np.any(times[:count] <= least * _ALIKE, axis=1).tolist()
            found.append((self._curve(least, (len(ways), count, most)), touching))
        return found

    def _piecewise(self, curves: Sequence[Curve], most: int) -> tuple[Curve, list[bool]]:
        least = minimum(curves, self._max_n)
        touching = [any(curve.at(n) <= t * _ALIKE for n, t in least.points) for curve in curves]
        return thinned(least, most), touching

    def _times(self, ways: Sequence[WayCurve]) -> Float[np.ndarray, "ways n"]:
        rows = []
        for way in ways:
            known = self._rows.get(id(way.curve))
            if known is None:
                known = self._rows[id(way.curve)] = (way.curve, way.curve.over(self._lengths))
            rows.append(known[1])
        if len(self._rows) > 2 * len(ways) + _MOST_KEPT:
            self._rows = {id(way.curve): self._rows[id(way.curve)] for way in ways}
        times: Float[np.ndarray, "ways n"] = np.array(rows)
        times += np.array([way.fixed_s for way in ways])[:, None]
        per_item_s = np.array([way.per_item_s for way in ways])
        if per_item_s.any():
            times += per_item_s[:, None] * self._lengths
        np.minimum(times, MAX_SECONDS, out=times)
        return times

    def _curve(self, least: Float[np.ndarray, " n"], key: tuple[int, int, int]) -> Curve:
        """The curve through `least`, with points where it bends; `key` ends in how many it may have."""
        known = self._made.get(key)
        if known is not None and np.array_equal(known[0], least):
            return known[1]
        bends = np.abs(least[2:] - 2.0 * least[1:-1] + least[:-2]) > _STRAIGHT * least[1:-1]
        lengths = [0, *(np.flatnonzero(bends) + 1).tolist(), self._max_n]
        curve = thinned(Curve(tuple(zip(lengths, least[lengths].tolist(), strict=True))), key[2])
        if len(self._made) >= _MOST_KEPT:
            self._made.clear()
        self._made[key] = (least, curve)
        return curve
