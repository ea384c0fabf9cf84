"""Expected accuracy from noisy measurements, and the submodel that it chooses against brute force."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pliant.errors import BudgetError
from pliant.ir.bitwidths import FULL_BITS
from pliant.ir.cost import CostTable, LayerCost
from pliant.ir.link import Link
from pliant.plan.plan import Budget, Plan
from pliant.plan.submodel.accuracy import AccuracyGrid, accuracy_curves, expected_grid
from pliant.plan.submodel.io_plan import fidelity
from pliant.plan.submodel.plan_options import OURS, PlanOptions
from pliant.plan.submodel.preload_set import PreloadRule
from pliant.plan.submodel.search import plan
from pliant.plan.submodel.shape import StoreShape
from pliant.plan.submodel.submodel import fitting_submodels, rank_submodels, submodels
from pliant.plan.submodel.submodel_problem import SubmodelProblem
from pliant.store.manifest import AccuracyEntry, AccuracyTable
from tests.plan.problems import random_problem

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

rngs = st.integers(0, 2**31).map(np.random.default_rng)
rules = st.sampled_from(["first", "shards", "planes", "base"])
BITS = (2, 3, 4, 6, 32)


def random_grid(rng: np.random.Generator, shape: StoreShape) -> AccuracyGrid:
    """Accuracies without any order in depth, width or bits."""
    return {
        (n, m, b): float(rng.uniform(0.5, 1))
        for n in range(1, shape.n_layers + 1)
        for m in shape.widths
        for b in BITS
    }


def is_whole(p: Plan, shape: StoreShape) -> bool:
    """Whether all of the model runs at full fidelity."""
    is_all = (p.n, p.width) == (shape.n_layers, shape.n_slices)
    return is_all and all(bits == FULL_BITS for row in p.bits for bits in row)


def table_of(grid: AccuracyGrid, rng: np.random.Generator) -> AccuracyTable:
    entries = tuple(AccuracyEntry(*place, a, float(-rng.uniform(0.2, 0.7))) for place, a in grid.items())
    return AccuracyTable(300, entries)


@settings(max_examples=120, deadline=None)
@given(rng=rngs, rule=rules, reserve=st.sampled_from([1.0, 3.0]), is_anytime=st.booleans())
def test_no_submodel_in_reach_is_expected_to_be_more_accurate(
    rng: np.random.Generator, rule: PreloadRule, reserve: float, is_anytime: bool
) -> None:
    """The bounds that spare the search most submodels must never cost the best one."""
    shape, costs, budget, importance = random_problem(rng)
    how = replace(OURS, preload=rule, io_reserve=reserve, is_anytime=is_anytime)
    grid = random_grid(rng, shape)
    problem, known = (
        SubmodelProblem(shape, costs, budget, importance, how, None),
        accuracy_curves(grid, how.errors),
    )
    in_reach = {}
    for c in rank_submodels(
        fitting_submodels(submodels(shape.n_layers, shape.widths, costs), problem.usable_s)
    ):
        a = problem.attempt(c)
        if a is None:
            continue
        kept = fidelity(problem.allocate(a)[0].bits, a.weights, how.errors)
        assert kept <= problem.fidelity_bound(a) + 1e-9
        in_reach[c.n, c.m] = known.at(c.n, c.m, kept)
    assume(in_reach)
    p = plan(shape, costs, budget, importance, how, accuracy=grid)
    assume(not is_whole(p, shape))
    assert p.expected_accuracy == max(x for x in in_reach.values() if x is not None)
    assert p.expected_accuracy == in_reach[p.n, p.width] == known.at(p.n, p.width, p.fidelity)
    assert p.meets_target


@settings(max_examples=60, deadline=None)
@given(rng=rngs)
def test_planes_in_memory_count_where_submodels_are_compared(rng: np.random.Generator) -> None:
    """Back-to-back runs replan with what is held: the same promise holds there."""
    shape, costs, budget, importance = random_problem(rng)
    held = rng.integers(0, 7, importance.shape)
    grid = random_grid(rng, shape)
    problem, known = (
        SubmodelProblem(shape, costs, budget, importance, OURS, held),
        accuracy_curves(grid, OURS.errors),
    )
    best = -1.0
    for c in fitting_submodels(submodels(shape.n_layers, shape.widths, costs), problem.usable_s):
        if a := problem.attempt(c):
            kept = fidelity(problem.allocate(a)[0].bits, a.weights, OURS.errors)
            best = max(best, known.at(c.n, c.m, kept) or 0.0)
    assume(best >= 0)
    p = plan(shape, costs, budget, importance, held=held, accuracy=grid)
    assume(not is_whole(p, shape))
    assert p.expected_accuracy == best


@settings(max_examples=60, deadline=None)
@given(rng=rngs)
def test_the_whole_model_runs_at_full_fidelity_unless_a_part_is_expected_to_be_better(
    rng: np.random.Generator,
) -> None:
    """Nothing is left out for nothing; but more time must not replace a better part by a worse whole."""
    shape, costs, budget, importance = random_problem(rng)
    grid = random_grid(rng, shape)
    whole = (shape.n_layers, shape.n_slices)
    lax = replace(budget, target_s=100.0)
    p = plan(shape, costs, lax, importance, accuracy=grid)
    assert p.expected_accuracy == max(grid.values())
    best = grid | {(*whole, b): 1.0 for b in BITS}
    assert is_whole(plan(shape, costs, lax, importance, accuracy=best), shape)


@settings(max_examples=60, deadline=None)
@given(rng=rngs)
def test_expected_accuracy_never_falls_with_bits_and_lies_at_the_measurements(
    rng: np.random.Generator,
) -> None:
    """Bits are chosen for fidelity: a dip by luck must not make the planner shun a higher one."""
    shape = random_problem(rng)[0]
    table = table_of(random_grid(rng, shape), rng)
    grid = expected_grid(table)
    assert grid.keys() == {(e.n, e.m, e.bits) for e in table.entries}
    known = accuracy_curves(grid, OURS.errors)
    for n in range(1, shape.n_layers + 1):
        for m in shape.widths:
            row = [grid[n, m, b] for b in BITS]
            assert row == sorted(row)
            assert known.at(n, m, 1.0) == row[-1]
            assert known.at(n, m, 1 - OURS.errors[3]) == pytest.approx(row[1], abs=1e-12)
            # Mixed bits: between the uniform ones whose errors lie around theirs.
            mixed = known.at(n, m, 1 - 0.5 * (OURS.errors[2] + OURS.errors[3]))
            assert mixed == pytest.approx((row[0] + row[1]) / 2, abs=1e-12)
    assert known.at(shape.n_layers + 1, shape.widths[0], 1.0) is None


def test_what_varies_by_luck_is_halved_and_what_likelihood_agrees_on_is_kept() -> None:
    """The point of the fit: two equal submodels, one lucky by 4 points, end 2 points apart."""
    likelihood = {(1, 1): -0.5, (2, 1): -0.4, (3, 1): -0.4, (4, 1): -0.3}
    measured = {(1, 1): 0.78, (2, 1): 0.80, (3, 1): 0.84, (4, 1): 0.86}
    entries = tuple(AccuracyEntry(*nm, 32, measured[nm], likelihood[nm]) for nm in measured)
    grid = expected_grid(AccuracyTable(300, entries))
    assert grid[3, 1, 32] - grid[2, 1, 32] == pytest.approx(0.02)
    assert grid[4, 1, 32] == pytest.approx(0.86)  # the line runs through the mean at -0.4 with slope 0.4


SHAPE = StoreShape(6, 12, (3, 6, 9, 12), 18432, 294912, tuple(range(1, 7)))
COSTS = CostTable(
    tuple(LayerCost(m, 3e-4 * m, 3.3e-4 * m) for m in SHAPE.widths), Link(8e-5, 8e8), 2e-4, 2e-4, 1e-4
)
IMPORTANCE = np.random.default_rng(0).random((6, 12))
DEEP = {
    (n, m, b): 0.7 + 0.03 * n + 0.001 * m - 0.1 / b for n in range(1, 7) for m in SHAPE.widths for b in BITS
}


def test_depth_that_was_measured_to_pay_is_taken_and_said_so() -> None:
    """Most slices picks wide submodels; where the grid says deep, the plan is deep and names both."""
    most = plan(SHAPE, COSTS, Budget(0.012, 200_000), IMPORTANCE)
    p = plan(SHAPE, COSTS, Budget(0.012, 200_000), IMPORTANCE, accuracy=DEEP)
    assert (p.n, p.width) == (6, 3)
    assert most.width > p.width
    assert p.expected_accuracy is not None
    assert f"{100 * p.expected_accuracy:.1f} % accurate" in str(p)
    assert any("most slices would be" in reason for reason in p.reasons)


def test_planning_by_size_ignores_the_grid_but_tells_what_to_expect() -> None:
    """The paper's rule stays one option away, and its cost is visible."""
    budget, by_size = Budget(0.012, 200_000), PlanOptions(choose="size")
    without = plan(SHAPE, COSTS, budget, IMPORTANCE)
    p = plan(SHAPE, COSTS, budget, IMPORTANCE, by_size, accuracy=DEEP)
    assert (p.n, p.width, p.bits) == (without.n, without.width, without.bits)
    assert without.expected_accuracy is None
    better = plan(SHAPE, COSTS, budget, IMPORTANCE, accuracy=DEEP).expected_accuracy
    assert p.expected_accuracy is not None
    assert better is not None
    assert p.expected_accuracy < better


def test_submodels_that_were_not_measured_are_taken_only_when_nothing_else_is_in_reach() -> None:
    """A grid of some widths only must neither crash nor hide a plan."""
    some = {place: a for place, a in DEEP.items() if place[1] == 6 and place[0] > 1}
    assert plan(SHAPE, COSTS, Budget(0.012, 0), IMPORTANCE, accuracy=some).width == 6
    least = plan(SHAPE, COSTS, Budget(0.003, 0), IMPORTANCE, accuracy=some)
    assert (least.width, least.expected_accuracy) == (3, None)


def test_an_infeasible_target_stays_infeasible() -> None:
    """No accuracy makes a submodel fast."""
    with pytest.raises(BudgetError, match="no submodel answers"):
        plan(SHAPE, COSTS, Budget(0.0005, 0), IMPORTANCE, accuracy=DEEP)
