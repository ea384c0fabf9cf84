"""The bound against every partition there is."""

from dataclasses import replace

import numpy as np
import pytest

from pliant.ir.partition import Mode
from pliant.plan.partition.initial_plans import all_plans
from pliant.plan.partition.local_search import fastest
from pliant.plan.partition.lower_bound import bound_s
from pliant.plan.partition.partition_cost import FlatMode
from pliant.plan.partition.partitioner import choose_partition, solve
from pliant.plan.partition.problem import PartitionProblem, pose
from tests.plan.clusters import cluster, curved, handing
from tests.plan.splits import bert


def _problem(seed: int, n: int) -> PartitionProblem:
    """Half with slow pairs, a third measured, a third short of memory, some that hand over; any primary."""
    devices, links = cluster(seed, n, pairs=seed % 2 == 0)
    devices = handing(devices, seed) if seed % 4 == 3 else devices
    if seed % 3 == 0:
        devices = {name: curved(device) for name, device in devices.items()}
    p = pose(bert(ffn=4), 4, devices, links, f"d{seed % n}")
    if seed % 3 == 1:
        whole = p.sizes.tiled_head.each * 4 + p.sizes.tiled_column * 4 + p.sizes.tiled_row
        p = replace(p, memory=whole * np.random.default_rng(seed).uniform(0.5, 1.5, n))
    return p


@pytest.mark.parametrize("mode", ["ws", "1d"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_no_partition_is_quicker_than_the_bound(mode: FlatMode, n: int) -> None:
    """All plans of 24 clusters; with time to branch the bound is near the optimum, or it would say little."""
    quick, branched = [], []
    for seed in range(24):
        p = _problem(seed, n)
        least_s = fastest(p, all_plans(p, mode))[1]
        if np.isfinite(least_s):
            quick.append(bound_s(p, mode) / least_s)
            branched.append(bound_s(p, mode, 5.0) / least_s if seed < 8 else quick[-1])
    assert max(quick + branched) <= 1.0
    assert np.median(quick) > 0.5
    assert np.median(branched[:6]) > 0.75


@pytest.mark.parametrize("mode", ["ws", "1d", "2d"])
@pytest.mark.parametrize("n", [4, 9])
def test_no_plan_that_is_found_is_quicker_than_the_bound(mode: Mode, n: int) -> None:
    """Too many plans to try them all, and grids besides: whatever a search finds stands above it."""
    for seed in range(6):
        p = _problem(seed, n)
        _, found_s = solve(p, mode)
        assert bound_s(p, mode) <= found_s


def test_a_decision_says_how_far_it_may_be_from_the_best_when_asked() -> None:
    """Nobody pays for a bound that nobody wants."""
    devices, links = cluster(3, 5)
    plain = choose_partition(bert(), 8, devices, links, "d0")
    asked = choose_partition(bert(), 8, devices, links, "d0", bound_time_s=0.5)
    assert plain.bound_s is None
    assert plain.gap is None
    assert asked.partition == plain.partition
    assert asked.bound_s is not None
    assert asked.bound_s <= asked.seconds
    assert asked.gap == pytest.approx(1 - asked.bound_s / asked.seconds)
