"""Levels of accuracy with bounds that follow observations, for the choice among endpoints."""

from collections.abc import Sequence
from typing import final

from pliant.ir.curve import Curve
from pliant.ir.endpoint import ServiceLevel
from pliant.ir.times.bounds import AdaptiveBound
from pliant.ir.times.timing import Timing

_MOVED = 1.03
"""Factors that differ by less leave the published levels unchanged."""


@final
class BoundedLevel:
    """The level of an endpoint with one way to answer: a curve that follows its times, and a bound.

    Before the first answer, the bound is `pick_evenly` times the curve.
    """

    def __init__(self, spread: float = 1.0) -> None:
        self._bound = AdaptiveBound(before=spread)
        self._factor = 1.0
        self._published: tuple[ServiceLevel, ...] = ()

    def observe(self, expected_s: float, seconds: float) -> None:
        """Record an answer that took `seconds` when the curve predicted `expected_s`."""
        self._bound.observe(Timing(expected_s, expected_s), seconds)

    @property
    def is_slowed(self) -> bool:
        """Whether recent answers were slower than the curve by more than the reporting threshold."""
        return self._bound.pace > _MOVED

    def at(self, curve: Curve, accuracy: float | None = None) -> tuple[ServiceLevel, ...]:
        """Return the level for answers with the median `curve`."""
        factor, told = max(1.0, self._bound.factor()), self._published[0] if self._published else None
        is_same = told is not None and told.curve is curve and told.accuracy == accuracy
        if not is_same or has_moved(factor, self._factor):
            self._published = (ServiceLevel(curve, accuracy, scale_curve(curve, factor)),)
            self._factor = factor
        return self._published


def has_moved(now: float, before: float) -> bool:
    """Return whether a factor changed by more than the reporting threshold."""
    return not before / _MOVED <= now <= before * _MOVED


def scale_curve(curve: Curve, factor: float) -> Curve:
    """Return `factor` (above 0) times `curve`."""
    return Curve(tuple([(n, seconds * factor) for n, seconds in curve.points]))


def pick_evenly(values: Sequence[float], most: int) -> list[float]:
    """Return at most `most` >= 2 of ascending `values`: the first, the last, and others evenly spaced."""
    if len(values) <= most:
        return list(values)
    last = len(values) - 1
    return [values[round(i * last / (most - 1))] for i in range(most)]
