"""What plans keep in hand: coarse steps of a dilation, and the IO reserve that reads ask for."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import BudgetError
from pliant.ir.cost import TOKENISE, Cost, CostTable, LayerCost, dilate, latency, simulate
from pliant.ir.dilation import Dilation
from pliant.ir.link import Link
from pliant.ir.program import Program
from pliant.plan.plan import Budget
from pliant.plan.submodel.plan_options import OURS, PAPER, PlanOptions
from pliant.plan.submodel.reserve import io_reserve, round_dilation
from pliant.plan.submodel.search import plan
from pliant.plan.submodel.shape import StoreShape

SHAPE = StoreShape(6, 4, (2, 4), 4096, 65_536, depths=tuple(range(1, 7)))
factors = st.floats(0.02, 60.0)


def table(disk: Link) -> CostTable:
    layers = (LayerCost(2, 0.0006, 0.0006), LayerCost(4, 0.001, 0.001))
    return CostTable(layers, disk, 1e-4, 1e-4, 1e-5)


def ran(program: Program, costs: Cost) -> float:
    return costs.seconds(TOKENISE) + latency(simulate(program, costs, {"tokens": 8}))


@given(factors, factors)
def test_a_coarse_factor_allows_for_the_one_observed_and_little_more(factor: float, before: float) -> None:
    """Plans must hold for what was observed; half a step more than one is what avoids planning anew."""
    step = round_dilation(factor, before)
    assert factor * (1 - 1e-6) <= step <= factor * 1.15**1.5 * (1 + 1e-6)
    assert round_dilation(factor, step) == step


def test_the_reserve_is_the_spread_of_reads_from_1_to_3() -> None:
    """Nothing is set aside for a disk that never wavers, and no more than 3 for one that was stuck."""
    even = table(Link(1e-4, 1e8))
    assert io_reserve(even, None, 10**5) == 1.0
    assert io_reserve(even, even, 10**5) == 1.0
    assert io_reserve(dilate(even, Dilation(1.0, 2.0)), even, 10**5) == pytest.approx(2.0)
    assert io_reserve(dilate(even, Dilation(1.0, 9.0)), even, 10**5) == 3.0


@pytest.mark.parametrize("target_s", [0.006, 0.01, 0.03])
def test_by_default_late_reads_cost_fidelity_and_not_the_deadline(target_s: float) -> None:
    """Reads as far above their 95th percentile as that is above the median: base planes are in time all the
    same. Without the reserve, what the planner did by default, the same reads break the target."""
    median = table(Link(1e-4, 4e7))
    p95 = dilate(median, Dilation(1.0, 2.0))
    late = dilate(p95, Dilation(1.0, 2.0))
    job = (SHAPE, p95, Budget(target_s, 0), np.ones((6, 4)))
    learnt = plan(*job, OURS, expected=median)
    assert ran(learnt.program, late) <= target_s + 1e-9
    unreserved = plan(*job, replace(OURS, io_reserve=1.0), expected=median)
    assert ran(unreserved.program, late) > target_s
    assert learnt == plan(*job, replace(OURS, io_reserve=2.0), expected=median)


def test_only_anytime_plans_set_time_aside() -> None:
    """The paper's planner has no reserve, and a plan that waits for every read has no use for one."""
    median = table(Link(1e-4, 4e7))
    job = (SHAPE, dilate(median, Dilation(1.0, 2.0)), Budget(0.03, 0), np.ones((6, 4)))
    assert PAPER.reserve == 1.0
    for how in (PAPER, replace(OURS, is_anytime=False)):
        assert plan(*job, how, expected=median) == plan(*job, replace(how, io_reserve=3.0), expected=median)
    with pytest.raises(BudgetError, match="at least 1"):
        PlanOptions(io_reserve=0.5)
