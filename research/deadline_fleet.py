"""Convert a scenario of a deadline world to a fleet of two nodes, for the simulator.

One node is this device with its cluster, the other the gateway; the link between them follows the series.
Levels, the time of a cluster's exchanges and the time of a hop are those of the oracle (`OracleInputs`): the
simulation models the same system that is measured on real processes, without the machine's noise.
"""

import numpy as np

from pliant.ir.link import Link
from pliant.route.choice.choose_endpoint import CLUSTER, LOCAL
from research.deadline_oracle import OracleInputs, together_s
from research.deadline_world import Course, RequestKind, Scenario, Steps
from research.fleet_world import (
    USUAL_WORDS,
    ElasticLevel,
    Fleet,
    FleetRequests,
    LinkChange,
    MachineSpec,
    NodeSpec,
    log_normal,
)

DEVICE, GATEWAY = 0, 1
_OTHERS = (30.0, 0.0)
"""Deadline and accuracy floor of other clients' requests to the gateway: they wait, and accept any
accuracy.
"""


def scenario_fleet(
    scenario: Scenario, known: OracleInputs, spreads: tuple[float, float] = (0.05, 0.05), seed: int = 0
) -> Fleet:
    """Two nodes, `DEVICE` and `GATEWAY`; works and ways vary by `spreads` (log-normal), drawn by `seed`.

    The scenario's requests arrive at `DEVICE`. Times of the fleet are seconds of the clock.
    """
    usual = known.levels[-1].part.at(USUAL_WORDS)
    parts = [(level.accuracy, level.part.at(USUAL_WORDS) / usual) for level in known.levels]
    levels = tuple(ElasticLevel(accuracy, min(part, 1.0)) for accuracy, part in parts)

    def machine(course: Course) -> MachineSpec:
        return MachineSpec(LOCAL, course.whole_s * usual, levels, _by_clock(course.slower, scenario.speed))

    moments = zip(scenario.link.starts, scenario.link.links, strict=True)
    changes = tuple(
        LinkChange(at_s / scenario.speed, DEVICE, GATEWAY, None if link is None else _hop(link, known))
        for at_s, link in moments
    )
    first = next(change.link for change in changes if change.link is not None)
    here = (machine(scenario.local), _cluster(scenario, known))
    nodes = (
        NodeSpec("device", 0, here, ((GATEWAY, first),)),
        NodeSpec("gateway", 1, (machine(scenario.gateway),)),
    )
    return Fleet(nodes, _requests(scenario, spreads, seed), changes)


def _hop(link: Link, known: OracleInputs) -> Link:
    return Link(link.latency_s + known.hop_s, link.bandwidth_Bps)


def _cluster(scenario: Scenario, known: OracleInputs) -> MachineSpec:
    """The cluster as a machine: its time is that of its fastest device at each moment; levels are those at
    the start.
    """
    courses = (scenario.local, *scenario.workers.values())
    starts = sorted({start for course in courses for start in course.slower.starts})
    seconds = [together_s(scenario, known, USUAL_WORDS, at_s) for at_s in starts]
    whole_s = together_s(scenario, known, USUAL_WORDS, starts[0])
    levels = tuple(
        ElasticLevel(
            level.accuracy, min(together_s(scenario, known, USUAL_WORDS, starts[0], level) / whole_s, 1.0)
        )
        for level in known.together_levels
    )
    slower = Steps(tuple(starts), tuple(s / seconds[0] for s in seconds))
    return MachineSpec(CLUSTER, seconds[0], levels, _by_clock(slower, scenario.speed))


def _by_clock(steps: Steps, speed: float) -> Steps:
    return Steps(tuple(at_s / speed for at_s in steps.starts), steps.values)


def _requests(scenario: Scenario, spreads: tuple[float, float], seed: int) -> FleetRequests:
    """The requests in order of arrival; the kinds are the distinct terms."""
    rows = [(r.at_s, DEVICE, r.n_words, (r.deadline_s, r.floor)) for r in scenario.requests]
    rows += [(at_s, GATEWAY, USUAL_WORDS, _OTHERS) for at_s in scenario.others_s]
    rows.sort(key=lambda row: row[0])
    terms = sorted({row[3] for row in rows})
    kinds = tuple(RequestKind(1.0 / len(terms), *one) for one in terms)
    random = np.random.default_rng(seed)
    work, way = (log_normal(random, spread, len(rows)) for spread in spreads)
    return FleetRequests(
        kinds,
        np.array([row[0] for row in rows]) / scenario.speed,
        np.array([row[1] for row in rows], np.int64),
        np.array([row[2] for row in rows], np.int64),
        np.array([terms.index(row[3]) for row in rows], np.int64),
        work,
        way,
    )
