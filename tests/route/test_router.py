"""A router told of events: propagation, failures, pings, probes."""

from dataclasses import replace

import pytest

from pliant.errors import RouteError
from pliant.ir.curve import line
from pliant.route.choice.choose_endpoint import LOCAL
from pliant.route.curve_advert import Trail
from pliant.route.predecessors import Listener
from pliant.route.router import Router
from pliant.route.router_settings import RouterSettings, paper_settings
from pliant.route.router_tasks import BroadcastTask, PingTask, ProbeTask
from tests.route.routers import FAST, LINK, MAX_N, SETTINGS, SLOW, router, word


def test_an_upstream_that_appears_is_pinged_and_then_used() -> None:
    """Nobody is restarted for it."""
    node = Router("me", SETTINGS, SLOW)
    assert node.choose(90, 0.0).target == LOCAL
    node.add_successor("up", LINK)
    assert node.choose(90, 0.0).target == LOCAL
    assert node.take_due_tasks(0.0) == (PingTask("up"),)
    node.record_ping("up", 0.1, 0.0, word("up"), 0.0)
    assert [node.choose(n, 0.0).target for n in (1, 90)] == [LOCAL, "up"]


def test_the_estimate_is_transfer_and_remote_time() -> None:
    """Equation 4 with equation 2: 0.1 s + 0.01 s + 90 ms of answering."""
    assert router("up").choose(90, 0.0).seconds == pytest.approx(0.2)


def test_who_fails_is_left_out_until_a_ping_comes_back() -> None:
    """No request is risked on it; the next best answers."""
    node = router("a", "b")
    node.record_failure("a", 1.0)
    assert node.choose(90, 1.0).target == "b"
    node.record_failure("b", 1.0)
    assert node.choose(90, 1.0).target == LOCAL
    assert node.take_due_tasks(1.5) == ()
    assert set(node.take_due_tasks(2.0)) == {PingTask("a"), PingTask("b")}
    node.record_failure("b", 2.1)
    node.record_ping("a", 0.1, 0.0, word("a"), 2.1)
    assert node.choose(90, 2.1).target == "a"
    assert node.take_due_tasks(3.2) == ()
    assert node.take_due_tasks(4.2) == (PingTask("b"),)


def test_requests_that_fail_together_are_one_failure() -> None:
    """Else a moment's outage under load would keep a node out for the longest wait there is."""
    node = router("a")
    for _ in range(16):
        node.record_failure("a", 1.0)
    assert node.take_due_tasks(2.0) == (PingTask("a"),)
    for _ in range(16):
        node.record_failure("a", 2.1)
    assert node.take_due_tasks(4.0) == ()
    assert node.take_due_tasks(4.1) == (PingTask("a"),)


def test_who_was_not_waited_for_stays_a_candidate_and_is_pinged_unless_it_was_just_heard() -> None:
    """A short wait is no sign of a fault; but where it is one, a ping finds out."""
    node = router("a")
    node.record_doubt("a", 5.0)
    assert node.choose(90, 5.0).target == "a"
    assert node.take_due_tasks(5.0) == (PingTask("a"),)
    node.record_doubt("a", 5.1)
    assert node.take_due_tasks(5.1) == ()
    node.record_ping("a", 0.1, 0.0, word("a"), 5.2)
    node.record_doubt("a", 5.3)
    assert node.take_due_tasks(5.3) == ()
    assert node.take_due_tasks(6.3) == (PingTask("a"),)


def test_a_node_that_is_not_among_the_upstreams_changes_nothing() -> None:
    """An answer may come in after its upstream was removed."""
    node = router("a")
    node.remove_successor("a")
    node.record_answer("a", 3, 10, 10, 0.1, 0.0, word("a"), 0.0)
    node.record_failure("a", 0.0)
    node.record_advert("a", word("a"), 0.0)
    assert node.choose(90, 0.0).target == LOCAL


def test_a_word_piggybacked_replaces_the_last() -> None:
    """CRIME 4.3.3 (i)."""
    node = router("a")
    node.record_answer("a", 3, 10, 10, 0.2, 0.1, word("a", line(5.0, 0.0, MAX_N)), 1.0)
    assert node.choose(90, 1.0).target == LOCAL


def test_predecessors_are_told_when_the_curve_moves_past_the_threshold() -> None:
    """CRIME 4.3.3 (ii): once, and only those that have not heard it with an answer."""
    node = router("a")
    for name in ("p", "q", "silent"):
        node.add_predecessor(name, None if name == "silent" else Listener(f"http://{name}"), 0.0)
        node.advertise(0.0, name)
    assert node.take_due_tasks(0.5) == ()
    node.record_advert("a", word("a", line(0.02, 0.001, MAX_N), stamp=(0, 1)), 1.0)
    assert node.advertise(1.0, "q").curve.at(90) == pytest.approx(0.21)
    (broadcast,) = node.take_due_tasks(1.0)
    assert isinstance(broadcast, BroadcastTask)
    assert broadcast.predecessors == ("p",)
    assert broadcast.advert.curve.at(90) == pytest.approx(0.21)
    assert node.take_due_tasks(1.0) == ()


def test_what_stays_under_the_threshold_is_not_broadcast() -> None:
    """A broadcast costs a transmission."""
    node = router("a")
    node.add_predecessor("p", Listener("http://p"), 0.0)
    node.advertise(0.0, "p")
    node.record_advert("a", word("a", line(0.0101, 0.001, MAX_N), stamp=(0, 1)), 1.0)
    assert node.take_due_tasks(1.0) == ()


@pytest.mark.parametrize("stamp", [(0, 0), (2**53, 2**53)])
def test_a_broadcast_changes_no_choice_and_makes_for_one_ping(stamp: tuple[int, int]) -> None:
    """Anybody can send one in an upstream's name: only the upstream's own answer counts."""
    node = router("a")
    assert node.choose(90, 1.0).target == "a"
    for i in range(100):
        node.handle_broadcast("a", word("a", line(1e3, 0.0, MAX_N), stamp=stamp), 1.0 + i / 1000)
        assert node.choose(90, 1.0 + i / 1000).target == "a"
    assert node.take_due_tasks(1.1) == (PingTask("a"),)
    node.record_ping("a", 0.1, 0.0, word("a", line(1e3, 0.0, MAX_N)), 1.2)
    assert node.choose(90, 1.2).target == LOCAL
    node.record_ping("a", 0.1, 0.0, word("a"), 1.3)
    assert node.choose(90, 1.3).target == "a"


def test_hints_make_for_one_ping_in_retry_s_however_many_come() -> None:
    """Otherwise a stranger could make a node flood its own upstream."""
    node, pings = router("a"), 0
    for i in range(1000):
        node.handle_broadcast("a", word("a"), i / 100)
        pings += len(node.take_due_tasks(i / 100))
    assert pings == 10.0 / SETTINGS.retry_s


def test_a_hint_outlives_an_answer_that_was_under_way() -> None:
    """That answer may tell of the time before the change."""
    node = router("a")
    node.handle_broadcast("a", word("a"), 1.0)
    assert node.take_due_tasks(1.0) == (PingTask("a"),)
    node.handle_broadcast("a", word("a"), 1.1)
    node.record_ping("a", 0.2, 0.0, word("a"), 1.2)
    assert node.take_due_tasks(1.9) == ()
    assert node.take_due_tasks(2.0) == (PingTask("a"),)


def test_a_broadcast_is_believed_where_the_papers_rules_are_asked_for() -> None:
    """CRIME 4.3.3 (ii), for its evaluation."""
    node = router("a", settings=replace(SETTINGS, trusts_broadcasts=True))
    node.handle_broadcast("a", word("a", line(1e3, 0.0, MAX_N)), 1.0)
    assert node.choose(90, 1.0).target == LOCAL


def test_predecessors_expire() -> None:
    """Who is not heard of for long is not broadcast to."""
    node = router("a")
    node.add_predecessor("p", Listener("http://p"), 0.0)
    node.add_predecessor("q", Listener("http://q"), 1000.0)
    node.take_due_tasks(SETTINGS.expire_after_s + 1.0)
    assert node.predecessors.names == ("q",)
    node.predecessors.remove("q")
    assert node.predecessors.names == ()


def test_a_node_in_its_own_path_refuses() -> None:
    """Whoever was misled has somebody else to ask."""
    with pytest.raises(RouteError, match="circle"):
        Trail(("me", "b")).visit("me")
    assert Trail(("b",), 3).visit("me") == Trail(("b", "me"), 3)


def test_a_request_goes_to_nobody_it_has_passed_and_stays_without_hops() -> None:
    """Paths hold while words are under way."""
    node = router("a", "b")
    assert node.choose(90, 0.0, trail=Trail(("a", "me"))).target == "b"
    assert node.choose(90, 0.0, trail=Trail(("a", "me"), 0)).target == LOCAL
    with pytest.raises(RouteError, match="no further hop"):
        Trail(("a", "me"), 0).next_hop()


def test_a_successor_that_depends_on_this_node_is_no_candidate() -> None:
    """Half of what keeps circles from counting to infinity."""
    node = router("a")
    node.record_advert("a", word("a", FAST, "me", stamp=(0, 1)), 1.0)
    assert node.choose(90, 1.0).target == LOCAL
    assert node.states(1.0)[0].state == "circle"


def test_a_predecessor_is_not_told_its_own_time() -> None:
    """The other half."""
    node = router("a", "b")
    node.record_advert("a", word("a", line(0.0, 0.0005, MAX_N), "p", stamp=(0, 1)), 1.0)
    assert node.advertise(1.0).through == {"me", "a", "p"}
    told = node.advertise(1.0, "p")
    assert told.through == {"me", "b"}
    assert told.curve.at(90) == pytest.approx(0.2)
    assert node.advertise(1.0, "q").curve.at(90) == pytest.approx(0.145)


def test_a_link_is_pinged_after_t_ping_and_soon_after_a_surprise() -> None:
    """CRIME 4.3.1; a spike does not end sending for a minute."""
    node = router("a")
    node.choose(90, 0.0)
    assert node.take_due_tasks(59.9) == ()
    assert node.take_due_tasks(60.0) == (PingTask("a"),)
    node.record_ping("a", 0.9, 0.0, word("a"), 60.9)
    assert node.choose(90, 60.9).target == LOCAL
    assert node.next_due_s(60.9) <= 61.9
    assert node.take_due_tasks(61.9) == (PingTask("a"),)
    node.record_ping("a", 0.1, 0.0, word("a"), 62.0)
    assert node.choose(90, 62.0).target == "a"


def test_an_input_that_is_only_asked_about_does_not_count() -> None:
    """Whoever watches a node all day must not have it ping where nothing is sent."""
    watched, idle = router("a"), router("a")
    slow = word("a", line(2.0, 0.0, MAX_N))
    for node in (watched, idle):
        node.record_ping("a", 0.1, 0.0, slow, 0.0)
        node.choose(20, 0.0)
    pings = {watched: 0, idle: 0}
    for now_s in map(float, range(0, 1000, 10)):
        assert watched.choose(5000, now_s, is_coming=False).target == "a"
        for node in (watched, idle):
            for _ in node.take_due_tasks(now_s):
                pings[node] += 1
                node.record_ping("a", 0.1, 0.0, slow, now_s)
    assert pings[watched] == pings[idle]


def test_a_link_that_could_not_win_is_pinged_rarely() -> None:
    """Pings are CRIME's overhead where one device is best for all (Table 2, IMDB); the paper pings on."""
    ours, papers = router("a"), router("a", settings=paper_settings(MAX_N))
    for node in (ours, papers):
        node.record_ping("a", 0.1, 0.0, word("a", line(2.0, 0.0, MAX_N)), 0.0)
        node.choose(20, 0.0)
    pings = {}
    for node in (ours, papers):
        pings[node] = 0
        for now_s in range(0, 1000, 10):
            for _ in node.take_due_tasks(float(now_s)):
                pings[node] += 1
                node.record_ping("a", 0.1, 0.0, word("a", line(2.0, 0.0, MAX_N)), float(now_s))
    assert (pings[ours], pings[papers]) == (2, 16)


def test_a_device_that_looks_slow_and_is_no_longer_asked_is_probed() -> None:
    """Inputs go elsewhere, so nothing else would show that its load has ended."""
    node = router("a")
    for i in range(40):
        node.record_local_answer(10 + i % 9, 0.01 * (10 + i % 9), float(i))
    for i in range(10):
        node.record_local_answer(10 + i % 9, 0.08 * (10 + i % 9), 40.0 + i)
    assert node.choose(10, 50.0).target == "a"
    assert ProbeTask(10) in node.take_due_tasks(50.0 + 31.0)
    node.record_local_answer(10, 0.1, 82.0)
    assert ProbeTask(10) in node.take_due_tasks(83.0)
    node.record_local_answer(12, 0.12, 83.1)
    assert node.choose(10, 83.2).target == LOCAL


def test_a_device_that_is_as_it_was_is_not_probed() -> None:
    """A probe takes power."""
    node = router("a")
    for i in range(40):
        node.record_local_answer(10 + i % 9, 0.01 * (10 + i % 9), float(i))
    found = [d for now_s in range(40, 2000, 10) for d in node.take_due_tasks(float(now_s))]
    assert not any(isinstance(d, ProbeTask) for d in found)


def test_waiting_counts_at_once_here_and_on_average_for_others() -> None:
    """A queue of a moment must not move all predecessors at once."""
    node = router("a")
    assert node.choose(5, 10.0).target == LOCAL
    node.set_wait(1.0, 10.0)
    assert node.choose(5, 10.0).target == "a"
    assert node.advertise(10.0).curve.at(5) < 0.1
    node.set_wait(1.0, 12.0)
    assert Router("x", SETTINGS, SLOW).advertise(0.0).curve.at(5) == pytest.approx(0.05)
    alone = Router("x", SETTINGS, SLOW)
    alone.add_predecessor("p", Listener("http://p"), 0.0)
    alone.advertise(0.0, "p")
    alone.set_wait(1.0, 0.0)
    (due,) = alone.take_due_tasks(2.0)
    assert isinstance(due, BroadcastTask)
    assert due.advert.wait_s == pytest.approx(0.5)


def test_a_wait_is_told_beside_the_curve_and_broadcast_when_it_has_doubled_or_halved() -> None:
    """Queues change with every request: another curve each time would be another message to everyone."""
    alone = Router("x", SETTINGS, SLOW)
    alone.add_predecessor("p", Listener("http://p"), 0.0)
    alone.advertise(0.0, "p")
    told = []
    for tick in range(1, 1000):
        alone.set_wait(0.1 if tick < 500 else 0.0, 0.1 * tick)
        told += [due.advert for due in alone.take_due_tasks(0.1 * tick) if isinstance(due, BroadcastTask)]
    assert 4 < len(told) < 20
    assert max(word.wait_s for word in told) == pytest.approx(0.1, rel=0.5)
    assert {word.curve for word in told} == {SLOW}
    assert told[-1].wait_s < 2e-3


def test_nothing_known_means_answering_here_first() -> None:
    """Without a prior, the first input teaches."""
    node = Router("me", SETTINGS)
    assert node.curve_here() is None
    assert node.choose(50, 0.0).target == LOCAL
    with pytest.raises(RouteError):
        node.choose(50, 0.0, exclude={LOCAL})


def test_the_papers_settings_are_the_papers() -> None:
    """The baseline of every comparison."""
    node = Router("me", paper_settings(MAX_N), SLOW)
    node.add_successor("a", LINK)
    node.take_due_tasks(0.0)
    node.record_ping("a", 0.1, 0.0, word("a"), 0.0)
    node.record_answer("a", 90, 0, 0, 2.0, 0.1, word("a"), 1.0)
    assert node.choose(90, 1.0).target == LOCAL
    assert node.take_due_tasks(60.9) == ()
    assert node.take_due_tasks(61.0) == (PingTask("a"),)


@pytest.mark.parametrize("bad", [{"max_n": 0}, {"threshold_s": -1.0}, {"ping_after_s": 0.0}, {"window": 0}])
def test_settings_that_cannot_be_are_refused(bad: dict[str, float]) -> None:
    """Before a node starts."""
    with pytest.raises(RouteError):
        RouterSettings(**{"max_n": 10, **bad})  # type: ignore[arg-type]


def test_upstreams_and_nodes_have_names_of_their_own() -> None:
    """Names are how circles are seen."""
    node = router("a")
    with pytest.raises(RouteError, match="already"):
        node.add_successor("a", LINK)
    with pytest.raises(RouteError, match="not a node's name"):
        Router("", SETTINGS)


def test_a_token_stays_with_the_address_that_it_was_shown_with() -> None:
    """Whoever knows another token and claims the same name does not change what is shown to that address."""
    node, listener = router("a"), Listener("http://p", "one")
    node.add_predecessor("p", listener, 0.0)
    node.add_predecessor("p", None, 1.0)
    assert node.predecessors.listener_of("p") == listener
    node.add_predecessor("p", Listener("http://q", "two"), 2.0)
    assert node.predecessors.listener_of("p") == Listener("http://q", "two")
    assert "two" not in repr(node.predecessors.listener_of("p"))


def test_a_crowd_of_predecessors_is_bounded() -> None:
    """Anybody may claim a name; the longest unheard go, and get no broadcasts."""
    node, listener = router("a"), Listener("http://q")
    node.add_predecessor("q", listener, 0.0)
    for i in range(1000):
        node.add_predecessor(f"p{i}", None, float(i))
        if i < 500:
            node.add_predecessor("q", None, float(i))
            assert node.predecessors.has_listeners
    assert node.predecessors.names == tuple(f"p{i}" for i in range(744, 1000))
    assert not node.predecessors.has_listeners
