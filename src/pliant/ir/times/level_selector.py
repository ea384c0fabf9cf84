"""Select one of an endpoint's levels of accuracy for a request: accuracy against time.

Without limits, the best accuracy; under a deadline the fastest within `RESOLUTION` of the best that meets it
or, failing that, the fastest, flagged; with a floor and no deadline the fastest that is at least that
accurate.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from pliant.errors import BudgetError, RouteError
from pliant.ir.curve import Curve, minimum
from pliant.ir.endpoint import ACCURACY_TOLERANCE, RESOLUTION, ServiceLevel
from pliant.ir.times.bounded_level import has_moved, pick_evenly, scale_curve
from pliant.ir.times.bounds import AdaptiveBound
from pliant.ir.times.timing import Percentile, Timing, TimingCurve, is_in_time

MOST_LEVELS = 12
"""Maximum number of accuracies reported for the choice among endpoints."""


@dataclass(frozen=True, slots=True)
class Level:
    """One way to answer inputs of `first`..`last` items; times are linear in between.

    `ends` are the times at the two ends. `accuracy` is a fraction, None if it was not measured; then `rank`
    orders the levels (more is better), otherwise it equals the accuracy. `key` is the endpoint's own name for
    it. An answer reads `load_bytes`, None if unknown.
    """

    first: int
    last: int
    key: Hashable
    accuracy: float | None
    rank: float
    ends: tuple[Timing, Timing]
    load_bytes: int | None = None
    _curve: TimingCurve = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            raise RouteError(f"a way for lengths {self.first}..{self.last} answers nothing; give 0 or more.")
        samples = dict(zip((self.last, self.first), reversed(self.ends), strict=True))
        object.__setattr__(self, "_curve", TimingCurve(sorted(samples.items())))

    def at(self, n: int) -> Timing:
        """Return the time of n items; beyond `last` the slope continues, but never downward."""
        return self._curve.at(n)


@dataclass(frozen=True, slots=True)
class LevelChoice:
    """The level for a request, its corrected time, and whether floor and deadline should hold."""

    level: Level
    time: Timing
    is_met: bool


class LevelSelector:
    """The levels of one endpoint by length, corrected by the speed of recent answers.

    Every length from the least `first` on is covered by the levels of exactly one range. Their times were
    measured earlier; `bound` corrects them by the answers of this endpoint.
    """

    def __init__(
        self, levels: Iterable[Level], name: str = "this endpoint", bound: AdaptiveBound | None = None
    ) -> None:
        by_range: dict[tuple[int, int], list[Level]] = {}
        for level in levels:
            by_range.setdefault((level.first, level.last), []).append(level)
        self._ranges = sorted(by_range)
        if not self._ranges or any(b[0] != a[1] + 1 for a, b in pairwise(self._ranges)):
            raise RouteError(f"{name} answers lengths {self._ranges}; ranges must follow each other.")
        self._levels = [pareto_levels(by_range[r]) for r in self._ranges]
        self._ends = [last for _, last in self._ranges]
        self._name = name
        self.bound = bound or AdaptiveBound()
        self._factors = self._checked = (0.0, 0.0)
        self._published: tuple[ServiceLevel, ...] = ()
        self._predicted: tuple[ServiceLevel, ...] | None = None

    @property
    def best(self) -> float | None:
        """The accuracy available for every length; None if it was not measured."""
        tops = [levels[-1].accuracy for levels in self._levels]
        known = [top for top in tops if top is not None]
        return min(known) if len(known) == len(tops) else None

    def curve(self, accuracy_floor: float = 0.0) -> Curve:
        """Return the seconds by length of the fastest level at least that accurate; BudgetError if none is.

        A lower floor is never slower at any length, because it allows all levels that a higher one does.
        """
        allowed = [self._allowed(levels, accuracy_floor) for levels in self._levels]
        return scale_curve(self._least(allowed, "median"), self.bound.pace)

    def _least(self, allowed: Iterable[Iterable[Level]], percentile: Percentile) -> Curve:
        """Return the minimum by length of the levels that are allowed in each range."""
        points: list[tuple[float, float]] = []
        for (first, last), levels in zip(self._ranges, allowed, strict=True):
            width = last - first
            ends = (0, width) if width else (0,)
            times = [[end.at(percentile) for end in level.ends] for level in levels]
            lines = [Curve(tuple(zip(ends, pair, strict=False))) for pair in times]
            least = minimum(lines, width) if width else min(lines, key=lambda line: line.at(0))
            points += [(first + n, s) for n, s in least.points]
        return Curve(tuple(points))

    def levels(self) -> tuple[ServiceLevel, ...]:
        """Return a few of the available accuracies, worst first, with current times.

        The same tuple until times have changed by more than 3 %.
        """
        factors = self.bound.pace, self.bound.factor()
        if factors == self._checked:
            return self._published
        if not self._published or any(map(has_moved, factors, self._factors)):
            self._factors = factors
            if self._predicted is None:
                self._predicted = self._thinned()
            self._published = tuple(self._at_current_pace(level) for level in self._predicted)
        self._checked = factors  # last: another thread would return what is not there yet
        return self._published

    def _thinned(self) -> tuple[ServiceLevel, ...]:
        ranks = sorted({level.rank for levels in self._levels for level in levels})
        top = min(levels[-1].rank for levels in self._levels)  # available for inputs of every length
        found = []
        for rank in pick_evenly([rank for rank in ranks if rank <= top + ACCURACY_TOLERANCE], MOST_LEVELS):
            allowed = [[x for x in levels if x.rank >= rank - ACCURACY_TOLERANCE] for levels in self._levels]
            is_measured = all(x.accuracy is not None for levels in allowed for x in levels)
            times = self._least(allowed, "median")
            bounds = self._least(allowed, "p95")
            found.append(ServiceLevel(times, rank if is_measured else None, bounds, min(rank, 1.0)))
        return tuple(found)

    def _at_current_pace(self, level: ServiceLevel) -> ServiceLevel:
        pace, factor = self._factors
        assert level.bound is not None
        bound = scale_curve(level.bound, max(factor, pace))
        return ServiceLevel(scale_curve(level.curve, pace), level.accuracy, bound, level.fidelity)

    def most_accurate(self, n: int) -> LevelChoice:
        """Return the best level for n items, regardless of time."""
        level = self.best_level(n)
        return LevelChoice(level, self.bound.correct(level.at(n)), True)

    def best_level(self, n: int) -> Level:
        """Return the most accurate level for n items."""
        return self._levels_for(n)[-1]

    def pick(
        self, n: int, accuracy_floor: float | None = None, deadline_s: float | None = None
    ) -> LevelChoice:
        """Return the level for an input of n items with `deadline_s` left (None: no deadline).

        With neither floor nor deadline the best level; with only a floor the fastest above it. With a
        deadline the fastest whose bound meets it and whose accuracy is within `RESOLUTION` of the best that
        meets it; if none meets it, the fastest, with `is_met` False.
        Raises BudgetError if no level is as accurate as the floor.
        """
        if accuracy_floor is None and deadline_s is None:
            return self.most_accurate(n)
        allowed = self._allowed(self._levels_for(n), accuracy_floor or 0.0)
        best: LevelChoice | None = None
        least_rank = -inf
        for level in reversed(allowed) if deadline_s is not None else ():
            if level.rank < least_rank:
                break
            time = self.bound.correct(level.at(n))
            if is_in_time(time.p95_s, deadline_s) and (best is None or time.median_s < best.time.median_s):
                if best is None:
                    least_rank = level.rank - RESOLUTION - ACCURACY_TOLERANCE
                best = LevelChoice(level, time, True)
        return best or self._fastest(allowed, n, is_met=deadline_s is None)

    def load_bytes(self, n: int, accuracy: float | None = None) -> int | None:
        """Return the bytes that an answer of that accuracy loads; None where they are not known.

        That includes an accuracy out of reach: with less memory than when the request was chosen for it.
        """
        try:
            return self.pick(n, accuracy).level.load_bytes
        except BudgetError:
            return None

    def _fastest(self, levels: Iterable[Level], n: int, *, is_met: bool) -> LevelChoice:
        ways = (LevelChoice(level, self.bound.correct(level.at(n)), is_met) for level in levels)
        return min(ways, key=lambda way: way.time.median_s)

    def observe(self, level: Level, n: int, seconds: float) -> None:
        """Record an answer of `level`: its slow-down or speed-up applies to all levels."""
        self.bound.observe(level.at(n), seconds)

    def _levels_for(self, n: int) -> tuple[Level, ...]:
        return self._levels[min(bisect_left(self._ends, n), len(self._ends) - 1)]

    def _allowed(self, levels: tuple[Level, ...], floor: float) -> tuple[Level, ...]:
        if floor <= 0.0:
            return levels
        least = floor - ACCURACY_TOLERANCE
        allowed = tuple([x for x in levels if x.accuracy is not None and x.accuracy >= least])
        if allowed:
            return allowed
        top = levels[-1].accuracy
        if top is None:
            raise BudgetError(
                f"the accuracy of {self._name} was never measured, so no floor of {floor:g} is promised: "
                "leave it out, or pack the model with `--importance`."
            )
        raise BudgetError(
            f"{self._name} reaches an accuracy of {top:.4f} at most, not {floor:g}: lower the floor."
        )


def pareto_levels(levels: Iterable[Level]) -> tuple[Level, ...]:
    """Return levels that no other equals or beats in rank, times and bounds at both ends; worst first."""
    kept: list[Level] = []
    for level in sorted(levels, key=lambda x: (-x.rank, *_times(x))):
        if not any(_is_as_good(other, level) for other in kept):
            kept.append(level)
    return tuple(reversed(kept))


def _is_as_good(a: Level, b: Level) -> bool:
    """Requires that a's rank is at least b's."""
    return all(s <= t for s, t in zip(_times(a), _times(b), strict=True))


def _times(level: Level) -> tuple[float, ...]:
    return (*(end.p95_s for end in level.ends), *(end.median_s for end in level.ends))
