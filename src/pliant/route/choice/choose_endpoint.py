"""Choose the endpoint and the accuracy level that answer an input.

CRIME (eq. 5, 6, 8, 9) takes the candidate with the least cost. Here each candidate has levels of accuracy,
and a request may have a deadline and a floor:

- with neither, the most accurate answer; among equally accurate ones the one with the least cost;
- with a deadline, the least cost among answers whose bound meets it and whose accuracy is within
  `RESOLUTION` of the most accurate of them; if no bound does, the one most likely to be in time, unless its
  chance is below one in four. If requests arrive that only one endpoint can answer in time (`Crowding`),
  options that make the fewest requests late come first;
- with only a floor, the least cost among answers that reach it.

An endpoint without memory for an input of this length (`ServiceLevel.limited`) is no candidate for it.

The curves of levels are projections of costs: the time of a whole program by the input's length, simulated
with an `ir.cost.Cost` or fitted to answers. Other nodes send curves, but neither programs nor devices.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal, NamedTuple

from pliant.errors import BudgetError, DeadlineError, RouteError
from pliant.ir.endpoint import ACCURACY_TOLERANCE, NO_ANSWER_S, RESOLUTION, ServiceLevel
from pliant.ir.times.timing import chance, is_hopeless, margin
from pliant.route.choice.candidate import Candidate
from pliant.route.choice.objective import TIME, Objective
from pliant.route.choice.request_terms import NO_TERMS, Terms

LOCAL = "local"
"""The name of this device's own session among candidates; upstreams are named by their URLs."""
CLUSTER = "cluster"
"""The name of the cluster of which this device is the primary."""
_POINTS = f"{100 * RESOLUTION:g} points"
_MORE = 1.03
"""Maximum growth of the chosen level's time until its work begins."""
_ALIKE_LOST = 0.03
"""Options whose numbers of late requests differ by less count as equal: bounds hold for 95 of 100."""


@dataclass(frozen=True, slots=True)
class Option:
    """A candidate's estimates for one input at one level; 95 % of such answers arrive within `bound_s`.

    `excluded` is the constraint of the request that it violates, None if it violates none. The work takes at
    most `most_s` seconds; None if it may take the rest of the deadline. `seconds` include `compiling_s`.
    """

    name: str
    level: ServiceLevel
    seconds: float
    bound_s: float
    energy_j: float
    cost: float
    excluded: Literal["memory", "floor", "deadline"] | None = None
    most_s: float | None = None
    compiling_s: float = 0.0

    @property
    def accuracy(self) -> float | None:
        return self.level.accuracy


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen candidate and level (`option`), and the other candidates."""

    option: Option
    _among: tuple[int, Sequence[Candidate], Objective, Terms] = field(repr=False, compare=False)
    """The inputs of the choice: the other candidates are rarely evaluated."""

    @property
    def target(self) -> str:
        """`LOCAL`, `CLUSTER`, or a successor's name."""
        return self.option.name

    @property
    def seconds(self) -> float:
        return self.option.seconds

    @property
    def energy_j(self) -> float:
        return self.option.energy_j

    @property
    def reason(self) -> str:
        """The rule that decided, as text for people."""
        _, candidates, objective, terms = self._among
        cost = "time" if not objective.per_joule else "energy" if not objective.per_second else "cost"
        if self.option.excluded is not None:
            return "no answer is in time: the soonest"
        if terms.deadline_s is not None and _is_crowded(candidates):
            return (
                "the fewest requests late, with those that only one endpoint can answer; then the least "
                f"{cost} within {_POINTS} of the most accurate"
            )
        if terms.deadline_s is not None and self.option.bound_s > terms.deadline_s:
            return "no bound keeps the deadline: the likeliest to be in time"
        if terms.deadline_s is not None:
            return f"the least {cost} within {_POINTS} of the most accurate in time"
        if terms.accuracy_floor is not None:
            return f"the least {cost} at or above the floor"
        return f"the most accurate, then the least {cost}"

    @property
    def runners_up(self) -> tuple[Option, ...]:
        """The best option of each other candidate, as in `rank`."""
        n, candidates, objective, terms = self._among
        return rank(n, [c for c in candidates if c.name != self.target], objective, terms)


_Timed = tuple[Candidate, ServiceLevel, float, float]
"""A candidate's level, with its median and bound for an input."""


class _InTime(NamedTuple):
    """A level whose bound meets the deadline."""

    quality: float
    cost: float
    timed: _Timed


def rank(
    n: int, candidates: Sequence[Candidate], objective: Objective = TIME, terms: Terms = NO_TERMS
) -> tuple[Option, ...]:
    """Return the best option of each candidate, each the one that is chosen without those before it."""
    left, found = list(candidates), list[Option]()
    while left:
        found.append(_best(n, left, objective, terms))
        left = [c for c in left if c.name != found[-1].name]
    return tuple(found)


def choose(
    n: int, candidates: Sequence[Candidate], objective: Objective = TIME, terms: Terms = NO_TERMS
) -> Choice:
    """Return the candidate and level for length n; among equals the first, e.g. this device (eq. 6).

    Of options of equal cost, the most accurate is taken.

    `terms.deadline_s` is the rest of the deadline. If no answer is likely to meet it, the fastest is taken
    with best effort; otherwise raises DeadlineError with that option's time. Raises BudgetError if none
    has memory for the length or reaches the floor, RouteError without candidates.
    """
    if not candidates:
        raise RouteError(
            "no device may answer this input: none is left of those that answered lately. Try again later."
        )
    best = _best(n, candidates, objective, terms)
    if best.excluded == "memory":
        raise BudgetError(best.level.reason or _too_long(n, best))
    if best.excluded == "floor":
        raise BudgetError(_unreached(best, terms, any(c.best.most_n is not None for c in candidates)))
    if best.excluded == "deadline" and not terms.best_effort:
        raise DeadlineError(_late(best, terms), best.seconds)
    return Choice(best, (n, candidates, objective, terms))


def choose_soonest(n: int, candidates: Sequence[Candidate], terms: Terms = NO_TERMS) -> Choice | None:
    """Return the candidate and level with the least bound at or above the floor; None if there is none."""
    possible = _possible(n, candidates, terms.accuracy_floor or 0.0)
    best = min(possible, key=lambda one: one[3], default=None)
    if best is None:
        return None
    return Choice(_option(n, best, TIME, terms.deadline_s), (n, candidates, TIME, terms))


def _possible(n: int, candidates: Sequence[Candidate], floor: float) -> Iterator[_Timed]:
    """Yield the levels at or above the floor with memory for length n, with their median and bound."""
    for c in candidates:
        way_s = c.fixed_s + c.per_item_s * n
        for level in c.levels:
            if level.reaches(floor) and (work_s := level.curve.at(n)) < NO_ANSWER_S:
                seconds = way_s + work_s
                yield c, level, seconds, _bound_s(n, c, level, way_s, seconds)


def _best(n: int, candidates: Sequence[Candidate], objective: Objective, terms: Terms) -> Option:
    """Return the least cost among the levels whose bounds meet the deadline, and whose accuracy is within the
    resolution of the most accurate of them.

    If no bound meets the deadline, return the level most likely to be in time; if none is likely to, the
    fastest; if none reaches the floor, the most accurate; if none has memory, that of the longest inputs.
    """
    deadline_s, floor = terms.deadline_s, terms.accuracy_floor
    if deadline_s is not None and _is_crowded(candidates):
        fewest = _fewest_late(n, candidates, objective, floor or 0.0, deadline_s)
        if fewest is not None:
            return fewest
    found, late = _allowed(n, candidates, objective, terms)
    if found:
        least = max([one.quality for one in found]) - _resolution(terms)
        best = min([one for one in found if one.quality >= least], key=lambda one: (one.cost, -one.quality))
        return _option(n, best.timed, objective, deadline_s)
    if late is not None:
        return _option(n, late, objective, deadline_s)
    able = [(c, level) for c in candidates for level in c.levels_for(n)]
    if able:
        most = max(able, key=lambda one: one[1].accuracy or 0.0)
        return replace(_option(n, _timed(n, *most), objective, None), excluded="floor")
    longest = max(((c, level) for c in candidates for level in c.levels), key=lambda one: one[1].most_n or 0)
    return replace(_option(n, _timed(n, *longest), objective, None), excluded="memory")


def _resolution(terms: Terms) -> float:
    """Return the difference up to which two accuracies count as equal."""
    return ACCURACY_TOLERANCE if terms.deadline_s is None else RESOLUTION + ACCURACY_TOLERANCE


def _allowed(
    n: int, candidates: Sequence[Candidate], objective: Objective, terms: Terms
) -> tuple[list[_InTime], _Timed | None]:
    """Return the levels at or above the floor whose bounds meet the deadline; if there are none, the one that
    is most likely to be in time, or the fastest if none is likely to.

    Levels that are too inaccurate beside earlier ones are left out. With only a floor, all have the same
    quality.
    """
    floor, deadline_s, resolution = terms.accuracy_floor, terms.deadline_s, _resolution(terms)
    is_ranked = deadline_s is not None or floor is None
    is_free = deadline_s is None and floor is None
    found: list[_InTime] = []
    late: _Timed | None = None
    top, least = 0.0, (True, inf)
    for c in candidates:  # compared as numbers: creating unused options dominated the time of a choice
        way_s = c.fixed_s + c.per_item_s * n
        for level in reversed(c.levels):
            if floor is not None and not level.reaches(floor):
                continue
            quality = level.quality if is_ranked else 0.0
            if quality < top - resolution:
                break  # the next ones are less accurate
            work_s = level.curve.at(n)
            if work_s >= NO_ANSWER_S:
                continue
            seconds = way_s + work_s
            bound_s = _bound_s(n, c, level, way_s, seconds)
            if deadline_s is not None and bound_s > deadline_s:
                if not found:
                    is_late = is_hopeless(seconds, bound_s, deadline_s)
                    order = (is_late, seconds if is_late else -margin(seconds, bound_s, deadline_s))
                    if late is None or order < least:
                        late, least = (c, level, seconds, bound_s), order
                continue
            if quality > top:
                top = quality
            cost = _cost(n, c, level, seconds, objective)
            found.append(_InTime(quality, cost, (c, level, seconds, bound_s)))
            if is_free:
                break
    return found, late


def _is_crowded(candidates: Sequence[Candidate]) -> bool:
    return any(c.crowding is not None for c in candidates)


def _fewest_late(
    n: int, candidates: Sequence[Candidate], objective: Objective, floor: float, deadline_s: float
) -> Option | None:
    """Return the cheapest within `RESOLUTION` of the best of the options that make the fewest requests late.

    These include this request, by its chance, and those that depend on the endpoint. None if no option has a
    chance.
    """
    found: list[tuple[float, float, float, _Timed]] = []
    for timed in _possible(n, candidates, floor):
        c, level, seconds, bound_s = timed
        if is_hopeless(seconds, bound_s, deadline_s):
            continue
        late = 0.0 if bound_s <= deadline_s else 1.0 - chance(seconds, bound_s, deadline_s)
        late += 0.0 if c.crowding is None else c.crowding.expected_late(c.fixed_s, level.curve.at(n))
        found.append((late, level.quality, _cost(n, c, level, seconds, objective), timed))
    if not found:
        return None
    most_late = min(late for late, *_ in found) + _ALIKE_LOST
    kept = [one for one in found if one[0] <= most_late]
    least = max(quality for _, quality, *_ in kept) - RESOLUTION - ACCURACY_TOLERANCE
    alike = (one for one in kept if one[1] >= least)
    *_, timed = min(alike, key=lambda one: (one[2], -one[1]))
    c, level, *_ = timed
    option = _option(n, timed, objective, deadline_s)
    if c.crowding is None or level.bound is None:
        return option
    return replace(option, most_s=_MORE * level.bound_curve.at(n) or None)  # 0 s: it was never timed


def _option(n: int, timed: _Timed, objective: Objective, deadline_s: float | None) -> Option:
    c, level, seconds, bound_s = timed
    is_late = deadline_s is not None and is_hopeless(seconds, bound_s, deadline_s)
    return Option(
        c.name,
        level,
        seconds,
        bound_s,
        c.joules(n, seconds, level),
        _cost(n, c, level, seconds, objective),
        "deadline" if is_late else None,
        compiling_s=c.compiling_s,
    )


def _timed(n: int, c: Candidate, level: ServiceLevel) -> _Timed:
    way_s = c.fixed_s + c.per_item_s * n
    seconds = way_s + level.curve.at(n)
    return c, level, seconds, _bound_s(n, c, level, way_s, seconds)


def _bound_s(n: int, c: Candidate, level: ServiceLevel, way_s: float, seconds: float) -> float:
    bound_s = way_s * c.way_bound + level.bound_curve.at(n)
    return bound_s if bound_s > seconds else seconds


def _cost(n: int, c: Candidate, level: ServiceLevel, seconds: float, objective: Objective) -> float:
    if not objective.per_joule:
        return objective.per_second * seconds
    return objective.per_second * seconds + objective.per_joule * c.joules(n, seconds, level)


def _late(best: Option, terms: Terms) -> str:
    accuracy = "" if best.accuracy is None else f" with an accuracy of {best.accuracy:.4g}"
    return (
        f"no answer is in time: {terms.left}, and the soonest, by {best.name}, takes "
        f"{best.seconds * 1e3:.4g} ms{accuracy}, and less than {best.bound_s * 1e3:.4g} ms 95 times of 100. "
        "Give a longer `deadline_s`, or `best_effort`: true for that answer."
    )


def _too_long(n: int, most: Option) -> str:
    return (
        f"there is no memory for an input of length {n}: {most.name} takes the longest, up to "
        f"{most.level.most_n}. Give a shorter input, or more memory to one of the devices."
    )


def _unreached(most: Option, terms: Terms, is_limited: bool) -> str:
    floor = terms.accuracy_floor or 0.0
    if most.accuracy is None:
        return (
            f"the accuracy of {most.name} was never measured, so no floor of {floor:g} is promised: leave it "
            "out. Only a text encoder that was packed with `--importance` has one."
        )
    return (
        f"an accuracy of {most.accuracy:.4f}, by {most.name}, is the most there is"
        f"{' for an input of this length' if is_limited else ''}, not {floor:g}: lower the floor."
    )
