"""What bench/slo.py counts: requests attained, time of all of them, swings of shares, what faults lose."""

import importlib
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pliant.ir.link import Link
from research.deadline_oracle import Decision
from research.deadline_world import Course, Scenario, Steps
from research.series import LinkSeries

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


def record(load: Callable[[str], ModuleType], **more: Any) -> Any:
    made = load("slo_records").Record(0, 0.0, 0.2, 0.85, 0.1, "local", "positive", 0.88, "positive")
    return replace(made, **more)


def test_attained_is_in_time_and_at_the_floor(load: Callable[[str], ModuleType]) -> None:
    """A refusal attains nothing, however quick; an answer that tells no accuracy is the whole model's."""
    assert record(load).attained(0.89)
    assert not record(load, seconds=0.21).attained(0.89)
    assert not record(load, accuracy=0.84).attained(0.89)
    assert not record(load, label=None).attained(0.89)
    assert record(load, accuracy=None).attained(0.89)
    assert not record(load, accuracy=None, floor=0.9).attained(0.89)


def test_a_request_that_is_not_attained_never_ends(load: Callable[[str], ModuleType]) -> None:
    """Else a way that refuses all but the shortest texts at once would be the quickest."""
    slo = load("slo")
    ok, refused = record(load), record(load, label=None, seconds=0.001)
    assert slo.median_s([ok, ok, refused], 0.89) == 0.1
    assert slo.median_s([ok, refused, refused], 0.89) == float("inf")


def test_accuracy_is_compared_on_requests_that_both_attain(load: Callable[[str], ModuleType]) -> None:
    """Refusing what is hard must not raise it."""
    slo = load("slo")
    records = [record(load, accuracy=0.86), record(load, label=None), record(load, accuracy=None)]
    best = [Decision("local", 0.88, 0.1), Decision("cluster", 0.89, 0.1), Decision(None)]
    assert slo.points_to_oracle(records, 0.89, best) == pytest.approx(-0.02)


def test_the_claim_is_the_worst_row_of_worlds_that_count(load: Callable[[str], ModuleType]) -> None:
    """A world with a good single way proves nothing, and must neither help nor harm."""
    slo, claims = load("slo"), []

    class Sink:
        def claim(self, *words: Any) -> None:
            claims.append(words)

    good = slo.Verdict(0.97, 0.7, -0.005, 0.7)
    slo.claim_attainment(Sink(), "w", [good, slo.Verdict(0.5, 0.85, -0.5, 2.0)])
    assert claims[-1][3]
    for bad in (
        replace(good, attained=0.94),
        replace(good, points=-0.011),
        replace(good, time=0.81),
    ):
        slo.claim_attainment(Sink(), "w", [good, bad])
        assert not claims[-1][3]
    slo.claim_attainment(Sink(), "w", [replace(good, single=0.9)])
    assert not claims[-1][3]


def test_a_share_that_swings_between_windows_is_seen(load: Callable[[str], ModuleType]) -> None:
    """After the first minute, over whole windows; before it, anything goes."""
    stable = load("slo_stable")
    early = [record(load, at_s=t, endpoint="gateway") for t in range(60)]
    steady = [record(load, at_s=60 + t, endpoint=("local", "gateway")[t % 2]) for t in range(60)]
    assert stable.swing(early + steady, 60.0, 10.0) == 0.0
    turned = [replace(r, endpoint="local") if 90 <= r.at_s < 100 else r for r in steady]
    assert stable.swing(early + turned, 60.0, 10.0) == pytest.approx(0.5)


def test_a_refusal_comes_at_once_or_after_a_fault(load: Callable[[str], ModuleType]) -> None:
    """One that waits for its deadline, though nothing failed, could have been refused at once."""
    faults, up = load("slo_faults"), Course(0.1, Steps((0.0,), (1.0,)))
    gone = Course(0.1, Steps((0.0, 100.0, 110.0), (1.0, inf, 1.0)))
    link = LinkSeries((0.0, 200.0, 210.0), (Link(0.01, 1e6), None, Link(0.01, 1e6)))
    scenario = Scenario("w", 1, 300.0, 60.0, (), up, up, {"worker": gone}, link, ())

    def refused(at_s: float, seconds: float) -> Any:
        return record(load, label=None, at_s=at_s, seconds=seconds)

    soon, slow = [refused(50.0, 0.002), refused(50.0, 0.004)], refused(50.0, 0.2)
    near = [refused(at_s, 0.2) for at_s in (90.0, 105.0, 109.0, 205.0)]  # 0.2 s are 12 s of the world
    records = [record(load), *soon, slow, *near]
    assert faults.slow_of(records, scenario) == [slow]
    found = faults.refusal_delays(records, scenario)
    assert (found["at once"], found["median ms"], found["worst ms"]) == (2, 3.0, 4.0)
    assert (found["later"], found["worst ms of later"], found["without a fault"]) == (5, 200.0, 1)


def test_the_share_of_computing_for_hedges_that_are_not_used(load: Callable[[str], ModuleType]) -> None:
    records = [record(load, work_s=0.3), record(load, work_s=0.5, unused_s=0.2)]
    assert load("slo_records").unused_share(records) == pytest.approx(0.2)


def test_wrong_and_lost_requests_are_told_apart(load: Callable[[str], ModuleType]) -> None:
    """A late answer is neither; a refusal after the deadline is lost."""
    faults = load("slo_faults")
    fine, late = record(load), record(load, seconds=5.0)
    lost, refused = record(load, label=None, seconds=0.5), record(load, label=None, seconds=0.2)
    wrong = record(load, label="negative")
    some = [fine, late, lost, refused, wrong]
    assert faults.wrong_of(some, {0: frozenset({"positive"})}) == [wrong]
    assert faults.wrong_of(some, {0: frozenset({"positive", "negative"})}) == []
    assert faults.lost_of(some) == [lost]
