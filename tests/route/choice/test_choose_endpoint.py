"""The decision against brute force."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import RouteError
from pliant.ir.curve import Curve, line
from pliant.ir.endpoint import ServiceLevel
from pliant.route.choice.candidate import Candidate
from pliant.route.choice.choose_endpoint import LOCAL, choose
from pliant.route.choice.crowding import Crowding
from pliant.route.choice.objective import ENERGY, TIME, Objective
from tests.ir.test_curve import curves
from tests.route.routers import only

part = st.floats(0, 3).map(lambda x: round(x, 3))


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    names = [LOCAL, *(f"n{i}" for i in range(draw(st.integers(0, 8))))]
    return [Candidate(name, only(draw(curves())), *(draw(part) for _ in range(5))) for name in names]


@given(candidates(), st.integers(0, 90), st.sampled_from([TIME, ENERGY, Objective(1.0, 0.3)]))
def test_the_choice_costs_least(some: list[Candidate], n: int, objective: Objective) -> None:
    """Equations 4 to 6, 8 and 9 written out, for time, energy and a mix."""
    costs = {}
    for c in some:
        total_s = c.best.curve.at(n) + c.fixed_s + c.per_item_s * n
        joules = c.fixed_j + c.per_item_j * n + c.watts * total_s
        costs[c.name] = objective.per_second * total_s + objective.per_joule * joules
    found = choose(n, some, objective)
    assert costs[found.target] == pytest.approx(min(costs.values()), rel=1e-12)
    others = [o.cost for o in found.runners_up]
    assert others == sorted(others)
    assert {found.target, *(o.name for o in found.runners_up)} == set(costs)


@given(part, part, st.floats(1.1, 3.0), st.integers(0, 90))
def test_a_queue_is_added_to_the_way_and_nothing_else_changes(
    fixed_s: float, wait_s: float, way_bound: float, n: int
) -> None:
    """It was copied field by field, without those that no upstream had then."""
    levels = tuple(replace(level, exchange_j=line(1.0, 0.0, 9)) for level in only(line(0.0, 0.03, 90)))
    way = Candidate("up", levels, fixed_s, 0.1, 0.2, 0.3, 0.4, way_bound, 0.5, Crowding(0.6, 0.7), 0.8, 0.9)
    assert all(getattr(way, field.name) != field.default for field in fields(way) if field.name != "fixed_s")
    queued = way.behind(wait_s)
    assert replace(queued, fixed_s=way.fixed_s, way_bound=way.way_bound) == way
    assert queued.fixed_s == fixed_s + wait_s
    assert queued.fixed_s * queued.way_bound == pytest.approx(fixed_s * way_bound + wait_s)
    assert queued.seconds(n) == pytest.approx(way.seconds(n) + wait_s)


def test_equal_times_stay_here() -> None:
    """Equation 6 has `<=`."""
    same = ServiceLevel(Curve(((0, 1.0),)))
    assert choose(3, [Candidate(LOCAL, (same,)), Candidate("up", (same,))]).target == LOCAL


def test_nobody_left_is_said() -> None:
    """The caller tells its client to come again."""
    with pytest.raises(RouteError, match="no device may answer"):
        choose(3, [])


def test_figure_3_goes_to_three_devices() -> None:
    """Below 4 here, from 4 to 11 the gateway, above the cloud (CRIME 3.2)."""
    some = [
        Candidate(LOCAL, only(line(0.0, 0.030, 512))),
        Candidate("gateway", only(line(0.010, 0.010, 512)), 0.060),
        Candidate("cloud", only(line(0.010, 0.001, 512)), 0.160),
    ]
    targets = [choose(n, some).target for n in range(1, 20)]
    assert targets == [LOCAL] * 3 + ["gateway"] * 8 + ["cloud"] * 8


@pytest.mark.parametrize("weights", [(-1.0, 1.0), (0.0, 0.0), (float("nan"), 1.0), (float("inf"), 1.0)])
def test_an_objective_that_ranks_nothing_is_refused(weights: tuple[float, float]) -> None:
    """A weight comes from options and from the wire."""
    with pytest.raises(RouteError):
        Objective(*weights)
