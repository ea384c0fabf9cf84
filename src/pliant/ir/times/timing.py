"""A duration as its median and its 95 % bound, measured or predicted; checks against a deadline."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import erfc, inf, log
from typing import Literal

from pliant.errors import ProfileError
from pliant.ir.curve import Curve

Percentile = Literal["median", "p95"]

_HOPE = 0.4
"""An answer whose median is late by this fraction of the distance to its bound is in time once in four."""

_BOUND_DEVIATIONS = 1.645 / 2.0**0.5
"""95 % of a normal distribution lie below 1.645 standard deviations."""


@dataclass(frozen=True, slots=True)
class Timing:
    """A duration over many repeats, or a prediction with its bound: 95 of 100 take at most `p95_s`."""

    median_s: float
    p95_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.median_s <= self.p95_s < inf:
            raise ProfileError(f"a timing needs 0 <= median <= p95, not {self.median_s} and {self.p95_s} s.")

    def at(self, percentile: Percentile) -> float:
        return self.median_s if percentile == "median" else self.p95_s

    def times(self, factor: float) -> "Timing":
        return Timing(self.median_s * factor, self.p95_s * factor)


class TimingCurve:
    """Timings between and beyond samples, each percentile a `Curve`."""

    __slots__ = ("_median", "_p95")

    def __init__(self, samples: Sequence[tuple[float, Timing]]) -> None:
        self._median = Curve(tuple((x, time.median_s) for x, time in samples))
        self._p95 = Curve(tuple((x, time.p95_s) for x, time in samples))

    def at(self, x: float) -> Timing:
        median_s, p95_s = self._median.at(x), self._p95.at(x)
        return Timing(median_s, p95_s if p95_s > median_s else median_s)


def is_in_time(seconds: float, target_s: float | None) -> bool | None:
    """Return whether `seconds` meets a target of `target_s`; None without a target."""
    return None if target_s is None else seconds <= target_s


def margin(seconds: float, bound_s: float, deadline_s: float) -> float:
    """Return how far the deadline is from the median `seconds`, on a logarithmic scale.

    In units of the distance to `bound_s`: 0 for a median at the deadline, 1 for a bound there. If times do
    not vary, or the deadline has passed, infinity or minus infinity.
    """
    if not 0.0 < seconds < bound_s or deadline_s / seconds <= 0.0:
        return inf if seconds <= deadline_s else -inf
    return log(deadline_s / seconds) / log(bound_s / seconds)


def chance(seconds: float, bound_s: float, deadline_s: float) -> float:
    """Return the fraction of answers in time for that median and bound, if times are log-normal."""
    return 0.5 * erfc(-_BOUND_DEVIATIONS * margin(seconds, bound_s, deadline_s))


def is_hopeless(seconds: float, bound_s: float, deadline_s: float) -> bool:
    """Return whether fewer than one in four answers of that median and bound are in time."""
    return seconds > deadline_s and margin(seconds, bound_s, deadline_s) < -_HOPE
