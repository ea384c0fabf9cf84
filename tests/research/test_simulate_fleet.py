"""Fleets of nodes under a virtual clock: repeatable, conserving, and right where the answer is known."""

from collections import Counter
from itertools import product
from math import inf
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from pliant.ir.link import Link
from pliant.route.choice.choose_endpoint import LOCAL
from pliant.route.router_settings import RouterSettings
from research.deadline_world import RequestKind, Steps
from research.fleet_policies import POLICIES
from research.fleet_run import FleetRun
from research.fleet_world import (
    ElasticLevel,
    Fleet,
    FleetRequests,
    FleetWorld,
    MachineSpec,
    NodeSpec,
    draw_fleet,
    part_of_length,
    read_fleet,
)
from research.simulate_fleet import simulate_fleet

FOLDER = Path(__file__).parents[2] / "bench" / "worlds"
SETTINGS = RouterSettings(48)
LEVELS = (ElasticLevel(0.8, 0.2), ElasticLevel(0.9, 1.0))
N = 24


def tree() -> FleetWorld:
    """The committed tree with fewer nodes, and as many requests a device; its cloud is slower for that."""
    world = read_fleet(FOLDER / "tree.toml")
    factor = 48 / world.tiers[0].count
    counts = (48, 2, 1)
    tiers = [replace(tier, count=n) for tier, n in zip(world.tiers, counts, strict=True)]
    tiers[-1] = replace(tiers[-1], whole_s=tiers[-1].whole_s / factor)
    requests = replace(world.requests, rate=world.requests.rate * factor)
    return replace(world, tiers=tuple(tiers), requests=requests)


def requests_at(
    times: list[float],
    kinds: tuple[RequestKind, ...],
    kind: list[int] | None = None,
    source: list[int] | None = None,
) -> FleetRequests:
    """Of usual length and work."""
    m = len(times)
    return FleetRequests(
        kinds,
        np.array(times),
        np.array(source or [0] * m),
        np.full(m, N),
        np.array(kind or [0] * m),
        np.ones(m),
        np.ones(m),
    )


def two_nodes(
    here_s: float, above_s: float, rtt_s: float, slower_above: Steps | None = None
) -> tuple[NodeSpec, ...]:
    above = MachineSpec(LOCAL, above_s, LEVELS, slower_above or Steps((0.0,), (1.0,)))
    return (
        NodeSpec("device", 0, (MachineSpec(LOCAL, here_s, LEVELS),), ((1, Link(rtt_s, 1e9)),)),
        NodeSpec("gateway", 1, (above,)),
    )


def attained(fleet: Fleet, run: FleetRun) -> np.ndarray:
    kinds = [fleet.requests.kinds[k] for k in fleet.requests.kind[run.number]]
    in_time = run.seconds <= np.array([kind.deadline_s for kind in kinds])
    return np.asarray(in_time & (run.accuracy >= np.array([kind.floor for kind in kinds])))


@pytest.mark.parametrize("policy", POLICIES)
def test_each_request_is_answered_once_or_refused_and_a_run_repeats(policy: str) -> None:
    """With nodes that die and return, bursts, hedges and second tries."""
    world = tree()
    fleet = draw_fleet(world, 2500, seed=5)
    first, again = (simulate_fleet(fleet, SETTINGS, POLICIES[policy], seed=9) for _ in range(2))
    assert sorted(first.number.tolist()) == list(range(2500))
    for field in ("number", "at_s", "seconds", "accuracy", "by"):
        assert np.array_equal(getattr(first, field), getattr(again, field)), field
    is_answered = first.by >= 0
    assert np.isfinite(first.seconds[is_answered]).all()
    assert np.isinf(first.seconds[~is_answered]).all()
    floors = np.array([kind.floor for kind in world.requests.kinds])[fleet.requests.kind[first.number]]
    assert (first.accuracy[is_answered] >= floors[is_answered]).all()


@pytest.mark.parametrize("has_gateway", [False, True])
def test_all_work_of_a_hedged_fleet_is_used_or_unused(has_gateway: bool) -> None:
    """The work of the cloud was not counted as unused if the gateway between them had been dropped."""
    level, slow_s = (ElasticLevel(0.9, 1.0),), 34.9
    slower = Steps((0.0, slow_s), (1.0, 8.0))
    cloud = NodeSpec("cloud", 2, (MachineSpec(LOCAL, 0.06, level, slower),))
    link = Link(0.01, 1e9)
    device = NodeSpec("device", 0, (MachineSpec(LOCAL, 0.2, level),), ((1, link),))
    gateway = NodeSpec("gateway", 1, (MachineSpec(LOCAL, 9.0, level),), ((2, link),))
    nodes = (device, gateway, cloud) if has_gateway else (device, cloud)
    times = [20.0 + 1.5 * i for i in range(40)]  # the device has heard of the cloud by then
    fleet = Fleet(nodes, requests_at(times, (RequestKind(1.0, 0.6, 0.85),)))
    run = simulate_fleet(fleet, RouterSettings(48, probe_after_s=None, ping_after_s=2.0))
    assert (run.by >= 0).all()
    assert run.by[-1] == 0, "work upstream has ended"
    used_s = np.where(run.by == 0, 0.2, np.where(run.at_s > slow_s, 0.06 * 8.0, 0.06)).sum()
    assert run.unused_s >= 0.06 * 8.0
    assert run.work_s == pytest.approx(used_s + run.unused_s)


def test_requests_go_by_their_own_ancestors_alone() -> None:
    """Of a tree: itself, its gateway, the cloud."""
    fleet = draw_fleet(tree(), 1500, seed=2)
    run = simulate_fleet(fleet, SETTINGS, seed=1)
    for number, by in zip(run.number.tolist(), run.by.tolist(), strict=True):
        if by >= 0:
            source = int(fleet.requests.source[number])
            gateway, cloud = (to for to, _ in fleet.nodes[source].ups)
            assert by in (source, gateway, cloud)
    assert len(Counter(fleet.nodes[by].tier for by in run.by.tolist() if by >= 0)) == 3


def test_an_idle_fleet_gives_each_request_the_best_answer_there_is() -> None:
    """Brute force over endpoint and level, for requests that never meet: the most accurate in time.

    The levels differ by more than the resolution.
    """
    kinds = tuple(
        RequestKind(1 / 12, deadline_s, floor)
        for deadline_s, floor in product((0.03, 0.06, 0.1, 0.2, 0.5, 2.0), (0.0, 0.85))
    )
    order = [i % len(kinds) for i in range(240)]
    for here_s, above_s, rtt_s in ((0.3, 0.02, 0.05), (0.05, 0.04, 0.02), (1.0, 0.3, 0.01)):
        times = [5.0 + 3.0 * i for i in range(len(order))]
        fleet = Fleet(two_nodes(here_s, above_s, rtt_s), requests_at(times, kinds, order))
        run = simulate_fleet(fleet, SETTINGS)
        for number, seconds, accuracy in zip(run.number, run.seconds, run.accuracy, strict=True):
            kind = kinds[order[number]]
            ways = [(level.accuracy, here_s * level.part) for level in LEVELS]
            ways += [(level.accuracy, above_s * level.part + rtt_s) for level in LEVELS]
            allowed = [(a, s) for a, s in ways if a >= kind.floor]
            surely = [a for a, s in allowed if 1.3 * s <= kind.deadline_s]
            best = max((a for a, s in allowed if s <= kind.deadline_s), default=None)
            if best is None:
                assert np.isinf(seconds)
            elif surely:
                assert seconds <= kind.deadline_s
                assert max(surely) <= accuracy <= best
            assert np.isinf(seconds) or accuracy >= kind.floor
    assert part_of_length(N) == 1.0


@pytest.mark.parametrize("policy", POLICIES)
def test_what_an_upstream_that_dies_had_is_answered_elsewhere_in_time(policy: str) -> None:
    """A device that could answer itself; the gateway is gone from 20 to 40 s, and used again afterwards."""
    gone = Steps((0.0, 20.0, 40.0), (1.0, inf, 1.0))
    kinds = (RequestKind(1.0, 0.6, 0.85),)
    times = [5.0 + 0.4 * i for i in range(300)]
    fleet = Fleet(two_nodes(0.3, 0.05, 0.02, gone), requests_at(times, kinds))
    run = simulate_fleet(fleet, SETTINGS, POLICIES[policy])
    assert attained(fleet, run).mean() > 0.97
    during = (run.at_s > 20.0) & (run.at_s < 39.0)
    assert (run.by[during] == 0).all()
    if policy == "pliant":
        assert (run.by[run.at_s > 50.0] == 1).mean() > 0.9


def test_load_beyond_all_capacity_is_refused_and_what_is_answered_is_in_time() -> None:
    """Twice as many as both can answer: no queue grows, and half is answered."""
    kinds = (RequestKind(1.0, 0.5, 0.85),)
    times = [2.0 + i / 60.0 for i in range(1800)]
    fleet = Fleet(two_nodes(0.1, 0.05, 0.02), requests_at(times, kinds))
    run = simulate_fleet(fleet, SETTINGS)
    kept = attained(fleet, run)
    assert 0.35 < kept.mean() <= 0.52
    assert (run.by >= 0).mean() - kept.mean() < 0.05


def test_clients_in_a_closed_loop_wait_for_their_answers() -> None:
    """No more requests are under way than there are clients."""
    fleet = Fleet(two_nodes(0.1, 0.05, 0.02), requests_at([0.0] * 50, (RequestKind(1.0, 1.0, 0.0),)))
    run = simulate_fleet(fleet, SETTINGS, clients=(3, 30.0))
    ends = run.at_s + np.where(np.isfinite(run.seconds), run.seconds, 0.0)
    for at_s in np.linspace(1.0, 29.0, 57):
        assert ((run.at_s <= at_s) & (ends > at_s)).sum() <= 3
    assert len(run.number) > 200
