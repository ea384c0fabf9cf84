"""Layers are left out only of models that were made for it, or whose accuracy without them was measured."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.errors import BudgetError
from pliant.ir.cost import CostTable, LayerCost
from pliant.ir.link import Link
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.plan.plan import Budget, Plan
from pliant.plan.submodel.baseline import load_and_execute, preload_model, standard_pipeline
from pliant.plan.submodel.search import OURS, PAPER, plan
from pliant.plan.submodel.shape import StoreShape, store_shape
from tests.plan.problems import random_problem

ORDINARY = StoreShape(12, 12, (12,), 18432, 294912, (12,))
COSTS = CostTable((LayerCost(12, 1e-3, 1.1e-3),), Link(8e-5, 8e8), 2e-4, 2e-4, 1e-4)
ALIKE = np.ones((12, 12))
PLANNERS: tuple[Callable[..., Plan], ...] = (
    plan,
    load_and_execute,
    partial(standard_pipeline, bits=6),
    partial(preload_model, bits=6),
)


@pytest.mark.parametrize("planner", PLANNERS)
@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), best_effort=st.booleans())
def test_no_planner_leaves_out_layers_of_an_ordinary_model(
    planner: Callable[..., Plan], seed: int, best_effort: bool
) -> None:
    """A model that was never trained without some of its layers answers wrong without them."""
    shape, costs, budget, importance = random_problem(np.random.default_rng(seed))
    shape = replace(shape, depths=(shape.n_layers,))
    try:
        made = planner(shape, costs, budget, importance, options=replace(OURS, best_effort=best_effort))
    except BudgetError:
        assert not best_effort
        return
    assert made.n == shape.n_layers
    assert made.cut in ("none", "trained")


def test_an_infeasible_target_names_the_nearest_that_keeps_all_layers_and_the_ways_out() -> None:
    """The user has to choose between time and accuracy, so the error offers both."""
    with pytest.raises(BudgetError) as caught:
        plan(ORDINARY, COSTS, Budget(0.005, 0), ALIKE)
    message = str(caught.value)
    for part in ("within 5 ms", "12 layers x 12", "pliant stretch", "--depths any", "pack --accuracy"):
        assert part in message
    (nearest_ms,) = re.findall(r"needs ([0-9.]+) ms", message)
    assert plan(ORDINARY, COSTS, Budget((float(nearest_ms) + 0.1) / 1e3, 0), ALIKE).n == 12
    with pytest.raises(BudgetError, match="--depths any"):
        standard_pipeline(ORDINARY, COSTS, Budget(0.005, 0), ALIKE, 6)


def test_a_tight_target_costs_an_ordinary_model_bits_and_nothing_else() -> None:
    """Bits are what can be traded without training: every layer and head stays."""
    loose, tight = (plan(ORDINARY, COSTS, Budget(s, 0), ALIKE) for s in (0.2, 0.016))
    assert (loose.n, loose.width) == (tight.n, tight.width) == (12, 12)
    assert min(map(min, tight.bits)) < min(map(min, loose.bits))
    assert loose.cut == tight.cut == "none"


@pytest.mark.parametrize("planner", PLANNERS)
def test_any_depth_is_one_option_and_the_plan_says_so(planner: Callable[..., Plan]) -> None:
    """Who asks for it gets it, and the plan tells that nobody knows how wrong it answers."""
    made = planner(ORDINARY, COSTS, Budget(0.008, 0), ALIKE, options=replace(OURS, depths="any"))
    assert made.n < 12
    assert made.cut == "untrained"
    assert f"{made.n} of 12 layers run (depths: any)" in str(made)


def test_a_measured_depth_may_run_and_any_other_may_not() -> None:
    """A grid of accuracy says what leaving layers out costs, so that the choice is an informed one."""
    grid = {(8, 12, 32): 0.8, (12, 12, 32): 0.9, (8, 12, 2): 0.7, (12, 12, 2): 0.75}
    made = plan(ORDINARY, COSTS, Budget(0.012, 0), ALIKE, accuracy=grid)
    assert (made.n, made.cut) == (8, "measured")
    assert made.expected_accuracy is not None
    with pytest.raises(BudgetError, match="no submodel answers within 5"):
        plan(ORDINARY, COSTS, Budget(0.005, 0), ALIKE, accuracy=grid)
    assert standard_pipeline(ORDINARY, COSTS, Budget(0.012, 0), ALIKE, 2, accuracy=grid).cut == "measured"


def test_trained_depths_need_not_be_all() -> None:
    """A model may have been trained at some depths only, and then no other runs."""
    shape = replace(ORDINARY, depths=(4, 8, 12))
    ran = {plan(shape, COSTS, Budget(s / 1e3, 0), ALIKE).n for s in (6, 8, 10, 12, 20)}
    assert ran == {4, 8, 12}


def test_the_papers_planner_cuts_any_depth() -> None:
    """STI plans over submodels of a DynaBERT model, which has every depth."""
    assert PAPER.depths == "any"


def test_the_real_minilm_keeps_its_layers(minilm: Path) -> None:
    """A checkpoint as people download it: no mark of ours in config.json."""
    shape = store_shape(open_checkpoint(minilm).spec)
    assert (shape.depths, shape.widths) == ((6,), (12,))
