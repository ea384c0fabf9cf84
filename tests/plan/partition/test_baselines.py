"""The rules that ours is measured against do what they say, and never better than ours says it does."""

from dataclasses import replace
from math import isinf

import pytest

from pliant.plan.partition.baselines import by_speed, coedge, equal, local, predicted_s
from pliant.plan.partition.partitioner import choose_partition
from pliant.plan.partition.problem import pose
from tests.plan.clusters import cluster, simulated_s
from tests.plan.splits import bert

SPEC = bert()


def test_equal_shares_are_equal() -> None:
    """Of 4 heads and 8 rows among two devices."""
    p = pose(SPEC, 8, *cluster(0, 2), "d0")
    for mode in ("ws", "1d"):
        shares = equal(p, mode).partition.shares
        assert [(s.heads, s.rows) for s in shares] == [(2, 4), (2, 4)]


def test_everything_local_costs_no_exchange() -> None:
    """The baseline of every figure is the primary's compute alone: its ends, and all layers."""
    devices, links = cluster(0, 3)
    p = pose(SPEC, 8, devices, links, "d1")
    ends_s = sum(devices["d1"].seconds(end, 8.0 * SPEC.hidden) for end in ("input", "head"))
    assert local(p).seconds == pytest.approx(ends_s + SPEC.n_layers * (p.attend_s[1, 4] + p.rest_s[1, 8]))


def test_faster_devices_get_more() -> None:
    """Shares follow speed; CoEdge's follow speed and network."""
    devices, links = cluster(0, 3)
    devices["d2"] = replace(devices["d2"], cycles_per_flop=0.01)
    p = pose(SPEC, 8, devices, links, "d0")
    rows = [share.rows for share in by_speed(p, "ws").partition.shares]
    assert rows[2] == max(rows) > 4
    assert coedge(p).partition.mode == "ws"
    assert coedge(p).partition.share("d2").rows <= rows[2]


@pytest.mark.parametrize("seed", range(6))
def test_ours_is_no_slower_than_any_of_them(seed: int) -> None:
    """By prediction, as the tests of the search say; a baseline that won would show a mistake."""
    devices, links = cluster(seed, 3, pairs=True)
    p = pose(SPEC, 8, devices, links, "d0")
    ours = choose_partition(SPEC, 8, devices, links, "d0", rule="cost")
    for rule in (local(p), equal(p, "ws"), equal(p, "1d"), by_speed(p, "ws"), by_speed(p, "1d"), coedge(p)):
        assert ours.seconds <= rule.seconds * (1 + 1e-9)
        true_s = simulated_s(SPEC, rule.partition, devices, links)
        assert rule.seconds == pytest.approx(true_s, rel=0.35)
        assert predicted_s(p, rule.partition) == rule.seconds


def test_where_equal_shares_no_longer_fit_another_mode_does() -> None:
    """Figure 7, third segment: CoEdge halts where ours goes on in another mode."""
    devices, links = cluster(4, 2)
    half = {name: replace(device, free_bytes=6000) for name, device in devices.items()}
    assert isinf(equal(pose(SPEC, 8, half, links, "d0"), "ws").seconds)
    assert choose_partition(SPEC, 8, half, links, "d0").mode == "1d"
