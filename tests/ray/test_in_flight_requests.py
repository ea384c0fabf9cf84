"""What a router counts on a replica's queue."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("ray", reason="ray is not installed: pip install 'pliant[ray]'")
from pliant.ray.in_flight_requests import InFlightRequests


def test_what_is_left_of_a_queue_shrinks_with_time() -> None:
    """In whatever order, or together, its requests are answered; what is late may be late as long again."""
    found: InFlightRequests[str] = InFlightRequests()
    found.record_sent("a", "r", 2.0, now_s=10.0)
    found.record_sent("b", "r", 3.0, now_s=11.0)
    assert [found.backlog_s("r", t) for t in (11.0, 11.5, 12.0, 15.0, 20.0)] == [4.0, 3.5, 3.0, 0.0, 5.0]
    found.record_end("b", "r", now_s=13.0)
    assert [found.backlog_s("r", t) for t in (13.0, 14.0)] == [2.0, 1.0]
    assert found.backlog_s("other", 20.0) == 0.0


def test_a_replica_that_takes_longer_than_expected_has_longer_queues() -> None:
    """Until it has answered nothing for a while: then it gets another chance."""
    found: InFlightRequests[str] = InFlightRequests()
    assert found.slowdown("r", 0.0) == 1.0
    for i in range(40):
        found.record_sent(str(i), "r", 0.1, now_s=0.3 * i)
        found.record_end(str(i), "r", now_s=0.3 * (i + 1))
    now_s = 12.0
    assert 2.7 < found.slowdown("r", now_s) < 3.0  # 0.3 for 0.1, and a little of what was expected before
    found.record_sent("next", "r", 0.1, now_s)
    assert found.backlog_s("r", now_s) == pytest.approx(0.1 * found.slowdown("r", now_s))
    assert 1.0 < found.slowdown("r", now_s + 60.0) < 1.1


def test_requests_that_are_answered_together_share_their_time() -> None:
    """Four in a batch that takes as long as four: none of them is taken to be slow, and none to be quick."""
    found: InFlightRequests[str] = InFlightRequests()
    for i in "abcd":
        found.record_sent(i, "r", 0.1, now_s=1.0)
    for i in "abcd":
        found.record_end(i, "r", now_s=1.4)
    assert found.slowdown("r", 1.4) == pytest.approx(1.0)


def test_a_request_that_was_never_sent_tells_nothing_of_its_replica() -> None:
    """Its client left: that took no time of the replica's."""
    found: InFlightRequests[str] = InFlightRequests()
    found.record_sent("a", "r", 0.1, now_s=1.0)
    found.withdraw("a", "r")
    assert (found.count("r"), found.slowdown("r", 1.0)) == (0, 1.0)


def test_a_replica_that_fails_at_once_is_not_quick() -> None:
    """Else it would be given all requests, to fail them."""
    found: InFlightRequests[str] = InFlightRequests()
    for i in range(100):
        found.record_sent(str(i), "r", 0.1, now_s=1.0)
        found.record_end(str(i), "r", now_s=1.0)
    assert found.slowdown("r", 1.0) == 0.5


def test_a_request_is_at_one_replica() -> None:
    """The end that a replica tells of a request that has gone elsewhere meanwhile changes nothing."""
    found: InFlightRequests[str] = InFlightRequests()
    found.record_sent("a", "full", 2.0, now_s=0.0)
    found.record_sent("a", "next", 2.0, now_s=0.0)
    found.record_end("a", "full", now_s=0.5)
    assert (found.count("full"), found.count("next")) == (0, 1)
    found.record_end("a", "next", now_s=1.0)
    found.record_end("a", "next", now_s=1.0)
    assert found.count("next") == 0


def test_what_a_lost_replica_had_is_forgotten() -> None:
    """A replica that comes in its place begins with an empty queue."""
    found: InFlightRequests[str] = InFlightRequests()
    found.record_sent("a", "lost", 2.0, now_s=0.0)
    found.record_sent("b", "kept", 2.0, now_s=0.0)
    found.keep({"kept"})
    assert (found.count("lost"), found.count("kept")) == (0, 1)
    found.record_end("a", "lost", now_s=1.0)
    assert found.backlog_s("lost", 1.0) == 0.0


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("xy"), st.booleans()), max_size=40))
def test_every_request_is_counted_once(events: list[tuple[str, str, bool]]) -> None:
    """Whatever the order of sends and ends, a replica has what was sent there last and has not ended."""
    found: InFlightRequests[str] = InFlightRequests()
    where: dict[str, str] = {}
    for at, (id, replica, is_sent) in enumerate(events):
        if is_sent:
            found.record_sent(id, replica, 1.0, float(at))
            where[id] = replica
        else:
            found.record_end(id, replica, float(at))
            if where.get(id) == replica:
                del where[id]
    for replica in "xy":
        n = sum(at == replica for at in where.values())
        assert found.count(replica) == n
        assert (found.backlog_s(replica, float(len(events)) + 0.5) > 0.0) == (n > 0)
