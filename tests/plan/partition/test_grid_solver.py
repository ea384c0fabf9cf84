"""The 2D-tiled mode is chosen, fits in memory, is priced as it simulates; no device alone is quicker."""

from dataclasses import replace

import numpy as np
import pytest

from pliant.errors import BudgetError
from pliant.plan.partition.grid_solver import solve_grid
from pliant.plan.partition.partition_cost import device_weight_bytes, seconds, to_partition
from pliant.plan.partition.partitioner import choose_partition
from pliant.plan.partition.problem import PartitionProblem, pose
from pliant.plan.split.stage_graphs import weight_bytes
from tests.plan.clusters import cluster, simulated_s
from tests.plan.splits import bert, mobilebert

SPEC = bert(hidden=64, heads=16, ffn=128)


def _short(n: int, seed: int, part: float) -> PartitionProblem:
    """Devices of unequal speed and memory; all together have room for the weights `part` times."""
    devices, links = cluster(seed, n)
    p = pose(SPEC, 24, devices, links, "d0")
    whole = p.sizes.tiled_head.each * 16 + p.sizes.tiled_column * 128
    some = np.random.default_rng(seed).uniform(0.7, 1.3, n)
    return replace(p, memory=some / some.sum() * part * whole)


@pytest.mark.parametrize("n", [4, 6, 9, 16])
@pytest.mark.parametrize("seed", range(2))
def test_a_grid_is_priced_as_it_simulates(n: int, seed: int) -> None:
    """A promise that the program does not keep would make the wrong mode look good."""
    devices, links = cluster(seed, n)
    p = _short(n, seed, 3.0)
    plan, plan_s = solve_grid(p)
    assert plan_s == pytest.approx(simulated_s(SPEC, to_partition(p, plan), devices, links), rel=0.12)
    assert (device_weight_bytes(p, plan)[0] <= p.memory).all()
    held = dict(zip(p.names, device_weight_bytes(p, plan)[0], strict=True))
    assert held == weight_bytes(SPEC, to_partition(p, plan))


@pytest.mark.parametrize("n", [6, 9, 16])
def test_a_grid_fits_where_memory_is_short(n: int) -> None:
    """Each device has room for little more than its part: this is what the mode is for."""
    p = _short(n, 3, 2.0)
    plan, plan_s = solve_grid(p)
    assert np.isfinite(plan_s)
    assert (device_weight_bytes(p, plan)[0] <= p.memory).all()
    assert (device_weight_bytes(p, plan)[0] > 0).sum() > 1


def test_equal_devices_get_an_even_grid() -> None:
    """With nothing to tell devices apart the slowest tile is as small as whole numbers allow."""
    devices, links = cluster(0, 16)
    p = pose(SPEC, 32, dict.fromkeys(devices, devices["d0"]), replace(links, pairs={}), "d0")
    same = np.full(16, 1e9)
    p = replace(p, memory=np.full(16, 0.2 * 8e5), egress=same, ingress=same, rate=np.full((16, 16), 1e9))
    plan, _ = solve_grid(p)
    tiles = plan.hidden[0] * np.where(
        plan.column[0][:, None] == plan.column[0][None, :], plan.columns[0][None, :], 0
    ).sum(1)
    assert tiles.max() <= 1.5 * tiles[tiles > 0].mean()


def test_groups_are_devices_of_like_speed() -> None:
    """A group's block of hidden columns is as large as its slowest member allows."""
    p = _short(16, 1, 2.0)
    same = np.full(16, 1e7)
    p = replace(p, memory=np.full(16, p.memory.mean()), egress=same, ingress=same)
    plan, _ = solve_grid(p)
    full_s = p.mixed_s[:, -1] + p.forward_s[0][:, -1]
    n_groups = plan.group[0].max() + 1
    slowest = [full_s[plan.group[0] == g].max() for g in range(n_groups)]
    quickest = [full_s[plan.group[0] == g].min() for g in range(n_groups)]
    assert n_groups > 1
    assert all(slow <= quick for slow, quick in zip(slowest[:-1], quickest[1:], strict=True))


def test_the_papers_rule_takes_a_grid_from_sixteen_devices_on() -> None:
    """Hepti 4.3: fewer than 16 are 1D-tiled; the memory of the slowest decides that weights are tiled."""
    for n, mode in ((15, "1d"), (16, "2d")):
        devices, links = cluster(1, n, free_bytes=150_000)
        decision = choose_partition(SPEC, 24, devices, links, "d0")
        assert mode in [one.what for one in decision.considered]
        assert ("2d" in [one.what for one in decision.considered]) == (mode == "2d")
        assert decision.mode == mode
        assert set(decision.partition.devices) == set(devices)
        assert decision.weight_bytes == weight_bytes(SPEC, decision.partition)
        assert max(decision.weight_bytes.values()) <= 150_000


@pytest.mark.parametrize("seed", range(4))
def test_the_cost_judges_all_modes_and_none_loses_to_one_device(seed: int) -> None:
    """Whatever the rule: a device alone is always one of the plans."""
    spec = mobilebert() if seed % 2 else SPEC
    devices, links = cluster(seed, 6)
    decision = choose_partition(spec, 16, devices, links, "d0", rule="cost")
    assert {"ws", "1d", "2d"} <= {one.what for one in decision.considered}
    assert decision.seconds == min(one.seconds for one in decision.considered)
    p = pose(spec, 16, devices, links, "d0")
    assert np.isfinite(seconds(p, solve_grid(p)[0])).all()


def test_too_little_memory_for_any_tile_is_refused() -> None:
    """Sixteen devices without memory are told so."""
    devices, links = cluster(0, 16, free_bytes=100)
    with pytest.raises(BudgetError, match="free in all"):
        choose_partition(SPEC, 24, devices, links, "d0")
