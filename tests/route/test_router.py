"""A router told of events: propagation, failures, lies, circles."""

import pytest

from pliant.errors import RouteError
from pliant.ir.cost import Link
from pliant.route.choose import LOCAL
from pliant.route.curve import TimeCurve, line
from pliant.route.router import Broadcast, Ping, Router
from pliant.route.settings import RouterSettings
from pliant.route.tell import Told, Trail

MAX_N = 100
LINK = Link(0.1, 250e3)
SETTINGS = RouterSettings(MAX_N)
SLOW, FAST = line(0.0, 0.01, MAX_N), line(0.01, 0.001, MAX_N)


def word(node: str, curve: TimeCurve = FAST, *through: str, stamp: tuple[int, int] = (0, 0)) -> Told:
    return Told(node, curve, frozenset({node, *through}), stamp)


def router(*upstreams: str, settings: RouterSettings = SETTINGS, name: str = "me") -> Router:
    """At 0 s, all upstreams pinged: 100 ms away, FAST."""
    made = Router(name, settings, SLOW)
    for up in upstreams:
        made.successor(up, LINK)
    made.due(0.0)
    for up in upstreams:
        made.pinged(up, 0.1, 0.0, word(up), 0.0)
    return made


def test_an_upstream_that_appears_is_pinged_and_then_used() -> None:
    """Nobody is restarted for it."""
    node = Router("me", SETTINGS, SLOW)
    assert node.choose(90, 0.0).target == LOCAL
    node.successor("up", LINK)
    assert node.choose(90, 0.0).target == LOCAL
    assert node.due(0.0) == (Ping("up"),)
    node.pinged("up", 0.1, 0.0, word("up"), 0.0)
    assert [node.choose(n, 0.0).target for n in (1, 90)] == [LOCAL, "up"]


def test_the_estimate_is_transfer_and_remote_time() -> None:
    """Equation 4 with equation 2: 0.1 s + 0.01 s + 90 ms of answering."""
    assert router("up").choose(90, 0.0).seconds == pytest.approx(0.2)


def test_who_fails_is_left_out_until_a_ping_comes_back() -> None:
    """No request is risked on it; the next best answers."""
    node = router("a", "b")
    node.failed("a", 1.0)
    assert node.choose(90, 1.0).target == "b"
    node.failed("b", 1.0)
    assert node.choose(90, 1.0).target == LOCAL
    assert node.due(1.5) == ()
    assert set(node.due(2.0)) == {Ping("a"), Ping("b")}
    node.failed("b", 2.1)
    node.pinged("a", 0.1, 0.0, word("a"), 2.1)
    assert node.choose(90, 2.1).target == "a"
    assert node.due(3.2) == ()
    assert node.due(4.2) == (Ping("b"),)


def test_a_node_that_is_not_among_the_upstreams_changes_nothing() -> None:
    """An answer may come in after its upstream was removed."""
    node = router("a")
    node.remove("a")
    node.answered_by("a", 3, 10, 10, 0.1, 0.0, word("a"), 0.0)
    node.failed("a", 0.0)
    node.told("a", word("a"), 0.0)
    assert node.choose(90, 0.0).target == LOCAL


def test_a_word_piggybacked_replaces_the_last() -> None:
    """CRIME 4.3.3 (i)."""
    node = router("a")
    node.answered_by("a", 3, 10, 10, 0.2, 0.1, word("a", line(5.0, 0.0, MAX_N)), 1.0)
    assert node.choose(90, 1.0).target == LOCAL


def test_predecessors_are_told_when_the_curve_moves_past_the_threshold() -> None:
    """CRIME 4.3.3 (ii): once, and only those that have not heard it with an answer."""
    node = router("a")
    for name in ("p", "q", "silent"):
        node.heard_of(name, None if name == "silent" else f"http://{name}", 0.0)
        node.tell(0.0, name)
    assert node.due(0.5) == ()
    node.told("a", word("a", line(0.02, 0.001, MAX_N), stamp=(0, 1)), 1.0)
    assert node.tell(1.0, "q").curve.at(90) == pytest.approx(0.21)
    (broadcast,) = node.due(1.0)
    assert isinstance(broadcast, Broadcast)
    assert broadcast.predecessors == ("p",)
    assert broadcast.told.curve.at(90) == pytest.approx(0.21)
    assert node.due(1.0) == ()


def test_what_stays_under_the_threshold_is_not_broadcast() -> None:
    """A broadcast costs a transmission."""
    node = router("a")
    node.heard_of("p", "http://p", 0.0)
    node.tell(0.0, "p")
    node.told("a", word("a", line(0.0101, 0.001, MAX_N), stamp=(0, 1)), 1.0)
    assert node.due(1.0) == ()


def test_an_older_broadcast_of_the_same_start_is_dropped() -> None:
    """Messages overtake each other; a node that was restarted counts from the start."""
    node = router("a")
    node.told("a", word("a", line(1.0, 0.0, MAX_N), stamp=(5, 9)), 1.0)
    node.told("a", word("a", FAST, stamp=(5, 8)), 1.1)
    assert node.choose(90, 1.1).target == LOCAL
    node.told("a", word("a", FAST, stamp=(4, 1)), 1.2)
    assert node.choose(90, 1.2).target == "a"


def test_predecessors_expire() -> None:
    """Who is not heard of for long is not broadcast to."""
    node = router("a")
    node.heard_of("p", "http://p", 0.0)
    node.heard_of("q", "http://q", 1000.0)
    node.due(SETTINGS.expire_after_s + 1.0)
    assert node.predecessors == ("q",)
    node.forget("q")
    assert node.predecessors == ()


def test_a_node_in_its_own_path_refuses() -> None:
    """Whoever was misled has somebody else to ask."""
    with pytest.raises(RouteError, match="circle"):
        Trail(("me", "b")).at("me")
    assert Trail(("b",), 3).at("me") == Trail(("b", "me"), 3)


def test_a_request_goes_to_nobody_it_has_passed_and_stays_without_hops() -> None:
    """Paths hold while words are under way."""
    node = router("a", "b")
    assert node.choose(90, 0.0, trail=Trail(("a", "me"))).target == "b"
    assert node.choose(90, 0.0, trail=Trail(("a", "me"), 0)).target == LOCAL
    with pytest.raises(RouteError, match="no further hop"):
        Trail(("a", "me"), 0).sent()


def test_a_successor_that_depends_on_this_node_is_no_candidate() -> None:
    """Half of what keeps circles from counting to infinity."""
    node = router("a")
    node.told("a", word("a", FAST, "me", stamp=(0, 1)), 1.0)
    assert node.choose(90, 1.0).target == LOCAL
    assert node.states(1.0)[0].state == "circle"


def test_a_predecessor_is_not_told_its_own_time() -> None:
    """The other half."""
    node = router("a", "b")
    node.told("a", word("a", line(0.0, 0.0005, MAX_N), "p", stamp=(0, 1)), 1.0)
    assert node.tell(1.0).through == {"me", "a", "p"}
    told = node.tell(1.0, "p")
    assert told.through == {"me", "b"}
    assert told.curve.at(90) == pytest.approx(0.2)
    assert node.tell(1.0, "q").curve.at(90) == pytest.approx(0.145)
