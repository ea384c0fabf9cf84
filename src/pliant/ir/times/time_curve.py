"""Piecewise-linear time curves over the input length: minima, differences, fits.

Every operation is exact at every integer length (up to rounding): what counts is breakpoints, not samples.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import floor, isfinite

from pliant.errors import PeerCurveError, RouteError

MAX_POINTS = 64
"""What a curve on the wire has at most."""
MAX_LENGTH = 2**31 - 1
MAX_SECONDS = 1e7
"""A third of a year; a larger time is no time, and arithmetic with it would overflow."""
_SAME = 1e-12


@dataclass(frozen=True, slots=True)
class TimeCurve:
    """Seconds to answer an input of length n: linear between points (n, T(n)) (CRIME 4.2).

    Before the first point the first's value holds; beyond the last its last slope goes on, though never
    downward. n is strictly rising and >= 0, T finite and >= 0; anything else raises RouteError.
    """

    points: tuple[tuple[int, float], ...]
    _lengths: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _pieces: tuple[tuple[int, float, float], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        points = self.points
        if not points:
            raise RouteError("a time curve has no point; give at least one (length, seconds).")
        n, seconds = points[0]
        pieces, slope = [(n, seconds, 0.0)], 0.0
        before_n, before_s = -1, 0.0
        for n, seconds in points:
            if n <= before_n or not 0.0 <= seconds <= MAX_SECONDS:
                raise RouteError(
                    f"a time curve has the point ({n}, {seconds}) after length {before_n}: lengths must "
                    f"rise from 0, seconds lie in 0..{MAX_SECONDS:g}."
                )
            if before_n >= 0:
                slope = (seconds - before_s) / (n - before_n)
                pieces.append((before_n, before_s, slope))
            before_n, before_s = n, seconds
        pieces.append((before_n, before_s, max(slope, 0.0)))
        object.__setattr__(self, "_lengths", tuple([n for n, _ in points]))
        object.__setattr__(self, "_pieces", tuple(pieces))

    def at(self, n: float) -> float:
        """Seconds for length n >= 0."""
        start, seconds, slope = self._pieces[bisect_right(self._lengths, n)]
        return seconds + slope * (n - start)

    def plus(self, seconds: float, per_item: float = 0.0) -> "TimeCurve":
        """This curve with `seconds` + `per_item` * n (both >= 0) added; no point rises above MAX_SECONDS."""
        if not per_item:
            if not seconds:
                return self
            return TimeCurve(tuple([(n, min(t + seconds, MAX_SECONDS)) for n, t in self.points]))
        points = list(self.points)
        if points[0][0] > 0:
            points.insert(0, (0, points[0][1]))
        if self._pieces[-1][2] == 0.0:  # else a last piece that falls would fall on
            last_n, last_s = points[-1]
            points.append((last_n + 1, last_s))
        return TimeCurve(tuple([(n, min(t + seconds + per_item * n, MAX_SECONDS)) for n, t in points]))

    @property
    def lengths(self) -> tuple[int, ...]:
        return self._lengths


def line(intercept_s: float, slope_s: float, max_n: int) -> TimeCurve:
    """`intercept_s` + `slope_s` * n on 0..max_n, and 0 where that would be negative."""
    end_s = intercept_s + slope_s * max_n
    if max_n < 1:
        return TimeCurve(((0, max(0.0, intercept_s)),))
    if (intercept_s < 0.0) == (end_s < 0.0):
        return TimeCurve(((0, max(0.0, intercept_s)), (max_n, max(0.0, end_s))))
    turn = min(max(floor(-intercept_s / slope_s), 0), max_n - 1)
    lengths = sorted({0, turn, turn + 1, max_n})
    return TimeCurve(tuple((n, max(0.0, intercept_s + slope_s * n)) for n in lengths))


def minimum(curves: Sequence[TimeCurve], max_n: int) -> TimeCurve:
    """The least of `curves` (at least one) at every integer length 0..max_n.

    Where two cross between two integers, both of these become points, so that no length is rounded up or
    down to a crossing. O(k^2) for each stretch between breakpoints of k curves.
    """
    if len(curves) == 1:
        return curves[0]
    met = {0, max_n}
    for curve in curves:
        met.update(n for n in curve.lengths if n < max_n)
    knots = sorted(met)
    columns = list(zip(*([c.at(n) for n in knots] for c in curves), strict=True))
    least = [min(column) for column in columns]
    points: list[tuple[int, float]] = []
    for i in range(len(knots) - 1):
        points.append((knots[i], least[i]))
        first = columns[i].index(least[i])
        if columns[i + 1][first] > least[i + 1]:  # a line that is least at both ends is least between
            points += _crossings(columns[i], columns[i + 1], knots[i], knots[i + 1])
    points.append((max_n, least[-1]))
    return TimeCurve(_without_straight(points))


def exceeds_by(a: TimeCurve, b: TimeCurve, max_n: int, ratio: float) -> float:
    """max of |a(n) - b(n)| - ratio * min(a(n), b(n)) over all lengths 0..max_n.

    Between breakpoints and crossings this is linear, and at a crossing it is no maximum unless it is
    one at a breakpoint too: breakpoints suffice.
    """
    knots = {0, max_n}
    knots.update(n for curve in (a, b) for n in curve.lengths if n < max_n)
    most = -float("inf")
    for n in knots:
        s, t = a.at(n), b.at(n)
        most = max(most, abs(s - t) - ratio * (s if s < t else t))
    return most


def thinned(curve: TimeCurve, max_points: int) -> TimeCurve:
    """`curve` with at most `max_points` >= 2 points, dropping those that change it least, one by one."""
    points = list(curve.points)
    while len(points) > max(max_points, 2):
        costs = [_off(*points[i - 1 : i + 2]) for i in range(1, len(points) - 1)]
        del points[1 + costs.index(min(costs))]
    return curve if len(points) == len(curve.points) else TimeCurve(tuple(points))


def validated(points: object, max_points: int = MAX_POINTS) -> TimeCurve:
    """A curve from what a peer sent. Raises PeerCurveError naming value and limit."""
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
    return TimeCurve(tuple(kept))


def _crossings(starts: Sequence[float], ends: Sequence[float], a: int, b: int) -> list[tuple[int, float]]:
    """Points of the least of lines between a and b, both left out, where one takes over from another."""
    lines = [(s, (t - s) / (b - a)) for s, t in zip(starts, ends, strict=True)]
    here, (value, slope) = a, min(lines)
    points: list[tuple[int, float]] = []
    while True:
        # the line that comes below the present one first
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


def _without_straight(points: list[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """`points` without those on the line between their neighbours."""
    kept = points[:1]
    for i in range(1, len(points) - 1):
        if _off(kept[-1], points[i], points[i + 1]) > _SAME:
            kept.append(points[i])
    return (*kept, *points[1:][-1:])


def _off(p: tuple[int, float], q: tuple[int, float], r: tuple[int, float]) -> float:
    """How far q lies from the line p-r, relative to its value."""
    between = p[1] + (r[1] - p[1]) * (q[0] - p[0]) / (r[0] - p[0])
    return abs(between - q[1]) / max(abs(q[1]), 1e-300)
