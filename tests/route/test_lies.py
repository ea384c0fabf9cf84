"""Peers that do not do what they tell: set aside, taken back, or right all the same."""

import pytest

from pliant.ir.curve import line
from pliant.route.choice.choose_endpoint import LOCAL
from pliant.route.router import Router
from pliant.route.router_tasks import PingTask
from tests.route.routers import MAX_N, router, word


def lying(node: Router, n_answers: int, now_s: float, spent_s: float = 0.9) -> None:
    """`a` tells FAST, and takes `spent_s`, one answer after another."""
    for i in range(n_answers):
        node.record_answer("a", 90, 500, 10, spent_s + 0.1, spent_s, word("a"), now_s + i)


def test_a_peer_that_takes_far_longer_than_it_tells_is_set_aside_and_taken_back() -> None:
    """Three answers; the next time one; for ever longer, and never for good."""
    node = router("a", "b")
    node.record_advert("b", word("b", line(0.05, 0.001, MAX_N), stamp=(0, 1)), 0.0)
    lying(node, 2, 1.0)
    assert node.choose(90, 3.0).target == "a"
    lying(node, 1, 3.0)
    assert node.choose(90, 3.0).target == "b"
    assert node.states(3.0)[0].state == "aside"
    node.record_advert("a", word("a", line(0.0, 0.0, MAX_N), stamp=(0, 2)), 4.0)
    assert node.choose(90, 4.0).target == "b"
    assert PingTask("a") not in node.take_due_tasks(12.9)
    assert PingTask("a") in node.take_due_tasks(13.0)
    node.record_ping("a", 0.1, 0.0, word("a"), 13.1)
    assert node.choose(90, 13.1).target == "a"
    lying(node, 1, 14.0)
    assert node.choose(90, 14.0).target == "b"
    assert PingTask("a") not in node.take_due_tasks(33.9)
    assert PingTask("a") in node.take_due_tasks(34.0)
    node.record_ping("a", 0.1, 0.0, word("a"), 34.1)
    for i in range(20):
        node.record_answer("a", 90, 500, 10, 0.2, 0.1, word("a"), 35.0 + i)
    lying(node, 2, 60.0)
    assert node.choose(90, 62.0).target == "a"


def test_a_liar_that_blames_the_network_is_not_chosen_either() -> None:
    """Time that it does not admit to is the link's, and the link's time is ours to measure."""
    node = router("a", "b")
    node.record_advert("b", word("b", line(0.05, 0.001, MAX_N), stamp=(0, 1)), 0.0)
    for i in range(2):
        node.record_answer("a", 90, 500, 10, 5.0, 0.0, word("a", line(0.0, 0.0, MAX_N)), 1.0 + i)
    assert node.choose(90, 3.0).target == "b"


def test_a_broken_curve_sets_its_sender_aside_at_once() -> None:
    """What the node calls where decoding fails (PeerCurveError)."""
    node = router("a")
    node.record_misbehaviour("a", 1.0)
    assert node.choose(90, 1.0).target == LOCAL
    assert node.take_due_tasks(11.0) == (PingTask("a"),)
    node.record_misbehaviour("a", 11.1)
    assert node.take_due_tasks(31.0) == ()
    assert node.take_due_tasks(31.2) == (PingTask("a"),)


def test_what_cannot_be_in_many_answers_at_once_sets_aside_once() -> None:
    """They were asked before the first of them came."""
    node = router("a")
    for _ in range(16):
        node.record_misbehaviour("a", 1.0)
    assert node.take_due_tasks(11.0) == (PingTask("a"),)


def test_slower_answers_within_reason_are_no_lie() -> None:
    """A load that has just begun: the peer's own curve follows."""
    node = router("a")
    lying(node, 10, 1.0, spent_s=0.25)
    assert node.states(12.0)[0].state == "ready"


@pytest.mark.parametrize(("away_s", "state"), [(0.3, "ready"), (1.2, "aside")])
def test_who_takes_longer_than_it_tells_is_set_aside_only_where_it_was_the_wrong_choice(
    away_s: float, state: str
) -> None:
    """A busy host adds milliseconds to a model that takes microseconds; here would have taken 0.9 s."""
    node = router("a")
    for i in range(10):
        node.record_answer("a", 90, 500, 10, away_s, away_s - 0.1, word("a", line(1e-4, 0.0, MAX_N)), 1.0 + i)
    assert node.states(12.0)[0].state == state


def test_who_spent_longer_than_it_was_away_lies_however_soon_it_answers() -> None:
    """Its link would look quicker than light."""
    node = router("a")
    for i in range(3):
        node.record_answer("a", 90, 500, 10, 0.01, 5.0, word("a"), 1.0 + i)
    assert node.states(4.0)[0].state == "aside"
