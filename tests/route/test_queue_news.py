"""A queue at an upstream: who is told of it, and when it is asked about."""

from dataclasses import replace

import pytest

from pliant.route.choice.choose_endpoint import LOCAL
from pliant.route.router import Router
from pliant.route.router_tasks import PingTask
from tests.route.routers import SETTINGS, SLOW, router, word


def test_who_asks_is_told_the_queue_of_now() -> None:
    """A queue that has gone must not keep requests away for as long as an average remembers it."""
    alone = Router("x", SETTINGS, SLOW)
    alone.set_wait(1.0, 0.0)
    assert alone.advertise(2.0).wait_s == pytest.approx(1.0)
    alone.set_wait(0.0, 3.0)
    assert alone.advertise(3.0).wait_s == 0.0


def test_the_queue_of_an_upstream_is_asked_about_while_it_keeps_inputs_away() -> None:
    """No answer shows that it has gone if no input goes there; where none comes, nobody asks."""
    node = router("up")
    node.record_ping("up", 0.1, 0.0, replace(word("up"), wait_s=5.0), 10.0)
    assert [node.choose(90, 10.0 + 0.1 * i).target for i in range(20)] == [LOCAL] * 20
    assert node.take_due_tasks(12.0) == (PingTask("up"),)
    assert node.take_due_tasks(12.4) == ()
    node.record_ping("up", 0.1, 0.0, word("up"), 12.5)
    assert node.choose(90, 12.5).target == "up"
    node.record_ping("up", 0.1, 0.0, replace(word("up"), wait_s=5.0), 12.6)
    assert node.choose(90, 12.7).target == LOCAL
    assert node.take_due_tasks(13.2) == (PingTask("up"),)
    assert [node.take_due_tasks(13.2 + 0.5 * i) for i in range(10)] == [()] * 10, "one is under way"
    quiet = router("up")
    quiet.record_ping("up", 0.1, 0.0, replace(word("up"), wait_s=5.0), 10.0)
    assert not any(quiet.take_due_tasks(10.0 + 0.5 * i) for i in range(20))


def test_news_of_a_queue_take_nothing_from_the_pings_that_are_due() -> None:
    """Inputs that news do not pay for add up to those that a ping pays for."""
    counts = []
    for wait_s in (0.0, 50.0):
        node = router("up")
        node.record_ping("up", 0.1, 0.0, replace(word("up"), wait_s=wait_s), 0.0)
        pings = []
        for second in range(200):
            node.choose(12, float(second))
            pings += node.take_due_tasks(second + 0.75)
            if pings and pings[-1] == PingTask("up"):
                node.record_ping("up", 0.1, 0.0, word("up"), second + 0.85)
        counts.append(len(pings))
    assert counts[1] >= counts[0] > 0


def test_a_ping_says_that_a_queue_seen_in_answers_has_gone() -> None:
    """Its answer waited for others' requests."""
    node = router("up")
    ticket = node.enter("up", 90, 10.0)
    node.send("up", ticket, 10.0)
    times = (5.2, 5.1, word("up"), 15.2)
    node.record_answer("up", 90, 100, 100, *times, waited_s=5.0, ticket=ticket)
    node.leave("up", ticket, 15.2)
    assert node.choose(90, 15.3).target == LOCAL
    node.record_ping("up", 0.1, 0.0, word("up"), 15.5)
    assert node.choose(90, 15.5).target == "up"
