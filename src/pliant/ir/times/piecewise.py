"""Fit non-linear times by the fewest linear pieces within a tolerance."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import floor, isfinite

from pliant.errors import RouteError
from pliant.ir.curve import Curve, line

_LEAST_S = 1e-9
"""Relative tolerances need times above 0."""


@dataclass(frozen=True, slots=True)
class Quadratic:
    """T(n) = constant_s + linear_s * n + square_s * n^2; a line if square_s is 0 (CRIME eq. 3)."""

    constant_s: float
    linear_s: float
    square_s: float = 0.0

    def __call__(self, n: float) -> float:
        return self.constant_s + n * (self.linear_s + n * self.square_s)


def piecewise(seconds: "Callable[[int], float] | Quadratic", max_n: int, tolerance: float = 0.01) -> Curve:
    """Return the fewest pieces, with integer ends, within `tolerance` of `seconds` for all 0..max_n.

    `tolerance` is relative, in 0..1. A line is returned exactly. A general function is evaluated at each
    length (it should take microseconds, so not a measurement), which costs O(max_n * pieces). For convex and
    concave functions the number of pieces is minimal; for others there may be one or two more. Raises
    RouteError if a time is not finite and >= 0.
    """
    if not 0.0 < tolerance < 1.0 or max_n < 0:
        raise RouteError(
            f"pieces within {tolerance} up to length {max_n} cannot be: give 0..1 and a length >= 0."
        )
    if isinstance(seconds, Quadratic) and (seconds.square_s == 0.0 or max_n < 2):
        return line(seconds.constant_s, seconds.linear_s + seconds.square_s * (max_n == 1), max_n)
    if isinstance(seconds, Quadratic) and min(seconds.constant_s, seconds.linear_s, seconds.square_s) >= 0.0:
        return Curve(_convex(seconds, max_n, tolerance))
    times = [max(float(seconds(n)), _LEAST_S) for n in range(max_n + 1)]
    if not all(map(isfinite, times)):
        n = next(n for n, t in enumerate(times) if not isfinite(t))
        raise RouteError(f"the time of length {n} is {times[n]} s; give finite times.")
    return Curve(_corridor(times, tolerance))


def _convex(f: Quadratic, max_n: int, tolerance: float) -> tuple[tuple[int, float], ...]:
    """Place knots on the lower bound with pieces that just reach the upper one: minimal for convex ones."""
    low = 1.0 - tolerance
    knots = [0]
    while knots[-1] < max_n:
        a, good, bad = knots[-1], knots[-1] + 1, max_n + 1
        while bad - good > 1:
            middle = (good + bad) // 2
            if _fits(f, a, middle, tolerance):
                good = middle
            else:
                bad = middle
        knots.append(good)
    return tuple((n, low * max(f(n), _LEAST_S)) for n in knots)


def _fits(f: Quadratic, a: int, b: int, tolerance: float) -> bool:
    """Return whether the chord of (1 - tolerance) * f over [a, b] stays under (1 + tolerance) * f.

    The chord is square * (x - a)(b - x) * low above low * f. The check is at the minimum of 2 * tolerance *
    f(x) minus that, at one of the two integers beside it.
    """
    low, room = (1.0 - tolerance) * f.square_s, 2.0 * tolerance
    steep = room * f.square_s + low
    x = (low * (a + b) - room * f.linear_s) / (2.0 * steep)
    left = min(max(floor(x), a), b - 1)
    return all(room * f(n) >= low * (n - a) * (b - n) * (1.0 - 1e-12) for n in (left, left + 1))


def _corridor(times: list[float], tolerance: float) -> tuple[tuple[int, float], ...]:
    """Greedy: extend each piece as far as any line from the previous one's reach; fix values backwards."""
    last = len(times) - 1
    gates = [((1.0 - tolerance) * t, (1.0 + tolerance) * t) for t in times]
    if last == 0:
        return ((0, times[0]),)
    knots, reach = [0], [gates[0]]
    while knots[-1] < last:
        n, span = _farthest(gates, knots[-1], reach[-1])
        knots.append(n)
        reach.append(span)
    values = [sum(reach[-1]) / 2.0]
    for (a, b), (low, high) in zip(reversed(list(pairwise(knots))), reversed(reach[:-1]), strict=True):
        end = values[-1]
        for n in range(a + 1, b):
            # where a line from (b, end) through each side of the gate at n arrives at a
            part = (b - a) / (b - n)
            low = max(low, end + (gates[n][0] - end) * part)
            high = min(high, end + (gates[n][1] - end) * part)
        values.append((low + high) / 2.0)
    return tuple(zip(knots, reversed(values), strict=True))


def _farthest(
    gates: list[tuple[float, float]], start: int, span: tuple[float, float]
) -> tuple[int, tuple[float, float]]:
    """Return the last gate reachable by a line from `span` at `start` through all between, and its range."""
    n, (low, high) = start + 1, gates[start + 1]
    # lines by their values at `start` and at `start` + 1: a convex polygon that each gate cuts
    polygon = [(span[0], low), (span[1], low), (span[1], high), (span[0], high)]
    while n + 1 < len(gates):
        steps = n + 1 - start
        floor, ceiling = gates[n + 1]
        cut = _cut(polygon, steps, floor, 1.0)
        cut = _cut(cut, steps, ceiling, -1.0)
        if not cut:
            break
        polygon, n = cut, n + 1
    values = [_value(v, n - start) for v in polygon]
    return n, (min(values), max(values))


def _value(at: tuple[float, float], steps: int) -> float:
    return at[0] + (at[1] - at[0]) * steps


def _cut(
    polygon: list[tuple[float, float]], steps: int, bound: float, side: float
) -> list[tuple[float, float]]:
    """Return the part of `polygon` whose lines are above `bound` after `steps` (below it for side -1)."""
    kept: list[tuple[float, float]] = []
    for i, q in enumerate(polygon):
        p = polygon[i - 1]
        over_p, over_q = side * (_value(p, steps) - bound), side * (_value(q, steps) - bound)
        if (over_p < 0) != (over_q < 0):
            part = over_p / (over_p - over_q)
            kept.append((p[0] + (q[0] - p[0]) * part, p[1] + (q[1] - p[1]) * part))
        if over_q >= 0:
            kept.append(q)
    return kept
