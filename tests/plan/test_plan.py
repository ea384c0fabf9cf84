"""Plans as text and as programs, compared with golden files; what their properties claim."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.errors import BudgetError
from pliant.ir.cost import CostTable, LayerCost
from pliant.ir.link import Link
from pliant.plan.plan import Budget
from pliant.plan.submodel.preload_set import held_bytes
from pliant.plan.submodel.search import PAPER, plan
from pliant.plan.submodel.shape import StoreShape
from tests.guards.texts import checked_text, plan_text
from tests.plan.problems import random_problem

SHAPE = StoreShape(6, 12, (3, 6, 9, 12), 18432, 294912, tuple(range(1, 7)))
COSTS = CostTable(
    tuple(LayerCost(m, 3e-4 * m, 3.3e-4 * m) for m in SHAPE.widths), Link(8e-5, 8e8), 2e-4, 2e-4, 1e-4
)
IMPORTANCE = np.linspace(1, 0, 72).reshape(6, 12)


def test_our_plan_prints_as_the_golden_text(golden: Callable[[str, str], None]) -> None:
    """A change of any planning rule shows here, to be looked at before it is taken."""
    p = plan(SHAPE, COSTS, Budget(0.012, 200_000), IMPORTANCE)
    golden("plan_ours.txt", plan_text(p) + "\n" + checked_text(p.program))


def test_the_papers_plan_prints_as_the_golden_text(golden: Callable[[str, str], None]) -> None:
    """The published planner stays what it was while ours improves."""
    p = plan(SHAPE, COSTS, Budget(0.012, 200_000), IMPORTANCE, PAPER)
    golden("plan_paper.txt", plan_text(p) + "\n" + checked_text(p.program))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_preload_runs_are_what_is_held(seed: int) -> None:
    """A session fills its buffer from these: they must amount to `held`, plane by plane."""
    shape, costs, budget, importance = random_problem(np.random.default_rng(seed))
    try:
        p = plan(shape, costs, budget, importance)
    except BudgetError:
        return
    assert sum(shape.part_bytes(r.part) * r.count for r in p.preload_runs) == p.memory.preload_bytes
    held = np.zeros((p.n, p.width), dtype=np.int64)
    for run in p.preload_runs:
        row = held[p.layers.index(run.layer), run.first : run.first + run.count]
        row[:] = 32 if run.part == 6 else row + 1
    assert held.tolist() == [list(row) for row in p.held]
    assert held_bytes(shape, held) == p.memory.preload_bytes


@pytest.mark.parametrize("impossible", [(0.0, 1), (1.0, -1), (1.0, 1, 4095)])
def test_impossible_budgets_cannot_be_built(impossible: tuple[float, ...]) -> None:
    """Values are checked once, where they enter."""
    with pytest.raises(BudgetError):
        Budget(*impossible)
