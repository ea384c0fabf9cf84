"""What a cluster runs of what a planner finds."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from pliant.cluster.lead.choose_partition import ModeOption, make_chooser
from pliant.cluster.lead.predict import predict
from pliant.cluster.net.activation_coding import Coding, scale_links
from pliant.cluster.watch.adapt import Topology
from pliant.errors import BudgetError, InputError
from pliant.ir.capability import Capability, Interface, Links
from pliant.ir.partition import Partition, Share
from pliant.plan.split.activation_bytes import memory_bytes, whole_memory_bytes
from tests.plan.clusters import cluster
from tests.plan.splits import bert

SPEC, TOKENS = bert(), 16
DEVICE = Capability(1.0, 1e9, 1 << 30)


def participants(bandwidth_Bps: float) -> tuple[str, ...]:
    links = Links({name: Interface(bandwidth_Bps, bandwidth_Bps) for name in "ab"})
    return make_chooser()(SPEC, TOKENS, {"a": DEVICE, "b": DEVICE}, links, "a").participants


def test_a_split_that_promises_little_is_not_run() -> None:
    """A prediction is off by more than a few percent, and a device alone has nobody to wait for."""
    assert participants(1e9) == ("a", "b")
    assert participants(1e3) == ("a",)


def test_one_device_that_has_no_memory_for_all_does_not_forbid_a_split() -> None:
    """However little it saves: nobody could run the model alone."""
    small = Capability(1.0, 1e9, 9 * whole_memory_bytes(SPEC, TOKENS) // 10)
    links = Links({name: Interface(1e5, 1e5) for name in "ab"})
    assert make_chooser()(SPEC, TOKENS, {"a": small, "b": small}, links, "a").participants == ("a", "b")


def test_coedges_shares_are_weight_stationary() -> None:
    """As the paper runs it (5.3)."""
    links = Links({name: Interface(1e9, 1e9) for name in "ab"})
    partition = make_chooser(shares="coedge")(SPEC, TOKENS, {"a": DEVICE, "b": DEVICE}, links, "a")
    assert partition.mode == "ws"
    assert partition.share("a").rows == partition.share("b").rows == TOKENS // 2
    with pytest.raises(InputError, match="weight-stationary"):
        make_chooser("1d", "coedge")


def test_a_mode_asked_for_by_name_is_solved_too() -> None:
    """The quicker of two devices takes more of the model in every mode."""
    links = Links({name: Interface(1e9, 1e9) for name in "ab"})
    devices = {"a": Capability(4.0, 1e9, 1 << 30), "b": DEVICE}
    for mode in ("ws", "1d", "2d"):
        partition = make_chooser(mode)(SPEC, TOKENS, devices, links, "a")
        assert partition.mode == mode
        assert partition.share("b").rows > partition.share("a").rows


@pytest.mark.parametrize("coding", ["fp16", "int8"])
def test_shares_are_planned_with_the_bytes_that_travel(coding: Coding) -> None:
    """Where float32 does not pay for a second device, half or a quarter of it may; it is no worse plan."""
    gained = []
    for bandwidth_Bps in (1e6, 1e7, 3e7, 5e7, 7e7, 1e8, 1e9):
        topology = Topology(
            dict.fromkeys("ab", DEVICE), Links(dict.fromkeys("ab", Interface(bandwidth_Bps, bandwidth_Bps)))
        )
        plans = [
            make_chooser()(SPEC, TOKENS, topology.capabilities, links, "a")
            for links in (topology.links, scale_links(topology.links, coding))
        ]
        plain_s, coded_s = (predict(SPEC, plan, topology, coding).seconds for plan in plans)
        gained.append(plain_s / coded_s)
        assert len(plans[1].participants) >= len(plans[0].participants)
    assert min(gained) > 0.97
    assert max(gained) > 1.1
    assert scale_links(topology.links, "fp32") is topology.links


FEW_HEADS = bert(12, 2, 8)
"""Small enough for all its splits to be listed."""


def all_splits(names: list[str], tokens: int) -> Iterator[Partition]:
    """Every partition in the modes without a grid."""

    def ways(total: int) -> list[tuple[int, ...]]:
        each = (range(total + 1) for _ in names[1:])
        return [(*some, total - sum(some)) for some in product(*each) if sum(some) <= total]

    for heads, rows in product(ways(FEW_HEADS.n_heads), ways(tokens)):
        yield Partition("ws", "d0", tuple(map(Share, names, heads, rows)), tokens)
        for columns in ways(FEW_HEADS.ffn):
            yield Partition("1d", "d0", tuple(map(Share, names, heads, rows, columns)), tokens)


@pytest.mark.parametrize("seed", range(12))
def test_a_plan_fits_with_its_activations_and_is_found_if_one_fits_easily(seed: int) -> None:
    """Every split of two devices is weighed: what is chosen fits, and nothing is refused that fits with a
    tenth to spare.
    """
    rng = np.random.default_rng(seed)
    tokens = int(rng.integers(2, 6))
    devices, links = cluster(seed, 2)
    whole = whole_memory_bytes(FEW_HEADS, tokens)
    devices = {n: replace(d, free_bytes=int(whole * rng.uniform(0.4, 1.1))) for n, d in devices.items()}

    def fill(split: Partition) -> float:
        return max(n / devices[name].free_bytes for name, n in memory_bytes(FEW_HEADS, split).items())

    least = min(map(fill, all_splits(list(devices), tokens)))
    try:
        assert fill(make_chooser()(FEW_HEADS, tokens, devices, links, "d0")) <= 1.0
    except BudgetError:
        assert least > 0.9
    else:
        assert least <= 1.0


@pytest.mark.parametrize("mode", ["auto", "ws", "1d", "2d"])
def test_memory_for_the_activations_of_long_inputs_is_left_free(mode: ModeOption) -> None:
    """Of three devices with memory for short inputs, none is given more than it holds at any length."""
    devices, links = cluster(3, 3)
    spec = bert(48, 4, 96, 3)
    free = memory_bytes(spec, make_chooser(mode)(spec, 24, devices, links, "d0"))
    devices = {name: replace(device, free_bytes=11 * free[name] // 10) for name, device in devices.items()}
    for tokens in (8, 24):
        need = memory_bytes(spec, make_chooser(mode)(spec, tokens, devices, links, "d0"))
        assert all(need[name] <= device.free_bytes for name, device in devices.items())
    with pytest.raises(BudgetError, match="activations of 400 rows"):
        make_chooser(mode)(spec, 400, devices, links, "d0")
