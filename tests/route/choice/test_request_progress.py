"""When a second endpoint is started beside one of this device, against the rule written out."""

from collections.abc import Collection
from math import inf

import pytest

from pliant.ir.curve import Curve
from pliant.ir.endpoint import ServiceLevel
from pliant.route.choice.candidate import Candidate
from pliant.route.choice.choose_endpoint import CLUSTER, LOCAL, Choice, choose
from pliant.route.choice.hedge import Hedge
from pliant.route.choice.request_progress import (
    LocalAnswer,
    answer_timeout,
    barred_hedges,
    may_forward,
    patience_s,
    plan_hedges,
)
from pliant.route.choice.request_terms import Terms


class Progress:
    """An answer of 0.1 s, bound 0.2 s, after a wait of 0.02 s; `other_s` is the time of the only other."""

    def __init__(self, deadline_s: float, other_s: float | None = None, target: str = LOCAL) -> None:
        self.now_s, self.failed = 0.0, ("first",)
        self.deadline_s, self.other_s, self.asked = deadline_s, other_s, list[Collection[str]]()
        terms = Terms(deadline_s, best_effort=True)
        level = ServiceLevel(Curve(((0, 0.1),)), 0.9, Curve(((0, 0.2),)))
        choice = choose(5, [Candidate(target, (level,), 0.02)], terms=terms)
        self.begun_s: float | None = None
        self.answer = LocalAnswer(
            choice,
            5,
            lambda: self.now_s,
            lambda: self.begun_s,
            lambda at_s: Terms(max(self.deadline_s - at_s, 1e-6)),
            self._choose,
            lambda: self.failed,
        )

    def _choose(self, failed: Collection[str]) -> Choice | None:
        self.asked.append(failed)
        if self.other_s is None or "up" in failed:
            return None
        level = ServiceLevel(Curve(((0, self.other_s),)), 0.9)
        return choose(5, [Candidate("up", (level,))], terms=Terms(self.deadline_s, best_effort=True))


def test_running_work_is_hedged_at_its_bound_where_another_is_in_time_then() -> None:
    run = Progress(1.0, 0.1)
    steps = plan_hedges(run.answer, lambda: None)
    assert next(steps) == pytest.approx(1.05 * 0.02 + 0.01)
    run.now_s, run.begun_s = 0.031, 0.025
    assert next(steps) == pytest.approx(0.025 + 0.2 + 0.01 - 0.031)
    run.now_s = 0.235
    assert isinstance(next(steps), Choice)
    assert run.asked[-1] == ("first", LOCAL)
    assert list(steps) == []
    assert barred_hedges(run.answer) == ((LOCAL,),)


def test_running_work_is_hedged_before_its_bound_where_time_gets_short() -> None:
    """The other's median is in time if it starts 1.05 times that, and 5 ms, before the deadline."""
    run = Progress(0.3, 0.1)
    steps = plan_hedges(run.answer, lambda: None)
    next(steps)
    run.now_s, run.begun_s = 0.031, 0.025
    assert next(steps) == pytest.approx(0.3 - 1.05 * 0.1 - 0.005 - 0.031)


def test_a_request_that_waits_too_long_leaves_for_an_equal_answer_at_once() -> None:
    run = Progress(1.0, 0.1)
    steps = plan_hedges(run.answer, lambda: None)
    next(steps)
    run.now_s = 0.031
    assert isinstance(next(steps), Choice)
    assert barred_hedges(run.answer) == ((LOCAL,), ())


def test_a_planned_hedge_comes_first_and_the_own_session_has_none() -> None:
    cluster, local = Progress(1.0, 0.1, CLUSTER), Progress(1.0, 0.1)
    planned = Hedge(local.answer.choice, 0.07)
    steps = plan_hedges(cluster.answer, lambda: planned)
    assert [next(steps), next(steps)] == [0.07, planned.choice]
    assert next(plan_hedges(local.answer, lambda: planned)) == pytest.approx(0.031)


def test_the_second_failure_of_an_upstream_ends_the_forwarding() -> None:
    assert may_forward(("a", LOCAL, CLUSTER), (LOCAL, CLUSTER))
    assert not may_forward(("a", LOCAL, "b"), (LOCAL, CLUSTER))


def test_a_timeout_that_the_deadline_shortens_much_is_no_failure_of_the_upstream() -> None:
    """Usually ten times the expected time, at least 2 s; below a quarter of that, it had no chance."""
    assert (answer_timeout(0.3, inf, 60.0).seconds, answer_timeout(0.1, inf, 60.0).seconds) == (3.0, 2.0)
    assert answer_timeout(30.0, inf, 60.0).seconds == 60.0
    assert answer_timeout(0.1, 0.5, 60.0).is_failure
    assert not answer_timeout(0.1, 0.49, 60.0).is_failure


def test_a_request_is_awaited_until_its_deadline_or_for_half_of_its_senders_patience() -> None:
    assert patience_s(Terms(0.5), None) == patience_s(Terms(0.5), 0.8) == 0.5
    assert patience_s(Terms(0.5), 0.3) == 0.15
    assert patience_s(Terms(0.5, best_effort=True), 0.8) == patience_s(Terms(), 0.8) == 0.4
    assert patience_s(Terms(0.5, best_effort=True), None) == inf
