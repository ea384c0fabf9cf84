"""Trade accuracy against time: the ways in which one endpoint can answer, and the one for a request.

The best accuracy there is; under a deadline the best that meets it, and where none does, the least time,
flagged; with a floor and no deadline the least time among ways at least that accurate.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from pliant.errors import BudgetError, RouteError
from pliant.ir.curve import Curve, minimum
from pliant.ir.times.bounds import AdaptiveBound

_ALIKE = 1e-9
"""Accuracies that differ by less are the same."""


@dataclass(frozen=True, slots=True)
class Level:
    """One way to answer inputs of `first`..`last` items; times are linear in between.

    `seconds` are medians at the two ends, `bounds` what 95 % of answers stay under. `accuracy` is a fraction,
    None where it was never measured; `rank` orders ways then (more is better), and is the accuracy else.
    `key` is the endpoint's own name for it.
    """

    first: int
    last: int
    key: Hashable
    accuracy: float | None
    rank: float
    seconds: tuple[float, float]
    bounds: tuple[float, float]
    _curves: tuple[Curve, Curve] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            raise RouteError(f"a way for lengths {self.first}..{self.last} answers nothing; give 0 or more.")
        if any(not 0 <= s <= b for s, b in zip(self.seconds, self.bounds, strict=True)):
            raise RouteError(f"a way takes {self.seconds} s, bounded by {self.bounds} s; bounds are no less.")
        n_ends = 1 if self.first == self.last else 2
        lengths = (self.first, self.last)[:n_ends]
        curves = [Curve(tuple(zip(lengths, s[:n_ends], strict=True))) for s in (self.seconds, self.bounds)]
        object.__setattr__(self, "_curves", tuple(curves))

    def at(self, n: int) -> float:
        """Seconds for n items; beyond `last` the slope goes on, though never downward."""
        return self._curves[0].at(n)

    def bound_at(self, n: int) -> float:
        """Seconds that 95 % of answers to n items stay under."""
        return self._curves[1].at(n)


@dataclass(frozen=True, slots=True)
class Pick:
    """What a request gets: `seconds` expected (a median), and whether floor and deadline should hold."""

    level: Level
    seconds: float
    is_met: bool


class Trade:
    """The levels of one endpoint by length, and how much faster or slower than predicted they run lately.

    Every length from the least `first` on is covered by the levels of exactly one range. Their times were
    measured at another hour: `bound` corrects them by the answers given here.
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
        self._levels = [worthwhile(by_range[r]) for r in self._ranges]
        self._ends = [last for _, last in self._ranges]
        self._name = name
        self.bound = bound or AdaptiveBound()

    @property
    def best(self) -> float | None:
        """The accuracy that every length can have; None where it was never measured."""
        tops = [levels[-1].accuracy for levels in self._levels]
        known = [top for top in tops if top is not None]
        return min(known) if len(known) == len(tops) else None

    def curve(self, accuracy_floor: float = 0.0) -> Curve:
        """Seconds by length of the fastest way at least that accurate. BudgetError where there is none.

        A lower floor is never slower at any length: its ways are among those of a lower one.
        """
        points: list[tuple[float, float]] = []
        for (first, last), levels in zip(self._ranges, self._levels, strict=True):
            width = last - first
            lines = [
                Curve(((0, level.at(first)), (width, level.at(last))) if width else ((0, level.at(first)),))
                for level in self._allowed(levels, accuracy_floor)
            ]
            least = minimum(lines, width) if width else min(lines, key=lambda line: line.at(0))
            points += [(first + n, s * self.bound.pace) for n, s in least.points]
        return Curve(tuple(points))

    def fullest(self, n: int) -> Pick:
        """The best way there is for n items, whatever it takes."""
        level = self._of(n)[-1]
        return Pick(level, level.at(n) * self.bound.pace, True)

    def pick(self, n: int, accuracy_floor: float | None = None, deadline_s: float | None = None) -> Pick:
        """The way for an input of n items with `deadline_s` left (None: no hurry).

        With neither floor nor deadline the best there is; with a floor alone the fastest above it; with a
        deadline the most accurate whose bound keeps it, or else the fastest, with `is_met` False. Raises
        BudgetError where no way is as accurate as the floor.
        """
        if accuracy_floor is None and deadline_s is None:
            return self.fullest(n)
        allowed = self._allowed(self._of(n), accuracy_floor or 0.0)
        fastest = min(allowed, key=lambda level: level.at(n))
        if deadline_s is None:
            return Pick(fastest, fastest.at(n) * self.bound.pace, True)
        in_time = [level for level in allowed if self._bound_s(level, n) <= deadline_s]
        if not in_time:
            return Pick(fastest, fastest.at(n) * self.bound.pace, False)
        top = max(level.rank for level in in_time) - _ALIKE
        chosen = min((x for x in in_time if x.rank >= top), key=lambda level: level.at(n))
        return Pick(chosen, chosen.at(n) * self.bound.pace, True)

    def took(self, level: Level, n: int, seconds: float) -> None:
        """An answer of `level` took so long: all levels are taken to be that much slower or faster."""
        self.bound.observe(level.at(n), level.bound_at(n), seconds)

    def _bound_s(self, level: Level, n: int) -> float:
        return self.bound.seconds(level.at(n), level.bound_at(n))

    def _of(self, n: int) -> tuple[Level, ...]:
        return self._levels[min(bisect_left(self._ends, n), len(self._ends) - 1)]

    def _allowed(self, levels: tuple[Level, ...], floor: float) -> tuple[Level, ...]:
        if floor <= 0.0:
            return levels
        allowed = tuple(x for x in levels if x.accuracy is not None and x.accuracy >= floor - _ALIKE)
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


def worthwhile(levels: Iterable[Level]) -> tuple[Level, ...]:
    """Without levels that another beats or equals in rank, times and bounds at both ends; worst first."""
    kept: list[Level] = []
    for level in sorted(levels, key=lambda x: (-x.rank, *x.bounds, *x.seconds)):
        if not any(_is_as_good(other, level) for other in kept):
            kept.append(level)
    return tuple(reversed(kept))


def _is_as_good(a: Level, b: Level) -> bool:
    """For a no worse in rank."""
    times = zip((*a.seconds, *a.bounds), (*b.seconds, *b.bounds), strict=True)
    return all(s <= t for s, t in times)
