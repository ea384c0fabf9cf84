"""The bound against every partition there is."""

import numpy as np
import pytest

from pliant.plan.partition import choose_partition
from pliant.plan.partition_all import all_plans
from pliant.plan.partition_bound import bound_ws
from pliant.plan.partition_improve import best
from pliant.plan.problem import pose
from tests.plan.clusters import cluster
from tests.plan.splits import bert


@pytest.mark.parametrize("n", [1, 2, 3])
def test_no_partition_is_quicker_than_the_bound(n: int) -> None:
    """45 and 675 plans on twenty clusters each, half with slow pairs; and the bound says something."""
    part = []
    for seed in range(20):
        p = pose(bert(), 8, *cluster(seed, n, pairs=seed % 2 == 0), "d0")
        least_s = best(p, all_plans(p, "ws"))[1]
        part.append(bound_ws(p) / least_s)
    assert max(part) <= 1.0
    assert np.median(part) > 0.3


def test_a_decision_says_how_far_it_may_be_from_the_best_when_asked() -> None:
    """Nobody pays for a bound that nobody wants; a tiled mode has none."""
    devices, links = cluster(3, 5)
    plain = choose_partition(bert(), 8, devices, links, "d0")
    asked = choose_partition(bert(), 8, devices, links, "d0", bound=True)
    assert plain.bound_s is None
    assert plain.gap is None
    assert asked.partition == plain.partition
    assert asked.bound_s is not None
    assert asked.bound_s <= asked.seconds
    assert asked.gap == pytest.approx(1 - asked.bound_s / asked.seconds)
