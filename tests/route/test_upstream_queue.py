"""Inputs that meet in queues: many clients through a slow node with a quick upstream."""

import pytest

from pliant.ir.curve import line
from pliant.route.choice.choose_endpoint import LOCAL
from pliant.route.upstream.upstream_queue import RecentAverage, UpstreamQueue
from tests.route.closed_loop import ClosedLoop
from tests.route.routers import MAX_N, router, word


@pytest.mark.parametrize("way_s", [2e-4, 1e-3, 0.05])
@pytest.mark.parametrize("n_clients", [1, 16, 64])
def test_an_upstream_is_as_busy_through_a_slow_node_as_asked_directly(n_clients: int, way_s: float) -> None:
    """An honest upstream whose answers wait in its queue was set aside, and the slow device answered."""
    found = ClosedLoop(n_clients, 5e-3, way_s=way_s).run(10.0)
    directly = min(n_clients / (5e-3 + way_s), 1.0 / 5e-3)
    assert (found.n_above + found.n_here) / 10.0 > 0.95 * directly
    assert found.n_here < 0.01 * found.n_above
    assert found.node.states(10.0)[0].state == "ready"


def test_the_slow_device_helps_where_the_queue_above_is_longer_than_its_own_work() -> None:
    """64 inputs above take 64 units of work, one here takes 8: then a queue is what is waited for."""
    found = ClosedLoop(64, 5e-3, slower=8.0).run(20.0)
    assert found.n_here / 20.0 == pytest.approx(1.0 / 0.04, rel=0.1)
    assert found.n_above / 20.0 > 0.95 * 200.0


def test_no_more_is_in_flight_than_fills_the_way_and_the_upstream() -> None:
    """More only waits above, where it can no longer go elsewhere."""
    near, far = (ClosedLoop(64, 5e-3, way_s=way_s).run(10.0) for way_s in (1e-3, 0.1))
    assert near.most_in_flight <= 8
    assert 20 <= far.most_in_flight <= 40


def test_the_limit_grows_where_an_upstream_works_on_many_inputs_at_once() -> None:
    """It may pass them on to others, or be a cluster: then no answer waits, and more in flight pays."""
    found = ClosedLoop(64, 0.2, n_servers=16, slower=1000.0, way_s=0.01).run(60.0)
    assert found.n_above / 60.0 > 0.85 * 16 / 0.21
    assert found.most_in_flight < 32


def test_a_queue_of_others_is_waited_for_or_avoided() -> None:
    """16 clients ask the upstream directly: its answers wait, which it says; it is no liar for that."""
    shared = ClosedLoop(4, 5e-3, others=16, slower=100.0).run(30.0)
    assert shared.n_here < 0.02 * shared.n_above
    assert shared.node.states(30.0)[0].state == "ready"
    avoided = ClosedLoop(1, 5e-3, others=16, slower=4.0).run(30.0)
    assert avoided.n_here > 4 * avoided.n_above


def test_who_takes_longer_than_it_tells_is_set_aside_under_load_too() -> None:
    """Waiting apart, five times what was told, where this device would have been sooner."""
    found = ClosedLoop(2, 0.05, told_s=0.01, slower=0.4).run(20.0)
    peer = found.node.states(20.0)[0]
    assert peer.reason is not None
    assert "50 ms, 10 ms were told" in peer.reason
    assert found.n_here > 3 * found.n_above


def test_a_liar_that_blames_its_queue_is_not_chosen() -> None:
    """It tells no wait and says of each answer that it waited: what is seen counts."""
    node = router("a", "b")
    node.record_advert("b", word("b", line(0.05, 0.001, MAX_N), stamp=(0, 1)), 0.0)
    assert node.choose(90, 0.5).target == "a"
    node.record_answer("a", 90, 500, 10, 5.1, 5.0, word("a"), 1.0, waited_s=4.9)
    assert node.choose(90, 1.0).target == "b"
    assert node.states(1.0)[0].state == "ready"


def test_answers_that_were_under_way_together_are_one_disturbance() -> None:
    """An upstream that stands still for a second delays all of them, and tells no lie by that."""
    node = router("a")
    for i in range(16):
        node.record_answer("a", 90, 500, 10, 1.3, 1.2, word("a"), 2.0 + 1e-3 * i)
    assert node.states(3.0)[0].state == "ready"


def test_what_is_on_its_way_to_an_upstream_delays_the_next() -> None:
    """Ten inputs of 0.1 s there: one here takes 0.9 s, which is sooner."""
    node = router("a")
    passages = [node.enter("a", 90, 1.0) for _ in range(10)]
    assert node.choose(90, 1.0).target == LOCAL
    for ticket in passages:
        node.leave("a", ticket, 1.0)
    assert node.choose(90, 1.0).target == "a"


def test_a_wait_that_was_told_fades_where_nothing_else_is_heard() -> None:
    """Else an upstream that was busy once would be avoided until the next ping."""
    queue = UpstreamQueue(memory_s=2.0)
    queue.record_advertised_wait(1.0, 0.0)
    assert queue.wait_s(0.0, 2.0) == pytest.approx(0.5)
    assert queue.wait_s(0.0, 300.0) == 0.0


def test_a_recent_average_follows_a_step_by_half_in_its_memory() -> None:
    """Analytically: 1 - 2^-(t/memory)."""
    average = RecentAverage(2.0)
    average.set(8.0, 10.0)
    assert [average.at(t) for t in (10.0, 12.0, 14.0)] == pytest.approx([0.0, 4.0, 6.0])
    average.set(0.0, 14.0)
    assert average.at(16.0) == pytest.approx(3.0)


def test_answers_that_delay_each_other_say_nothing_of_the_way() -> None:
    """64 clients keep this process busy for 50 ms a round: the network did not become slower by that."""
    node = router("a")
    before = node.states(0.0)[0].rtt_s
    for i in range(64):
        passages = [node.enter("a", 90, 1.0 + i) for _ in range(4)]
        for ticket in passages:
            node.send("a", ticket, 1.0 + i)
        for k, ticket in enumerate(passages[1:]):
            away_s = 0.2 + (0.0 if k == 2 else 0.05)
            node.record_answer("a", 90, 0, 0, away_s, 0.1, word("a"), 1.2 + i, 0.0, ticket)
        for ticket in passages:
            node.leave("a", ticket, 1.3 + i)
    assert node.states(70.0)[0].rtt_s == pytest.approx(before, rel=0.05)


def test_a_way_that_became_slower_is_seen_under_load_too() -> None:
    """Then the quickest of many answers is slower as well."""
    node = router("a")
    for i in range(64):
        passages = [node.enter("a", 90, 1.0 + i) for _ in range(2)]
        for ticket in passages:
            node.send("a", ticket, 1.0 + i)
        node.record_answer("a", 90, 0, 0, 0.4, 0.1, word("a"), 1.4 + i, 0.0, passages[1])
        for ticket in passages:
            node.leave("a", ticket, 1.4 + i)
    assert node.states(70.0)[0].rtt_s == pytest.approx(0.3, rel=0.05)
