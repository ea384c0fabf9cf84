"""A world of deadlines as a fleet: its requests, machines and link are those of the scenario."""

from math import inf

import numpy as np
import pytest

from pliant.ir.curve import Curve
from pliant.ir.link import Link
from pliant.route.router_settings import RouterSettings
from research.deadline_fleet import DEVICE, GATEWAY, scenario_fleet
from research.deadline_oracle import Level, OracleInputs
from research.deadline_world import Course, Scenario, Steps, TimedRequest
from research.fleet_policies import POLICIES
from research.series import LinkSeries
from research.simulate_fleet import simulate_fleet

KNOWN = OracleInputs(
    (Level(0.8, Curve(((0, 0.25),))), Level(0.9, Curve(((0, 1.0),)))),
    member_part=0.5,
    primary_part=0.04,
    exchange_s=0.01,
    hop_s=0.02,
)
UP = Link(0.1, 1e6)


def _scenario(
    *,
    links: LinkSeries = LinkSeries((0.0,), (UP,)),  # noqa: B008 - frozen
    local: Steps = Steps((0.0,), (1.0,)),  # noqa: B008 - frozen
    worker: Steps = Steps((0.0,), (1.0,)),  # noqa: B008 - frozen
    every_s: float = 0.5,
    deadline_s: float = 0.3,
    floor: float = 0.8,
) -> Scenario:
    requests = tuple(TimedRequest(i, 1.0 + every_s * i, 24, 0, deadline_s, floor) for i in range(100))
    course = Course(0.1, worker)
    return Scenario(
        "made", 1, 60.0, 1.0, requests, Course(0.4, local), Course(0.05, Steps((0.0,), (1.0,))),
        {"a": course}, links, (),
    )  # fmt: skip


def _kept(scenario: Scenario, policy: str = "pliant") -> tuple[np.ndarray, np.ndarray]:
    """Which of the scenario's requests were in time and at their floor, and the node that answered."""
    fleet = scenario_fleet(scenario, KNOWN, (1e-6, 1e-6))
    made = simulate_fleet(fleet, RouterSettings(64), POLICIES[policy], 1)
    order = np.argsort(made.number)
    wanted = scenario.requests[0]
    kept = (made.seconds <= wanted.deadline_s) & (made.accuracy >= wanted.floor)
    return kept[order], made.by[order]


def test_machines_take_what_the_oracle_is_told_of_them() -> None:
    slow = Steps((0.0, 10.0), (1.0, 3.0))
    fleet = scenario_fleet(_scenario(local=slow, worker=Steps((0.0, 20.0), (1.0, inf))), KNOWN)
    local, cluster = fleet.nodes[DEVICE].machines
    assert [local.whole_s * local.slower.at(t) for t in (0.0, 10.0)] == pytest.approx([0.4, 1.2])
    # worker: half of 0.1 s, the primary's ends 4 % of what this device takes, and exchanges; else this device
    expected = [0.05 + 0.016 + 0.01, 0.05 + 0.048 + 0.01, 0.5 * 1.2]
    assert [cluster.whole_s * cluster.slower.at(t) for t in (0.0, 10.0, 20.0)] == pytest.approx(expected)
    assert fleet.nodes[GATEWAY].machines[0].whole_s == pytest.approx(0.05)
    ((_, link),) = fleet.nodes[DEVICE].ups
    assert link.latency_s == pytest.approx(UP.latency_s + KNOWN.hop_s)


def test_requests_that_every_way_keeps_are_all_kept() -> None:
    kept, _ = _kept(_scenario())
    assert kept.all()


def test_a_cut_link_costs_what_was_under_way_and_the_others_go_elsewhere() -> None:
    """The gateway alone reaches this floor in time, but for the cluster; the cable is pulled for 10 s."""
    links = LinkSeries((0.0, 15.0, 25.0), (UP, None, UP))
    kept, by = _kept(_scenario(links=links, floor=0.9, worker=Steps((0.0,), (inf,)), deadline_s=0.19))
    at_s = 1.0 + 0.5 * np.arange(100)
    out = (at_s > 15.0) & (at_s < 25.0)
    assert not kept[out].any(), "nothing else reaches the floor in time"
    back = (at_s < 15.0) | (at_s > 30.0)
    assert kept[back].mean() > 0.95
    assert (by[back & kept] == GATEWAY).all()


def test_an_endpoint_that_recovers_is_found_while_requests_are_refused() -> None:
    """Nothing else answers in time: probes alone can show it. Half a minute was lost."""
    slow = Steps((0.0, 10.0, 20.0), (1.0, 8.0, 1.0))
    scenario = _scenario(
        local=slow, worker=Steps((0.0,), (inf,)), links=LinkSeries((0.0, 0.5), (UP, None)), deadline_s=0.15
    )
    kept, _ = _kept(scenario)
    at_s = 1.0 + 0.5 * np.arange(100)
    assert kept[at_s < 10.0].mean() > 0.9
    assert kept[at_s > 24.0].mean() > 0.9


def test_a_request_behind_one_that_hangs_leaves_for_the_next_best() -> None:
    """The cluster hangs at 10 s with requests behind it; the gateway has time for them."""
    scenario = _scenario(worker=Steps((0.0, 10.0), (1.0, 40.0)), every_s=0.07, deadline_s=0.4, floor=0.9)
    kept, _ = _kept(scenario)
    assert kept.mean() > 0.9
