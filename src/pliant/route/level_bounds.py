"""The time bounds of levels by which a router checks deadlines: adaptive, fixed at its start, or none."""

from collections.abc import Sequence
from dataclasses import replace
from typing import final

from pliant.ir.curve import Curve
from pliant.ir.endpoint import NO_ANSWER_S, ServiceLevel
from pliant.route.router_settings import RouterSettings


@final
class LevelBounds:
    """The bounds of one endpoint; with `has_fixed_bounds`, multiples of the medians as they were at first."""

    def __init__(self, settings: RouterSettings) -> None:
        self._settings = settings
        self._spread: float | None = None

    @property
    def are_adaptive(self) -> bool:
        return self._settings.is_bounded and not self._settings.has_fixed_bounds

    def applied_to(self, levels: Sequence[ServiceLevel]) -> tuple[ServiceLevel, ...]:
        """The levels, worst first, with these bounds instead of those that the endpoint tells."""
        if self.are_adaptive:
            return tuple(levels)
        if not self._settings.is_bounded:
            return tuple(level.unbounded for level in levels)
        if self._spread is None and levels[-1].bound is not None:
            self._spread = _spread(levels[-1])
        return tuple(_scaled(level, self._spread or 1.0) for level in levels)


def _spread(level: ServiceLevel) -> float:
    """The largest ratio of the bound to the median."""
    ratios = [level.bound_curve.at(n) / seconds for n, seconds in level.answered_points if seconds > 0.0]
    return max(ratios, default=1.0)


def _scaled(level: ServiceLevel, spread: float) -> ServiceLevel:
    points = [(n, s * spread if s < NO_ANSWER_S else s) for n, s in level.curve.points]
    return replace(level, bound=Curve(tuple(points)))
