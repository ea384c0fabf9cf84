"""Requests that only one endpoint can answer in time: what a job there costs them."""

from dataclasses import replace
from math import inf
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.ir.curve import Curve
from pliant.ir.endpoint import ServiceLevel
from pliant.ir.link import Link
from pliant.route.choice.candidate import Candidate
from pliant.route.choice.choose_endpoint import LOCAL, Choice, choose
from pliant.route.choice.crowding import Crowding, Dependents
from pliant.route.choice.hedge import hedge
from pliant.route.choice.request_terms import Terms
from pliant.route.curve_advert import CurveAdvert
from pliant.route.router import Router
from pliant.route.router_settings import RouterSettings

seconds = st.floats(0, 2).map(lambda x: round(x, 3))
SHORT, LONG = Terms(0.175, 0.81), Terms(0.315, 0.88)


def level(accuracy: float, median_s: float, spread: float = 1.2) -> ServiceLevel:
    return ServiceLevel(Curve(((0, median_s),)), accuracy, Curve(((0, spread * median_s),)))


def device() -> Router:
    """0.08 s here for 0.815 and 0.26 s for 0.885; above 0.2 s away the whole model takes 0.04 s."""
    node = Router("me", RouterSettings(100))
    node.offer((level(0.815, 0.08), level(0.885, 0.26)))
    node.add_successor("up", Link(0.2, 1e9))
    told = (level(0.8899, 0.04, 3.0),)
    node.record_ping("up", 0.2, 0.0, CurveAdvert("up", told, frozenset({"up"})), 0.0)
    return node


def ask(node: Router, terms: Terms, now_s: float) -> Choice:
    return node.choose(20, now_s, terms=terms)


@given(per_s=seconds, slack_s=seconds, wait_s=seconds, work_s=seconds)
def test_a_job_makes_those_late_that_come_while_more_than_their_slack_is_left(
    per_s: float, slack_s: float, wait_s: float, work_s: float
) -> None:
    """Against the same counted over moments at which one may come, with and without the job."""
    at_s = (np.arange(8000) + 0.5) / 2000.0  # of a queue of 4 s at most
    late = [np.sum(queue_s - at_s > slack_s) / 2000.0 for queue_s in (wait_s, wait_s + work_s)]
    assert Crowding(per_s, slack_s).expected_late(wait_s, work_s) == pytest.approx(
        per_s * (late[1] - late[0]), abs=0.002
    )


def test_the_rate_is_that_of_lately_and_fades() -> None:
    """Two a second for long, and then none."""
    found = Dependents()
    assert found.crowding is None
    for i in range(200):
        found.pass_time(0.5 * i)
        found.add(0.1, is_queued=i % 2 == 0)
    crowding = found.crowding
    assert crowding is not None
    assert crowding.per_s == pytest.approx(2.0, rel=0.1)
    assert crowding.slack_s == pytest.approx(0.1)
    found.pass_time(130.0)
    assert found.crowding is None


def test_who_can_go_elsewhere_leaves_the_device_to_those_who_cannot() -> None:
    """The answer here would be in time at its bound, the one above only likely: that counts, until requests
    come that the way above is too long for."""
    node = device()
    assert ask(node, LONG, 0.0).target == LOCAL
    for i in range(8):
        assert ask(node, SHORT, 0.3 * i).target == LOCAL
    assert ask(node, LONG, 2.4).target == LOCAL, "each came after the one before was answered"
    node.set_wait(0.05, 2.4)
    assert ask(node, SHORT, 2.4).target == LOCAL
    node.set_wait(0.0, 2.5)
    choice = ask(node, LONG, 2.5)
    assert choice.target == "up"
    assert "late" in choice.reason
    assert ask(node, LONG, 60.0).target == LOCAL, "none comes any more"


def test_those_who_depend_on_it_are_answered_quickly_while_many_come() -> None:
    """More accuracy would be in time as well, and the next one late."""
    node = device()
    relaxed = Terms(0.32, 0.81)
    node.record_failure("up", 0.0)
    assert ask(node, relaxed, 0.0).option.accuracy == 0.885
    node.set_wait(0.05, 0.0)
    for i in range(30):
        ask(node, SHORT, 0.1 * i)
    node.set_wait(0.0, 3.0)
    choice = ask(node, relaxed, 3.0)
    assert choice.option.accuracy == 0.815
    assert choice.option.most_s == pytest.approx(1.03 * 0.096)


def test_one_who_can_wait_long_changes_nothing_for_those_who_cannot() -> None:
    """An average with its slack would say that all of them can wait."""
    node = device()
    node.record_failure("up", 0.0)
    node.set_wait(0.05, 0.0)
    for i in range(30):
        ask(node, SHORT, 0.1 * i)
    ask(node, Terms(600.0, 0.81), 3.0)
    assert ask(node, Terms(0.32, 0.81), 3.0).option.accuracy == 0.815


def test_a_request_is_not_in_its_own_way() -> None:
    """One that waits for another, and nobody behind it, gets the most accurate answer in time."""
    node = Router("me", RouterSettings(100))
    node.offer((level(0.815, 1.0), level(0.885, 2.0)))
    node.set_wait(0.5, 0.0)
    assert ask(node, Terms(2.95, 0.81), 0.0).option.accuracy == 0.885


def test_an_endpoint_that_was_never_timed_may_take_all_the_time_there_is() -> None:
    """Its curve of 0 s says that nothing is known; no request is due at once."""
    node = Router("me", RouterSettings(100))
    for i in range(3):
        choice = node.choose(20, 0.1 * i, terms=Terms(0.2))
    assert choice.target == LOCAL
    assert choice.option.most_s is None


@given(
    some=st.lists(
        st.tuples(
            st.lists(seconds.map(lambda x: x + 0.001), min_size=1, max_size=3),
            seconds,
            st.none() | st.builds(Crowding, seconds, seconds),
        ),
        min_size=1,
        max_size=4,
    ),
    floor=st.sampled_from([0.0, 0.8, 0.9]),
    deadline_s=st.floats(0.05, 4).map(lambda x: round(x, 3)),
)
def test_the_choice_is_that_of_every_option_written_out(
    some: list[tuple[list[float], float, Crowding | None]], floor: float, deadline_s: float
) -> None:
    """The most accurate within 0.05 late requests of the least; then the quickest."""
    candidates, rows = [], []
    for i, (times, wait_s, crowding) in enumerate(some):
        levels = tuple(level(0.75 + 0.1 * k, t) for k, t in enumerate(sorted(times)))
        candidates.append(Candidate(f"n{i}", levels, wait_s, crowding=crowding))
        for one in levels:
            work_s = one.curve.at(1)
            took_s, bound_s = wait_s + work_s, wait_s + 1.2 * work_s
            units = np.log(deadline_s / took_s) / np.log(bound_s / took_s)
            chance = NormalDist().cdf(1.645 * units)
            assert one.accuracy is not None
            if one.accuracy < floor or (took_s > deadline_s and units < -0.4):
                continue
            late = 0.0 if bound_s <= deadline_s else 1.0 - chance
            late += 0.0 if crowding is None else crowding.expected_late(wait_s, work_s)
            rows.append((late, one.accuracy, took_s))
    if not rows or all(crowding is None for _, _, crowding in some):
        return
    least = min(late for late, _, _ in rows)
    found = choose(1, candidates, terms=Terms(deadline_s, floor)).option
    allowed = [row for row in rows if row[0] <= least + 0.03 + 1e-9]
    surely = [row for row in rows if row[0] <= least + 0.03 - 1e-9]
    assert found.accuracy is not None
    assert any(found.accuracy == row[1] and found.seconds == pytest.approx(row[2]) for row in allowed)
    assert found.accuracy >= max(row[1] for row in surely)
    assert found.seconds <= min((row[2] for row in surely if row[1] == found.accuracy), default=inf) + 1e-9


def test_no_answer_is_begun_twice_where_that_makes_more_requests_late() -> None:
    """The upstream is late once in eight times."""
    here = Candidate(LOCAL, (level(0.885, 0.15),))
    above = choose(1, [Candidate("up", (level(0.89, 0.3, 1.2),))], terms=Terms(0.34, 0.88))
    assert hedge(1, above, [here], Terms(0.34, 0.88)) is not None
    crowded = replace(here, crowding=Crowding(3.0, 0.05))
    assert hedge(1, above, [crowded], Terms(0.34, 0.88)) is None
