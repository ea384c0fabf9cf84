"""The oracle of requests under deadlines: against brute force, and never above the bound."""

from itertools import product

import numpy as np
import pytest

from pliant.ir.curve import line
from pliant.ir.link import Link
from research.deadline_oracle import (
    Decision,
    Level,
    OracleInputs,
    attained_share,
    bound,
    decide_with_hindsight,
    quickest,
)
from research.deadline_world import Course, Scenario, Steps, TimedRequest
from research.series import LinkSeries

STEADY = Steps((0.0,), (1.0,))
KNOWN = OracleInputs(
    (Level(0.85, line(0.12, 0.0, 64)), Level(0.88, line(0.25, 0.0, 64)), Level(0.89, line(1.0, 0.0, 64))),
    member_part=0.5,
    exchange_s=0.02,
    hop_s=0.01,
    request_bytes=1000.0,
)


def scenario(*requests: tuple[float, float, float], rtt_s: float = 0.15, **more: object) -> Scenario:
    """Of (at_s, deadline_s, floor); devices as in the worlds' files."""
    made = {
        "world": "w",
        "seed": 0,
        "duration_s": 10.0,
        "speed": 1.0,
        "local": Course(0.6, STEADY),
        "gateway": Course(0.04, STEADY),
        "workers": {"a": Course(0.25, STEADY), "b": Course(0.25, STEADY)},
        "link": LinkSeries((0.0,), (Link(rtt_s, 1e5),)),
        "others_s": (),
    }
    asked = tuple(TimedRequest(i, a, 20, 0, d, f) for i, (a, d, f) in enumerate(requests))
    return Scenario(requests=asked, **(made | more))  # type: ignore[arg-type]


def test_the_bound_is_each_requests_best_way_by_hand() -> None:
    """Local 0.072, 0.15, 0.6 s; cluster 0.125 + 0.02; upstream 0.15 + 0.01 + 0.01 + 0.04."""
    decisions = bound(scenario((0, 0.1, 0.8), (1, 0.15, 0.89), (2, 0.25, 0.89), (3, 0.1, 0.86)), KNOWN)
    assert [(d.way, d.accuracy) for d in decisions] == [
        ("local", 0.85),
        ("cluster", 0.89),
        ("cluster", 0.89),
        (None, 0.0),
    ]
    assert decisions[1].seconds == pytest.approx(0.5 * 0.25 + 0.02)
    gone = {"a": Course(0.25, Steps((0.0,), (float("inf"),)))}
    (here,) = bound(scenario((2, 0.35, 0.89), link=LinkSeries((0.0,), (None,)), workers=gone), KNOWN)
    assert (here.way, here.seconds) == ("cluster", pytest.approx(0.5 * 0.6))
    alone = scenario((2, 0.25, 0.89), workers=gone)
    (above,) = bound(alone, KNOWN)
    assert (above.way, above.seconds) == ("upstream", pytest.approx(0.21))
    assert bound(scenario((2, 0.2, 0.89), link=LinkSeries((0.0,), (None,)), workers={}), KNOWN) == [
        Decision(None)
    ]


def test_no_answer_at_its_floor_is_quicker_than_the_quickest() -> None:
    """The level's time, wherever it is least: 0.072 s here, 0.145 s together."""
    asked = scenario((0, 0.3, 0.8), (1, 0.3, 0.86), (2, 0.7, 0.89), (3, 0.05, 0.8))
    found = quickest(asked, KNOWN)
    assert [(d.way, d.accuracy) for d in found] == [
        ("local", 0.85),
        ("cluster", 0.89),
        ("cluster", 0.89),
        (None, 0.0),
    ]
    assert found[0].seconds == pytest.approx(0.072)
    for least, other in zip(found, decide_with_hindsight(asked, KNOWN), strict=True):
        assert least.seconds <= other.seconds


def test_requests_at_once_are_spread_over_all_ways() -> None:
    """Three for the whole model at one moment: the cluster takes one in time, the gateway two."""
    decisions = decide_with_hindsight(scenario(*[(1.0, 0.24, 0.89)] * 3, rtt_s=0.13), KNOWN)
    assert sorted(str(d.way) for d in decisions) == ["cluster", "upstream", "upstream"]


def test_others_at_the_gateway_are_in_the_way() -> None:
    """Ten of them, 0.04 s each, just before: the request is late there, and nowhere else in time."""
    alone = scenario((1.0, 0.25, 0.89), workers={}, others_s=(1.0,) * 10)
    assert decide_with_hindsight(alone, KNOWN) == [Decision(None)]
    assert bound(alone, KNOWN)[0].way == "upstream"


@pytest.mark.parametrize("seed", range(12))
def test_hindsight_is_as_good_as_trying_everything(seed: int) -> None:
    """Of four requests; more than brute force attains would be a mistake, less a weak yardstick."""
    random = np.random.default_rng(seed)
    asked = sorted(
        (float(random.uniform(0, 0.4)), float(random.choice([0.1, 0.16, 0.3])), float(f))
        for f in random.choice([0.84, 0.87, 0.89], 4)
    )
    here = scenario(*asked, rtt_s=0.1)
    best = _brute_force(here)
    found = decide_with_hindsight(here, KNOWN)
    assert attained_share(found) <= attained_share(bound(here, KNOWN))
    assert sum(1.0 + d.accuracy for d in found if d.way is not None) == pytest.approx(best, abs=0.05)


def _brute_force(here: Scenario) -> float:
    """The most of 1 + accuracy over all assignments, each queue played by itself."""
    ways = [("local", level) for level in KNOWN.levels] + [("upstream", level) for level in KNOWN.levels]
    ways += [("cluster", KNOWN.levels[-1])]
    best = 0.0
    for plan in product([None, *ways], repeat=len(here.requests)):
        free = dict.fromkeys(("local", "cluster", "upstream"), 0.0)
        value = 0.0
        for request, choice in zip(here.requests, plan, strict=True):
            if choice is None:
                continue
            way, level = choice
            part = level.part.at(20)
            work_s = {"local": 0.6 * part, "upstream": 0.04 * part, "cluster": part / (1 / 0.6 + 8) + 0.02}[
                way
            ]
            away_s = 0.1 + 0.01 + 0.01 if way == "upstream" else 0.0
            free[way] = max(free[way], request.at_s + away_s / 2) + work_s
            if (
                free[way] + away_s / 2 - request.at_s <= request.deadline_s
                and level.accuracy >= request.floor
            ):
                value += 1.0 + level.accuracy
        best = max(best, value)
    return best
