"""A simulated node tries another endpoint where a real one does (serve/answers/dispatch.py)."""

from collections.abc import Collection, Sequence
from random import Random

import numpy as np

from pliant.ir.link import Link
from pliant.route.choice.choose_endpoint import LOCAL, Choice
from pliant.route.choice.request_terms import Terms
from pliant.route.curve_advert import Trail
from pliant.route.router import Router
from pliant.route.router_settings import RouterSettings
from research.deadline_world import RequestKind, Steps
from research.fleet_policies import routed
from research.fleet_world import ElasticLevel, Fleet, FleetRequests, MachineSpec, NodeSpec
from research.simulate_fleet import simulate_fleet

SETTINGS = RouterSettings(48)
LEVELS = (ElasticLevel(0.9, 1.0),)
ALWAYS = Steps((0.0,), (1.0,))


def one_node(
    local_s: float, cluster_s: float, slower: Steps = ALWAYS, gateway: MachineSpec | None = None
) -> tuple[NodeSpec, ...]:
    """A device and its cluster, below a gateway if there is one, 20 ms away."""
    machines = (MachineSpec(LOCAL, local_s, LEVELS), MachineSpec("cluster", cluster_s, LEVELS, slower))
    if gateway is None:
        return (NodeSpec("device", 0, machines),)
    return (
        NodeSpec("device", 0, machines, ((1, Link(0.02, 1e9)),)),
        NodeSpec("gateway", 1, (gateway,)),
    )


def requests_at(times: Sequence[float], deadlines_s: Sequence[float]) -> FleetRequests:
    """Each with its own deadline, of usual length and work."""
    m = len(times)
    kinds = tuple(RequestKind(1.0, deadline_s, 0.9) for deadline_s in deadlines_s)
    ones = np.ones(m)
    return FleetRequests(
        kinds, np.array(times), np.zeros(m, int), np.full(m, 24), np.arange(m), ones, ones.copy()
    )


def cluster_first(
    router: Router,
    n: int,
    now_s: float,
    exclude: Collection[str],
    trail: Trail,
    terms: Terms,
    random: Random,
    is_new: bool,
) -> Choice:
    """The cluster, even if it is late, then pliant's policy; this device for deadlines above 5 s."""
    name = LOCAL if terms.deadline_s is not None and terms.deadline_s > 5.0 else "cluster"
    if name not in exclude:
        ways = [way.name for way in router.ways_here if way.name != name]
        here = Trail(trail.path, 0)
        late = Terms(terms.deadline_s, terms.accuracy_floor, best_effort=True)
        return routed(router, n, now_s, [*exclude, *ways], here, late, random, is_new)
    return routed(router, n, now_s, exclude, trail, terms, random, is_new)


def test_a_request_that_a_local_endpoint_refuses_is_answered_by_the_next_best() -> None:
    """A real node notes the refusal and chooses again; so its simulation must not count it as refused."""
    fleet = Fleet(one_node(0.05, 5.0), requests_at([5.0], [0.5]))
    run = simulate_fleet(fleet, SETTINGS, cluster_first)
    assert run.endpoint == (LOCAL,)
    assert run.seconds[0] < 0.5


def test_a_request_that_all_endpoints_refuse_ends() -> None:
    """Each endpoint refuses once: a second round would find the same queues."""
    fleet = Fleet(one_node(4.0, 5.0), requests_at([5.0], [0.5]))
    run = simulate_fleet(fleet, SETTINGS, cluster_first)
    assert run.by.tolist() == [-1]
    assert np.isinf(run.seconds[0])


def test_a_hedged_request_waits_for_its_first_answer_if_the_second_fails() -> None:
    """The cluster takes three times as long as measured, and the gateway is gone: its answer is in time."""
    gone = Steps((0.0, 4.99), (1.0, float("inf")))
    slower = Steps((0.0, 4.5), (1.0, 3.0))
    nodes = one_node(10.0, 0.05, slower, MachineSpec(LOCAL, 0.04, LEVELS, gone))
    run = simulate_fleet(Fleet(nodes, requests_at([5.0], [0.16])), SETTINGS)
    assert run.n_doubled == 1
    assert run.endpoint == ("cluster",)
    assert 0.149 < run.seconds[0] < 0.151


def test_a_third_endpoint_answers_if_a_planned_hedge_is_refused() -> None:
    """The device is busy when its hedge begins; the gateway is idle, and the cluster ten times too slow."""
    slower = Steps((0.0, 4.5), (1.0, 10.0))
    nodes = one_node(0.3, 0.1, slower, MachineSpec(LOCAL, 0.05, LEVELS))
    fleet = Fleet(nodes, requests_at([5.0, 5.2], [0.7, 10.0]))
    run = simulate_fleet(fleet, SETTINGS, cluster_first)
    by, seconds = (dict(zip(run.number.tolist(), one.tolist(), strict=True)) for one in (run.by, run.seconds))
    assert by == {0: 1, 1: 0}
    assert seconds[0] < 0.7
