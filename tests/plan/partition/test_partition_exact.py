"""The integer program against every partition there is, by the paper's own T; ours beside it."""

import pytest

from pliant.errors import BudgetError
from pliant.plan.partition.initial_plans import all_plans
from pliant.plan.partition.partition_cost import seconds
from pliant.plan.partition.partitioner import solve
from pliant.plan.partition.problem import pose
from research.partition_exact import solve_exactly, staged_s
from tests.plan.clusters import cluster
from tests.plan.splits import bert


@pytest.mark.parametrize(("seed", "n"), [(s, n) for s in range(6) for n in (2, 3)])
def test_the_integer_program_finds_the_least_t(seed: int, n: int) -> None:
    """One-hot heads make the first exchange exact: 45 and 675 partitions, the same optimum."""
    p = pose(bert(), 8, *cluster(seed, n), "d0")
    exact = solve_exactly(p)
    least_s = staged_s(p, all_plans(p, "ws")).min()
    assert exact.staged_s == pytest.approx(least_s, rel=1e-4)
    assert exact.bound_s == pytest.approx(least_s, rel=1e-4)


@pytest.mark.parametrize("seed", range(6))
def test_stages_overlap_so_the_true_cost_is_no_longer(seed: int) -> None:
    """Eq. 7 waits for everybody after every stage, and leaves the input and the head out."""
    p = pose(bert(), 8, *cluster(seed, 3), "d0")
    exact = solve_exactly(p)
    assert seconds(p, exact.plan)[0] - p.ends_s <= exact.staged_s * 1.02
    assert solve(p, "ws")[1] <= seconds(p, exact.plan)[0] * (1 + 1e-9)


def test_memory_that_fits_nothing_is_an_error() -> None:
    """Not an empty plan."""
    with pytest.raises(BudgetError, match="fits in memory"):
        solve_exactly(pose(bert(), 8, *cluster(0, 2, free_bytes=100), "d0"))
