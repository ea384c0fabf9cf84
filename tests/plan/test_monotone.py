"""More memory or more time never gives a worse plan.

One plan is worse than another by expected accuracy where submodels were measured, and else by the submodel's
place in STI's order (5.3: most shards first, of similar numbers the deeper) and then by fidelity. At other
lengths than the planned one: tests/run/test_resident_weights.py.
"""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.errors import BudgetError
from pliant.ir.cost import CostTable
from pliant.plan.plan import Budget, Plan
from pliant.plan.submodel.accuracy import AccuracyGrid
from pliant.plan.submodel.search import plan
from pliant.plan.submodel.shape import StoreShape
from pliant.plan.submodel.submodel import rank_submodels, submodels
from tests.plan.problems import random_problem

ROUNDING = 1e-12  # of sums of floats, in another order
Problem = tuple[StoreShape, CostTable, Budget, np.ndarray]

seeds = st.integers(0, 2**31)
# Neighbouring budgets, as plans rise steeply: between distant ones a fall would be hidden.
growth = st.lists(st.floats(1.0, 1.3), min_size=3, max_size=6).map(lambda x: np.cumprod(x).tolist())


def random_grid(shape: StoreShape, rng: np.random.Generator) -> AccuracyGrid:
    """Accuracy that grows with shards and bits, each with a chance of its own."""
    grid: dict[tuple[int, int, int], float] = {}
    for m in shape.widths:
        for n in range(1, shape.n_layers + 1):
            share = (n * m / (shape.n_layers * shape.n_slices)) ** 0.5
            gain = 0.4 * share * float(rng.uniform(0.9, 1))
            for bits, kept in ((2, rng.uniform(0.6, 0.95)), (4, rng.uniform(0.95, 1)), (32, 1.0)):
                grid[n, m, bits] = 0.5 + gain * float(kept)
    return grid


def assert_never_worse(
    plans: list[Plan | None], shape: StoreShape, costs: CostTable, grid: AccuracyGrid | None
) -> None:
    """Of plans under budgets that grow; None where there is none."""
    order = [(c.n, c.m) for c in rank_submodels(submodels(shape.n_layers, shape.widths, costs))]
    for less, more in pairwise(plans):
        if less is None:
            continue
        assert more is not None, "a budget that was enough is not any more"
        if grid is not None:
            assert less.expected_accuracy is not None
            assert more.expected_accuracy is not None
            assert more.expected_accuracy >= less.expected_accuracy - ROUNDING
            continue
        places = order.index((less.n, less.width)), order.index((more.n, more.width))
        assert places[1] <= places[0]
        if places[1] == places[0]:
            assert more.fidelity >= less.fidelity - ROUNDING


def planned(problem: Problem, budget: Budget, grid: AccuracyGrid | None) -> Plan | None:
    shape, costs, _, importance = problem
    try:
        return plan(shape, costs, budget, importance, accuracy=grid)
    except BudgetError:
        return None


@settings(max_examples=40, deadline=None)
@given(seed=seeds, times=growth, is_measured=st.booleans(), share=st.floats(0, 0.35))
def test_more_time_is_never_worse(seed: int, times: list[float], is_measured: bool, share: float) -> None:
    """Whatever the buffer: a user who waits longer must not get a worse answer for it."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng)
    shape, costs, budget, _ = problem
    grid = random_grid(shape, rng) if is_measured else None
    plans = [planned(problem, Budget(0.7 * budget.target_s * t, memory(shape, share)), grid) for t in times]
    assert_never_worse(plans, shape, costs, grid)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, sizes=growth, is_measured=st.booleans(), share=st.floats(0, 0.35))
def test_more_memory_is_never_worse(seed: int, sizes: list[float], is_measured: bool, share: float) -> None:
    """Up to a buffer that holds most of the model, plane by plane."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng)
    shape, costs, budget, _ = problem
    grid = random_grid(shape, rng) if is_measured else None
    plans = [planned(problem, Budget(budget.target_s, memory(shape, share * s)), grid) for s in sizes]
    assert_never_worse(plans, shape, costs, grid)


def memory(shape: StoreShape, share: float) -> int:
    """Bytes of this share of the model at full fidelity."""
    return int(share * shape.n_layers * shape.n_slices * shape.full_bytes)
