"""A working buffer that is too small is refused with a size that is enough."""

import re

import numpy as np
import pytest

from pliant.errors import BudgetError
from pliant.plan.plan import Budget
from pliant.plan.submodel.plan_options import PlanOptions
from pliant.plan.submodel.search import plan
from tests.plan.problems import random_problem


@pytest.mark.parametrize("seed", range(10))
def test_the_working_buffer_that_an_error_names_is_enough(seed: int) -> None:
    """It named the bytes of one layer, where two are in flight: what it asked for was refused again."""
    shape, costs, budget, importance = random_problem(np.random.default_rng(seed))
    how = PlanOptions(best_effort=True)
    with pytest.raises(BudgetError, match="does not hold") as failure:
        plan(shape, costs, Budget(budget.target_s, 0, 4096), importance, how)
    named = re.search(r"give at least (\d+) bytes", str(failure.value))
    assert named is not None
    made = plan(shape, costs, Budget(budget.target_s, 0, int(named[1])), importance, how)
    assert made.memory.working_bytes <= int(named[1])
