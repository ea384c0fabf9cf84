"""What run time shows of links, beside what was predicted."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.cluster.control.messages import Note
from pliant.cluster.lead.predict import (
    MOST_AT_ONCE,
    Prediction,
    is_search_futile,
    link_ratios,
    predict,
    repredict,
)
from pliant.cluster.net.activation_coding import Coding
from pliant.cluster.watch.adapt import Topology, is_worthwhile
from pliant.ir.capability import Capability, Interface, Links, refresh_links
from pliant.ir.partition import Partition, Share
from pliant.plan.partition.initial_plans import all_plans
from pliant.plan.partition.partition_cost import seconds, to_partition
from pliant.plan.partition.problem import pose
from tests.plan.clusters import cluster, curved, handing
from tests.plan.splits import bert, partition

SPEC, TOKENS = bert(), 16
BANDWIDTH = 1e8


def solved() -> Prediction:
    half = SPEC.n_heads // 2, TOKENS // 2
    partition = Partition("ws", "p", (Share("p", *half), Share("a", SPEC.n_heads - half[0], half[1])), TOKENS)
    device = Capability(1.0, 1e9, 1 << 30)
    links = Links({name: Interface(BANDWIDTH, BANDWIDTH) for name in "pa"})
    return predict(SPEC, partition, Topology({"p": device, "a": device}, links))


def settled(plan: Prediction, links: Links, slower: float) -> Links:
    """After many layers in which every byte took so many times longer than planned."""
    pairs = (("p", "a"), ("a", "p"))
    notes = {
        dst: Note(0.0, 0, {}, {src: (1000, 1000 * plan.byte_s[src, dst] * slower)}) for src, dst in pairs
    }
    for _ in range(60):
        links = refresh_links(links, link_ratios(plan, links, notes, {}))
    return links


@pytest.mark.parametrize("slower", [1.0, 3.0, 40.0])
def test_a_link_that_stays_slow_is_found_and_not_overshot(slower: float) -> None:
    """Each layer's times are held against the links as known by now: held against the plan's, the same
    slowness would count again in every layer, without end."""
    plan = solved()
    slow = settled(plan, plan.topology.links, slower)
    again = settled(plan, slow, 1.0)
    for src, dst in (("p", "a"), ("a", "p")):
        assert slow.link(src, dst).bandwidth_Bps == pytest.approx(BANDWIDTH / slower, rel=0.01)
        assert again.link(src, dst).bandwidth_Bps == pytest.approx(BANDWIDTH, rel=0.01)


def test_one_stall_is_no_slow_link() -> None:
    """A core that was taken away for a moment must not cost the plan its workers."""
    plan = solved()
    notes = {"p": Note(0.0, 0, {}, {"a": (1000, 1e4 * plan.byte_s["a", "p"] * 1000)})}
    assert link_ratios(plan, plan.topology.links, notes, {}) == {("a", "p"): MOST_AT_ONCE}


def test_clocks_that_differ_are_set_off() -> None:
    """A worker's clock starts when its machine does."""
    plan = solved()
    took_s = 1000 * plan.byte_s["a", "p"]
    notes = {"p": Note(0.0, 0, {}, {"a": (1000, took_s - 500.0)})}
    found = link_ratios(plan, plan.topology.links, notes, {"a": 500.0})
    assert found["a", "p"] == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("lead_s", [500.0, -500.0])
def test_clocks_that_differ_are_set_off_in_every_message(lead_s: float) -> None:
    """The time of a segment's messages is a sum, and the clocks differ in each of its terms."""
    plan = solved()
    sums = {"a": 1000 * plan.byte_s["a", "p"] - 2 * lead_s}, {"p": 1000 * plan.byte_s["p", "a"] + 2 * lead_s}
    notes = {
        dst: Note(0.0, 0, {}, {src: (1000, seconds) for src, seconds in one.items()}, dict.fromkeys(one, 2))
        for dst, one in zip("pa", sums, strict=True)
    }
    found = link_ratios(plan, plan.topology.links, notes, {"a": lead_s})
    assert found == pytest.approx({("a", "p"): 1.0, ("p", "a"): 1.0}, rel=1e-3)


def test_who_is_gone_says_nothing_about_links() -> None:
    """Its last note may still lie here."""
    plan = solved()
    links = Links({"p": Interface(BANDWIDTH, BANDWIDTH)})
    assert link_ratios(plan, links, {"p": Note(0.0, 0, {}, {"a": (1000, 1.0)})}, {}) == {}


def quick_partitions(topology: Topology, primary: str, tokens: int) -> Iterator[Partition]:
    """The quickest of all that have no grid, by the closed form, and some that have one."""
    p = pose(SMALL, tokens, topology.capabilities, topology.links, primary)
    for mode in ("ws", "1d"):
        plans = all_plans(p, mode)
        yield from (to_partition(p, plans.take(i)) for i in np.argsort(seconds(p, plans))[:12])
    for seed in range(4 if p.n > 1 else 0):
        yield replace(partition(SMALL, "2d", p.n, tokens, seed), primary=primary)


SMALL = bert(heads=2, ffn=3, n_layers=3)


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 2**20),
    st.integers(1, 3),
    st.sampled_from(["plain", "curved", "handing"]),
    st.sampled_from(["fp32", "fp16", "int8"]),
    st.floats(0.3, 3.0),
    st.booleans(),
)
def test_no_search_that_is_left_out_would_have_found_a_better_plan(
    seed: int, n: int, kind: str, coding: Coding, slower: float, is_best: bool
) -> None:
    """The quickest of all partitions are priced, as a search would price them, and none pays.

    The plan that runs is the quickest, or any, by a picture in which one device was another time as quick.
    """
    tokens, primary, n_layers = 2 if n > 2 else 3, f"d{seed % n}", 12
    devices, links = cluster(seed, n, pairs=seed % 2 == 0)
    if kind == "curved":
        devices = {name: curved(device) for name, device in devices.items()}
    elif kind == "handing":
        devices = handing(devices, seed)
    now = Topology(devices, links)
    first = devices["d0"]
    then = Topology(devices | {"d0": replace(first, frequency_Hz=first.frequency_Hz * slower)}, links)
    plans = list(quick_partitions(now, primary, tokens))
    some = plans if is_best else [plans[seed % len(plans)]]
    priced = [predict(SMALL, one, then, coding) for one in some]
    current = min(priced, key=lambda one: one.layer_s)
    found = repredict(current, now)
    if is_search_futile(SMALL, found, n_layers, coding):
        now_s = predict(SMALL, current.partition, now, coding).layer_s
        quickest_s = min(predict(SMALL, one, now, coding).layer_s for one in plans)
        assert not is_worthwhile(now_s, quickest_s, n_layers, 0.0, 0.0)
        assert (found.layer_s, found.seconds) == (now_s, predict(SMALL, found.partition, now, coding).seconds)


@pytest.mark.parametrize(("frequency_Hz", "wanted"), [(2e7, True), (2e9, False)])
def test_a_slow_device_that_joins_is_not_searched_for(frequency_Hz: float, wanted: bool) -> None:
    """The plan runs on one device; a second of a fiftieth of its speed cannot save a tenth of a layer."""
    spec = bert(hidden=64, heads=4, ffn=256, n_layers=4)
    links = Links({name: Interface(1e8, 1e8) for name in "pa"})
    devices = {"p": Capability(1.0, 1e9, 1 << 30), "a": Capability(1.0, frequency_Hz, 1 << 30)}
    shares = (Share("p", spec.n_heads, TOKENS), Share("a"))
    home = predict(spec, Partition("ws", "p", shares, TOKENS), Topology(devices, links))
    assert is_search_futile(spec, home, 100) is wanted


def test_a_lone_device_never_searches() -> None:
    """It has everything already, however its speed drifts; of many devices nothing is said."""
    device = Capability(1.0, 1e9, 1 << 30)
    devices = {f"d{i}": device for i in range(6)}
    links = Links({name: Interface(1e8, 1e8) for name in devices})
    alone = Partition("ws", "d0", (Share("d0", SPEC.n_heads, TOKENS),), TOKENS)
    home = predict(SPEC, alone, Topology({"d0": device}, links))
    for factor in np.linspace(0.5, 2.0, 4):
        drifted = {"d0": replace(device, frequency_Hz=device.frequency_Hz * factor)}
        assert is_search_futile(SPEC, repredict(home, Topology(drifted, links)), 100)
    assert not is_search_futile(SPEC, repredict(home, Topology(devices, links)), 100)
