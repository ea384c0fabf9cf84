"""The planner's closed forms against the program that really runs: its flops, its weights, its simulation."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.errors import InputError
from pliant.ir.capability import ClusterCost, Drift, MessageOverhead, StageTimes
from pliant.ir.cost import Cost
from pliant.ir.dilation import Dilation
from pliant.ir.partition import Mode
from pliant.ir.program import Compute, Exchange
from pliant.plan.partition.device_times import DeviceTimes, time_table
from pliant.plan.partition.partition_cost import (
    FlatMode,
    FlatPlans,
    device_weight_bytes,
    seconds,
    to_partition,
    to_plans,
)
from pliant.plan.partition.problem import pose
from pliant.plan.partition.sizes import AffineCost, layer_sizes
from pliant.plan.split.split_program import split
from pliant.plan.split.stage_graphs import flops, weight_bytes, work_flops
from pliant.plan.split.stages import stages
from tests.plan.clusters import cluster, curved, handing, simulated_s
from tests.plan.splits import bert, cut, mobilebert, partition

SPECS = {"bert": bert(), "vit": bert(pre=True), "mobilebert": mobilebert()}


def _plan(mode: FlatMode, name: str, n: int, tokens: int, seed: int) -> FlatPlans:
    rng, spec = np.random.default_rng(seed), SPECS[name]
    columns = cut(rng, spec.ffn, n) if mode == "1d" else [0] * n
    shares = (cut(rng, spec.n_heads, n), cut(rng, tokens, n), columns)
    return FlatPlans(mode, *(np.array([share]) for share in shares))


@pytest.mark.parametrize("mode", ["ws", "1d"])
@pytest.mark.parametrize("name", SPECS)
def test_sizes_are_those_of_the_split(name: str, mode: FlatMode) -> None:
    """The planner prices units; were they not the program's own, it would optimise another program."""
    spec = SPECS[name]
    s = layer_sizes(spec, 7)
    units = {"attend": s.attend, "attend_mix": s.mixed, "rest": s.rest, "feed_forward.0": s.forward}
    for seed in range(20):
        plan = _plan(mode, name, 3, 7, seed)
        p = pose(spec, 7, *cluster(seed, 3), "d1")
        partition = to_partition(p, plan)
        held = dict(zip(p.names, device_weight_bytes(p, plan)[0], strict=True))
        assert held == {device: float(n) for device, n in weight_bytes(spec, partition).items()}
        for stage in stages(spec, partition, 0):
            if stage.kernel in units:
                count = stage.rows if stage.kind == "rest" else stage.width
                assert count is not None
                unit = units[stage.kernel]
                assert flops(spec, partition, stage) == unit.fixed + unit.each * count


@pytest.mark.parametrize("mode", ["ws", "1d"])
@pytest.mark.parametrize("name", SPECS)
def test_every_price_is_the_one_that_the_cost_gives_a_step(name: str, mode: FlatMode) -> None:
    """Planner and simulation would else judge by different devices: the arrays project one `Cost`."""
    spec = SPECS[name]
    for seed in range(5):
        devices, links = cluster(seed, 3, pairs=True)
        devices = handing(
            {d: replace(curved(one), dilation=Dilation(3.0)) for d, one in devices.items()}, seed
        )
        plan = _plan(mode, name, 3, 7, seed)
        p = pose(spec, 7, devices, links, "d1")
        partition = to_partition(p, plan)
        cost: Cost = ClusterCost(devices, links, work_flops(spec, partition))
        tables = {"attend": p.attend_s, "attend_mix": p.mixed_s, "feed_forward.0": p.forward_s[0]}
        for work in (step.work for step in split(spec, partition).steps):
            match work:
                case Compute(kernel="rest", rows=int(n)):
                    assert cost.seconds(work) == pytest.approx(p.rest_s[p.names.index(work.device), n])
                case Compute(kernel=kernel, width=int(n)) if kernel in tables:
                    at = p.names.index(work.device)
                    assert cost.seconds(work) == pytest.approx(tables[kernel][at, n])
                case Exchange(n_bytes=int(n_bytes)):
                    i, j = p.names.index(work.src), p.names.index(work.dst)
                    assert cost.seconds(work) == pytest.approx(p.latency_s[i, j] + n_bytes / p.rate[i, j])
                    handed = [of[0][k] + of[1][k] * n_bytes for of, k in ((p.send, i), (p.take, j))]
                    assert cost.message_overhead(work) == pytest.approx(handed)
                case _:
                    pass


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["ws", "1d"]),
    st.sampled_from(sorted(SPECS)),
    st.integers(1, 4),
    st.integers(1, 9),
    st.integers(0, 2**20),
    st.booleans(),
    st.booleans(),
)
def test_the_pace_is_near_the_simulation(
    mode: FlatMode, name: str, n: int, tokens: int, seed: int, is_curved: bool, is_handing: bool
) -> None:
    """Any partition at all, however lopsided: exchanges that start at different times are the difference.

    Between two devices both forms share alike, but the closed one has both wait for the later at each
    end, and is never below.
    """
    devices, links = cluster(seed, n, pairs=seed % 2 == 0)
    if is_curved:
        devices = {name: curved(device) for name, device in devices.items()}
    if is_handing:
        devices = handing(devices, seed)
    plan = _plan(mode, name, n, tokens, seed)
    p = pose(SPECS[name], tokens, devices, links, "d0")
    true_s = simulated_s(SPECS[name], to_partition(p, plan), devices, links)
    assert seconds(p, plan)[0] == pytest.approx(true_s, rel=0.35)
    assert n > 2 or seconds(p, plan)[0] >= true_s * (1 - 1e-9)


@pytest.mark.parametrize("is_handing", [False, True])
def test_the_pace_is_mostly_within_a_few_percent(is_handing: bool) -> None:
    """The bound above is for the worst; a plan is chosen by what is usual."""
    errors = []
    for seed in range(60):
        mode: FlatMode = "1d" if seed % 2 else "ws"
        devices, links = cluster(seed, 4)
        devices = handing(devices, seed) if is_handing else devices
        plan = _plan(mode, "bert", 4, 9, seed)
        p = pose(SPECS["bert"], 9, devices, links, "d0")
        true_s = simulated_s(SPECS["bert"], to_partition(p, plan), devices, links)
        errors.append(abs(seconds(p, plan)[0] / true_s - 1))
    assert np.median(errors) < 0.03


def test_a_table_holds_what_capabilities_say() -> None:
    """Tables are filled by arrays; a device's own method is the reference."""
    devices, _ = cluster(3, 3)
    mixed = (curved(devices["d0"]), devices["d1"], curved(devices["d2"]))
    times = time_table(mixed, "rest", AffineCost(0.0, 37.0), 40)
    for device, row in zip(mixed, times, strict=True):
        assert row.tolist() == pytest.approx([device.seconds("rest", 37.0 * n) for n in range(41)])


def test_stages_of_devices_with_unlike_curves_are_priced_side_by_side() -> None:
    """At points, between, before and beyond them, drifted and dilated; no operations take no time."""
    devices, _ = cluster(5, 4)
    many = curved(devices["d1"])
    few = replace(curved(devices["d2"]), curves=(StageTimes("rest", ((300.0, 1e-3), (900.0, 1.5e-3))),))
    drifted = replace(many, drifts=(Drift("rest", 1.7),), dilation=Dilation(2.5))
    mixed = (devices["d0"], many, few, drifted)
    some = np.array([0.0, 1.0, 50.0, 299.0, 300.0, 700.0, 900.0, 5e3, 7e6])
    ops = np.stack([np.roll(some, i) for i in range(len(mixed))], axis=1)
    times = DeviceTimes(mixed)
    for kind in ("rest", "mix"):
        for found in (times.seconds(kind, ops), times.seconds(kind, np.asfortranarray(ops))):
            wanted = [[d.seconds(kind, n) for d, n in zip(mixed, row, strict=True)] for row in ops]
            assert found.tolist() == wanted


@pytest.mark.parametrize("mode", ["ws", "1d", "2d"])
@pytest.mark.parametrize("seed", range(4))
def test_messages_that_take_next_to_nothing_are_priced_as_those_that_take_nothing(
    mode: Mode, seed: int
) -> None:
    """What takes nothing is left out of the reckoning."""
    devices, links = cluster(seed, 5, pairs=True)
    least = MessageOverhead(1e-15, 1e-21)
    brief = {name: replace(device, send=least, take=least) for name, device in devices.items()}
    made = partition(SPECS["bert"], mode, 5, 9, seed)
    none_s, least_s = (
        seconds(p, to_plans(p, made))
        for p in (pose(SPECS["bert"], 9, some, links, made.primary) for some in (devices, brief))
    )
    assert none_s[0] == pytest.approx(least_s[0], rel=1e-9)


def test_more_rows_than_the_model_reads_are_refused() -> None:
    """A plan that cannot run must not be made."""
    with pytest.raises(InputError, match="1 to 512"):
        layer_sizes(SPECS["bert"], 513)
