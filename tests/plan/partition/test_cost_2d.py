"""The closed form of the 2D-tiled mode against the program that really runs: its weights, its simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.plan.partition.partition_cost import device_weight_bytes, seconds, to_partition, to_plans
from pliant.plan.partition.problem import pose
from pliant.plan.split.stage_graphs import weight_bytes
from tests.plan.clusters import cluster, curved, handing, simulated_s
from tests.plan.splits import bert, mobilebert, partition

SPECS = {"bert": bert(), "vit": bert(pre=True), "mobilebert": mobilebert()}


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(SPECS)),
    st.integers(1, 6),
    st.integers(1, 9),
    st.integers(0, 2**20),
    st.booleans(),
    st.booleans(),
)
def test_the_pace_of_a_grid_is_near_the_simulation(
    name: str, n: int, tokens: int, seed: int, is_curved: bool, is_handing: bool
) -> None:
    """Any grid at all, however lopsided; weights to the byte, and there and back is the same plan."""
    devices, links = cluster(seed, n, pairs=seed % 2 == 0)
    if is_curved:
        devices = {device: curved(one) for device, one in devices.items()}
    if is_handing:
        devices = handing(devices, seed)
    made = partition(SPECS[name], "2d", n, tokens, seed)
    p = pose(SPECS[name], tokens, devices, links, made.primary)
    plan = to_plans(p, made)
    held = dict(zip(p.names, device_weight_bytes(p, plan)[0], strict=True))
    assert held == {device: float(n_bytes) for device, n_bytes in weight_bytes(SPECS[name], made).items()}
    assert seconds(p, plan)[0] == pytest.approx(simulated_s(SPECS[name], made, devices, links), rel=0.35)
    again = to_partition(p, plan)
    assert again.grid == made.grid
    assert seconds(p, to_plans(p, again))[0] == seconds(p, plan)[0]


@pytest.mark.parametrize("is_handing", [False, True])
def test_the_pace_of_a_grid_is_mostly_within_a_few_percent(is_handing: bool) -> None:
    """The bound above is for the worst; a plan is chosen by what is usual."""
    errors = []
    for seed in range(40):
        devices, links = cluster(seed, 6)
        devices = handing(devices, seed) if is_handing else devices
        made = partition(bert(), "2d", 6, 9, seed)
        p = pose(bert(), 9, devices, links, made.primary)
        true_s = simulated_s(bert(), made, devices, links)
        errors.append(abs(seconds(p, to_plans(p, made))[0] / true_s - 1))
    assert np.median(errors) < 0.03
    assert np.quantile(errors, 0.9) < 0.12
