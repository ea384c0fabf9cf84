"""The time bounds of levels by which a router checks deadlines: adaptive, fixed at its start, or none."""

from collections.abc import Sequence
from dataclasses import replace
from typing import final

from pliant.ir.curve import MAX_SECONDS, Curve
from pliant.ir.endpoint import NO_ANSWER_S, ServiceLevel
from pliant.route.router_settings import RouterSettings


@final
class LevelBounds:
    """The bounds of one endpoint's levels by `RouterSettings.bounds`.

    Fixed ones are multiples of the medians, by level and length, as they were first told. A level that was
    not told then has those of the level with the nearest accuracy.
    """

    def __init__(self, settings: RouterSettings) -> None:
        self._rule = settings.bounds
        self._first: tuple[ServiceLevel, ...] = ()

    def applied_to(self, levels: Sequence[ServiceLevel]) -> tuple[ServiceLevel, ...]:
        """The levels, worst first, with these bounds instead of those that the endpoint tells."""
        if self._rule == "adaptive":
            return tuple(levels)
        if self._rule == "none":
            return tuple(level.unbounded for level in levels)
        self._first = self._first or tuple(level for level in levels if level.bound is not None)
        if not self._first:
            return tuple(levels)
        return tuple(_bounded(level, self._first) for level in levels)


def _bounded(level: ServiceLevel, firsts: Sequence[ServiceLevel]) -> ServiceLevel:
    first = min(firsts, key=lambda one: abs(one.quality - level.quality))
    lengths = {*level.curve.lengths, *first.curve.lengths, *first.bound_curve.lengths}
    return replace(level, bound=Curve(tuple((n, _bound_s(n, level, first)) for n in sorted(lengths))))


def _bound_s(n: float, level: ServiceLevel, first: ServiceLevel) -> float:
    seconds = level.curve.at(n)
    if seconds >= NO_ANSWER_S:
        return seconds
    first_n = n if first.most_n is None else min(n, first.most_n)
    first_s, bound_s = first.curve.at(first_n), first.bound_curve.at(first_n)
    return min(seconds * bound_s / first_s if first_s > 0.0 else max(seconds, bound_s), MAX_SECONDS)
