"""The choice of endpoint and accuracy against brute force over every level of every candidate."""

import math
from itertools import pairwise
from statistics import NormalDist

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pliant.errors import BudgetError, DeadlineError
from pliant.ir.curve import Curve
from pliant.ir.endpoint import RESOLUTION, ServiceLevel
from pliant.route.choice.candidate import Candidate
from pliant.route.choice.choose_endpoint import LOCAL, Choice, choose, choose_soonest, rank
from pliant.route.choice.crowding import Crowding
from pliant.route.choice.objective import ENERGY, TIME, Objective
from pliant.route.choice.request_terms import Terms

part = st.floats(0, 3).map(lambda x: round(x, 3))


@st.composite
def levels(draw: st.DrawFn) -> tuple[ServiceLevel, ...]:
    """One to four accuracies; more of it takes longer, as of the ways that are worth having."""
    accuracies = sorted(
        draw(st.sets(st.sampled_from([0.5, 0.8, 0.88, 0.898, 0.9, 0.902]), min_size=1, max_size=4))
    )
    seconds = sorted(draw(st.lists(part, min_size=len(accuracies), max_size=len(accuracies))))
    made = []
    for accuracy, median_s in zip(accuracies, seconds, strict=True):
        curve = Curve(((0, median_s), (100, median_s + draw(part))))
        bound = curve.plus(draw(part)) if draw(st.booleans()) else None
        made.append(ServiceLevel(curve, accuracy, bound))
    if draw(st.integers(0, 4)) == 0:
        return (ServiceLevel(made[-1].curve),)
    return tuple(made)


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    def one(name: str) -> Candidate:
        fields = [draw(part) for _ in range(5)]
        made, most_n = draw(levels()), draw(st.none() | st.integers(0, 90))
        if most_n is not None:
            made = tuple(level.limited(most_n) for level in made)
        return Candidate(name, made, *fields, way_bound=1.0 + draw(part))

    return [one(f"n{i}") for i in range(draw(st.integers(1, 5)))]


terms = st.builds(
    Terms,
    st.none() | st.floats(0.01, 12).map(lambda x: round(x, 3)),
    st.none() | st.sampled_from([0.0, 0.5, 0.88, 0.9, 0.95]),
    st.booleans(),
)


def every_way(n: int, some: list[Candidate], objective: Objective) -> list[dict[str, float | str]]:
    """All levels, with the times and costs of the equations written out."""
    found = []
    for c in some:
        for level in c.levels:
            if level.most_n is not None and n > level.most_n:
                continue
            way_s = c.fixed_s + c.per_item_s * n
            seconds = way_s + level.curve.at(n)
            bound = level.curve if level.bound is None else level.bound
            joules = c.fixed_j + c.per_item_j * n + c.watts * seconds
            found.append(
                {
                    "name": c.name,
                    "accuracy": -1.0 if level.accuracy is None else level.accuracy,
                    "quality": 1.0 if level.accuracy is None else level.accuracy,
                    "seconds": seconds,
                    "bound": max(seconds, way_s * c.way_bound + bound.at(n)),
                    "cost": objective.per_second * seconds + objective.per_joule * joules,
                }
            )
    return found


def chance(median_s: float, bound_s: float, deadline_s: float) -> float:
    """Of being in time, where logarithms of times are normal and 95 of 100 stay under the bound."""
    if bound_s == median_s or median_s == 0.0:
        return float(median_s <= deadline_s)
    spread = math.log(bound_s / median_s) / NormalDist().inv_cdf(0.95)
    return NormalDist(math.log(median_s), spread).cdf(math.log(deadline_s))


FAIR = NormalDist().cdf(-0.4 * NormalDist().inv_cdf(0.95))
"""Answers that are in time less often are not begun: a median late by 0.4 of the distance to its bound."""


@given(candidates(), st.integers(0, 90), terms, st.sampled_from([TIME, ENERGY, Objective(1.0, 0.3)]))
def test_the_choice_is_the_best_of_all_levels(
    some: list[Candidate], n: int, asked: Terms, objective: Objective
) -> None:
    """The least cost of the most accurate in time, which no resolution widens without a deadline; a floor
    alone asks for the least cost; refusals are right."""
    ways = every_way(n, some, objective)
    floor = asked.accuracy_floor or 0.0
    allowed = [way for way in ways if floor == 0.0 or float(way["accuracy"]) >= floor]
    if not allowed:
        with pytest.raises(BudgetError, match="lower the floor|never measured" if ways else "no memory"):
            choose(n, some, objective, asked)
        return
    if asked.deadline_s is None and asked.accuracy_floor is not None:
        least = min(way["cost"] for way in allowed)
        assert choose(n, some, objective, asked).option.cost == pytest.approx(least)
        return
    in_time = allowed
    if asked.deadline_s is not None:
        in_time = [way for way in allowed if float(way["bound"]) <= asked.deadline_s]
        if not in_time:
            soonest_s = min(float(way["seconds"]) for way in allowed)
            most = max(chance(float(w["seconds"]), float(w["bound"]), asked.deadline_s) for w in allowed)
            assume(abs(most - FAIR) > 1e-9)
            if most < FAIR and not asked.best_effort:
                with pytest.raises(DeadlineError, match="no answer is in time") as refused:
                    choose(n, some, objective, asked)
                assert refused.value.soonest_s == pytest.approx(soonest_s)
            elif most < FAIR:
                assert choose(n, some, objective, asked).seconds == pytest.approx(soonest_s)
            else:
                option = choose(n, some, objective, asked).option
                assert chance(option.seconds, option.bound_s, asked.deadline_s) == pytest.approx(most)
            return
    top = max(float(way["quality"]) for way in in_time)
    resolution = 1e-9 if asked.deadline_s is None else RESOLUTION + 1e-9
    alike = [way for way in in_time if float(way["quality"]) >= top - resolution]
    found = choose(n, some, objective, asked).option
    assert found.level.reaches(floor)
    assert found.level.quality >= top - resolution
    assert found.cost == pytest.approx(min(float(way["cost"]) for way in alike))


@given(candidates(), st.integers(0, 90), terms)
def test_candidates_are_ranked_as_they_would_be_chosen(some: list[Candidate], n: int, asked: Terms) -> None:
    """Leaving out the chosen one, the next of the ranking is chosen; and each is named once."""
    order = rank(n, some, TIME, asked)
    assert sorted(option.name for option in order) == sorted(c.name for c in some)
    willing = Terms(asked.deadline_s, asked.accuracy_floor, best_effort=True)
    left = list(some)
    for option in order:
        if option.excluded in ("floor", "memory"):
            with pytest.raises(BudgetError):
                choose(n, left, TIME, willing)
            break
        found = choose(n, left, TIME, willing)
        assert (found.option.level.quality, found.option.cost, found.option.excluded) == (
            option.level.quality,
            option.cost,
            option.excluded,
        )
        left = [c for c in left if c.name != option.name]


@given(candidates(), st.integers(0, 90), terms)
def test_the_soonest_has_the_least_bound(some: list[Candidate], n: int, asked: Terms) -> None:
    """It is the last resort, for which time is kept."""
    floor = asked.accuracy_floor or 0.0
    allowed = [w for w in every_way(n, some, TIME) if floor == 0.0 or float(w["accuracy"]) >= floor]
    found = choose_soonest(n, some, asked)
    assert (found is None) == (not allowed)
    if found is not None:
        assert found.option.bound_s == pytest.approx(min(float(way["bound"]) for way in allowed))


@given(candidates(), st.integers(0, 90), st.lists(st.floats(0.01, 12), min_size=2, max_size=5))
def test_more_time_never_gives_less_accuracy(some: list[Candidate], n: int, deadlines: list[float]) -> None:
    """Else a user who can wait longer would be served worse; by more than what can be measured, that is."""

    def at(deadline_s: float) -> Choice | None:
        try:
            found = choose(n, some, TIME, Terms(deadline_s))
        except (BudgetError, DeadlineError):
            return None
        return found if found.option.bound_s <= deadline_s else None

    for a, b in pairwise(sorted(deadlines)):
        first, second = at(a), at(b)
        if first is not None:
            assert second is not None
            assert second.option.level.quality >= first.option.level.quality - RESOLUTION - 1e-9


def test_an_input_without_memory_here_goes_where_there_is_some() -> None:
    """This device is quicker and more accurate, up to length 40: the answer was an error after a choice."""
    here = Candidate(LOCAL, (ServiceLevel(Curve(((0, 0.1),)), 0.92).limited(40),))
    above = Candidate("up", (ServiceLevel(Curve(((0, 1.0),)), 0.9).limited(100),))
    for asked in (
        Terms(),
        Terms(5.0),
        Terms(accuracy_floor=0.5),
        Terms(5.0, 0.5),
        Terms(0.5, best_effort=True),
    ):
        assert [choose(n, [here, above], terms=asked).target for n in (40, 41, 100)] == [LOCAL, "up", "up"]
        assert [o.excluded for o in rank(101, [here, above], terms=asked)] == ["memory", "memory"]
        with pytest.raises(BudgetError, match="length 101: up takes the longest, up to 100"):
            choose(101, [here, above], terms=asked)
        assert choose_soonest(101, [here, above], asked) is None
    with pytest.raises(
        BudgetError, match=r"0\.9000, by up, is the most there is for an input of this length"
    ):
        choose(41, [here, above], terms=Terms(accuracy_floor=0.92))


def test_of_equal_costs_the_most_accurate_is_taken() -> None:
    """With a deadline, the first or the least accurate within the resolution was taken: it is no quicker."""

    def level(accuracy: float) -> ServiceLevel:
        return ServiceLevel(Curve(((0, 3.0),)), accuracy)

    both = [Candidate("a", (level(0.918),)), Candidate("b", (level(0.92),))]
    one = [Candidate("a", (level(0.918), level(0.92)), crowding=Crowding(0.0, 1.0))]
    assert choose(5, both, terms=Terms(7.0)).target == "b"
    assert choose(5, one, terms=Terms(7.0)).option.level.accuracy == 0.92
