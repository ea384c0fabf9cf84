"""Piecewise-linear curves of times: minima, sums, differences, scaling.

Times by input length (a device's own, and those that nodes exchange) and by a stage's FLOPs (device profiles)
have the same type. Operations over lengths are exact at every integer length (up to rounding), because they
use breakpoints, not samples.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import floor, inf, isfinite

from pliant.errors import PeerCurveError, ProfileError

MAX_POINTS = 64
"""Maximum number of points of a curve in a message."""
MAX_LENGTH = 2**31 - 1
MAX_SECONDS = 1e7
"""A third of a year; larger times are invalid, and arithmetic with them would overflow."""
OUT_OF_REACH_S = 1e6
"""The time at lengths that an endpoint has no memory for (`limit`); 12 days, which no answer takes."""
_SAME = 1e-12


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds by size (items of an input, FLOPs of a stage): linear between points (n, T(n)) (CRIME 4.2).

    Constant before the first point; beyond the last point the last slope continues, but never downward. n is
    strictly increasing and >= 0, T in 0..MAX_SECONDS; anything else raises ProfileError.
    """

    points: tuple[tuple[float, float], ...]
    _lengths: tuple[float, ...] = field(init=False, repr=False, compare=False)
    _pieces: tuple[tuple[float, float, float, float], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        points = self.points
        if not points:
            raise ProfileError("a curve of times has no point; measure again, at one size or more.")
        n, seconds = points[0]
        pieces, slope = [(0.0, n, seconds, 0.0)], 0.0
        before_n, before_s = -1.0, 0.0
        for n, seconds in points:
            if not 0 <= n < inf or n <= before_n or not 0.0 <= seconds <= MAX_SECONDS:
                raise ProfileError(
                    f"a curve of times has the point ({n}, {seconds}) after size {before_n}: sizes must rise "
                    f"from 0, seconds lie in 0..{MAX_SECONDS:g}; measure again."
                )
            if before_n >= 0:
                slope = (seconds - before_s) / (n - before_n)
                pieces.append((before_n, before_n, before_s, slope))
            before_n, before_s = n, seconds
        pieces.append((before_n, before_n, before_s, max(slope, 0.0)))
        object.__setattr__(self, "_lengths", tuple([n for n, _ in points]))
        object.__setattr__(self, "_pieces", tuple(pieces))

    def at(self, n: float) -> float:
        """Seconds for length n >= 0."""
        _, start, seconds, slope = self._pieces[bisect_right(self._lengths, n)]
        return seconds + slope * (n - start)

    def plus(self, seconds: float, per_item: float = 0.0) -> "Curve":
        """Return this curve plus `seconds` + `per_item` * n (both >= 0); points are capped at MAX_SECONDS."""
        if not per_item:
            if not seconds:
                return self
            return Curve(tuple([(n, min(t + seconds, MAX_SECONDS)) for n, t in self.points]))
        points = list(self.points)
        if points[0][0] > 0:
            points.insert(0, (0, points[0][1]))
        if self._pieces[-1][3] == 0.0:  # else a falling last piece would continue to fall
            last_n, last_s = points[-1]
            points.append((last_n + 1, last_s))
        return Curve(tuple([(n, min(t + seconds + per_item * n, MAX_SECONDS)) for n, t in points]))

    @property
    def pieces(self) -> tuple[tuple[float, float, float, float], ...]:
        """(first length, start, seconds, slope): from that length, T(n) = seconds + slope * (n - start)."""
        return self._pieces[1:] if self._lengths[0] == 0 else self._pieces

    @property
    def lengths(self) -> tuple[float, ...]:
        return self._lengths


def line(intercept_s: float, slope_s: float, max_n: int) -> Curve:
    """Return `intercept_s` + `slope_s` * n on 0..max_n, and 0 where that would be negative."""
    end_s = intercept_s + slope_s * max_n
    if max_n < 1:
        return Curve(((0, max(0.0, intercept_s)),))
    if (intercept_s < 0.0) == (end_s < 0.0):
        return Curve(((0, max(0.0, intercept_s)), (max_n, max(0.0, end_s))))
    turn = min(max(floor(-intercept_s / slope_s), 0), max_n - 1)
    lengths = sorted({0, turn, turn + 1, max_n})
    return Curve(tuple((n, max(0.0, intercept_s + slope_s * n)) for n in lengths))


def limit(curve: Curve, most_n: int) -> Curve:
    """Return `curve` up to length `most_n` >= 0, and OUT_OF_REACH_S beyond it.

    So minima over devices take another one there, and nodes that know no limit meet no deadline with it.
    """
    points = [(n, seconds) for n, seconds in curve.points if n < most_n]
    beyond = ((most_n + 1, OUT_OF_REACH_S), (most_n + 2, OUT_OF_REACH_S))
    return Curve((*points, (most_n, curve.at(most_n)), *beyond))


def minimum(curves: Sequence[Curve], max_n: int) -> Curve:
    """Return the minimum of `curves` (at least one) at every integer length 0..max_n.

    If two curves cross between two integers, both integers become points, so that no length is rounded to a
    crossing. O(k^2) for each stretch between breakpoints of k curves.
    """
    if len(curves) == 1:
        return curves[0]
    met: set[float] = {0, max_n}
    for curve in curves:
        met.update(n for n in curve.lengths if n < max_n)
    knots = sorted(met)
    columns = list(zip(*([c.at(n) for n in knots] for c in curves), strict=True))
    least = [min(column) for column in columns]
    points: list[tuple[float, float]] = []
    for i in range(len(knots) - 1):
        points.append((knots[i], least[i]))
        first = columns[i].index(least[i])
        if columns[i + 1][first] > least[i + 1]:  # a line that is least at both ends is least in between
            points += _crossings(columns[i], columns[i + 1], knots[i], knots[i + 1])
    points.append((max_n, least[-1]))
    return Curve(_drop_collinear(points))


def max_excess(a: Curve, b: Curve, max_n: int, ratio: float) -> float:
    """Return the maximum of |a(n) - b(n)| - ratio * min(a(n), b(n)) over all lengths 0..max_n.

    It is linear between breakpoints and crossings, and a crossing is a maximum only if a breakpoint is one
    too, so breakpoints suffice.
    """
    if a.lengths == b.lengths and (a.lengths[0], a.lengths[-1]) == (0, max_n):
        pairs = [(s, t) for (_, s), (_, t) in zip(a.points, b.points, strict=True)]
    else:
        lengths = {0, max_n, *a.lengths, *b.lengths}
        pairs = [(a.at(n), b.at(n)) for n in lengths if n <= max_n]
    return max([abs(s - t) - ratio * (s if s < t else t) for s, t in pairs])


def thin(curve: Curve, max_points: int) -> Curve:
    """Return `curve` with at most `max_points` >= 2 points, dropping those that change it least in turn."""
    if len(curve.points) <= max_points:
        return curve
    points = list(curve.points)
    costs = [_deviation(*points[i - 1 : i + 2]) for i in range(1, len(points) - 1)]
    while len(points) > max(max_points, 2):
        i = costs.index(min(costs))
        del points[1 + i], costs[i]
        if i < len(costs):
            costs[i] = _deviation(*points[i : i + 3])
        if i:
            costs[i - 1] = _deviation(*points[i - 1 : i + 2])
    return Curve(tuple(points))


def parse_curve(points: object, max_points: int = MAX_POINTS) -> Curve:
    """Return a curve from a peer's data. Raises PeerCurveError naming value and limit."""
    if not isinstance(points, list | tuple) or not 1 <= len(points) <= max_points:
        size = len(points) if isinstance(points, list | tuple) else type(points).__name__
        raise PeerCurveError(f"a peer's curve is {size}; expected 1..{max_points} points (length, seconds).")
    before, kept = -1, []
    for pair in points:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise PeerCurveError(f"a peer's curve has the point {pair!r:.80}; expected (length, seconds).")
        n, seconds = pair
        if type(n) is not int or not before < n <= MAX_LENGTH:
            raise PeerCurveError(
                f"a peer's curve has length {n!r:.40} after {before}; lengths are integers that rise, "
                f"in 0..{MAX_LENGTH}."
            )
        if type(seconds) not in (int, float) or not 0 <= seconds <= MAX_SECONDS or not isfinite(seconds):
            raise PeerCurveError(
                f"a peer's curve has {seconds!r:.40} seconds at length {n}; expected 0..{MAX_SECONDS:g}."
            )
        kept.append((n, float(seconds)))
        before = n
    return Curve(tuple(kept))


def _crossings(
    starts: Sequence[float], ends: Sequence[float], a: float, b: float
) -> list[tuple[float, float]]:
    """Return points of the minimum of lines, strictly between a and b, where one line replaces another."""
    lines = [(s, (t - s) / (b - a)) for s, t in zip(starts, ends, strict=True)]
    here, (value, slope) = a, min(lines)
    points: list[tuple[float, float]] = []
    while True:
        # the line that first falls below the current one
        at = float(b)
        for start, steep in lines:
            if steep < slope:
                x = here + max(0.0, (start + steep * (here - a) - value) / (slope - steep))
                at = min(at, x)
        left = floor(at)
        if here < left < b:
            points.append((left, value + slope * (left - here)))
        if left + 1 >= b:
            return points
        here = left + 1
        value, slope = min((start + steep * (here - a), steep) for start, steep in lines)
        points.append((here, value))


def _drop_collinear(points: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Return `points` without those on the line between their neighbours."""
    kept = points[:1]
    for i in range(1, len(points) - 1):
        if _deviation(kept[-1], points[i], points[i + 1]) > _SAME:
            kept.append(points[i])
    return (*kept, *points[1:][-1:])


def _deviation(p: tuple[float, float], q: tuple[float, float], r: tuple[float, float]) -> float:
    """Return the distance of q from the line p-r, relative to q's value."""
    between = p[1] + (r[1] - p[1]) * (q[0] - p[0]) / (r[0] - p[0])
    return abs(between - q[1]) / max(abs(q[1]), 1e-300)
