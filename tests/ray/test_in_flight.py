"""What a router counts on a replica's queue."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("ray", reason="ray is not installed: pip install 'pliant[ray]'")
from pliant.ray.in_flight import InFlight


def test_the_first_request_is_at_work_and_the_others_wait() -> None:
    """What is left of it shrinks with time, down to nothing; the others keep all of theirs."""
    found: InFlight[str] = InFlight()
    found.sent("a", "r", 2.0, now_s=10.0)
    found.sent("b", "r", 3.0, now_s=11.0)
    assert [found.backlog_s("r", t) for t in (11.0, 11.5, 12.0, 20.0)] == [4.0, 3.5, 3.0, 3.0]
    found.ended("a", "r", now_s=20.0)
    assert [found.backlog_s("r", t) for t in (20.0, 22.0)] == [3.0, 1.0]
    assert found.backlog_s("other", 20.0) == 0.0


def test_a_request_is_at_one_replica() -> None:
    """The end that a replica tells of a request that has gone elsewhere meanwhile changes nothing."""
    found: InFlight[str] = InFlight()
    found.sent("a", "full", 2.0, now_s=0.0)
    found.sent("a", "next", 2.0, now_s=0.0)
    found.ended("a", "full", now_s=0.5)
    assert (found.count("full"), found.count("next")) == (0, 1)
    found.ended("a", "next", now_s=1.0)
    found.ended("a", "next", now_s=1.0)
    assert found.count("next") == 0


def test_what_a_lost_replica_had_is_forgotten() -> None:
    """A replica that comes in its place begins with an empty queue."""
    found: InFlight[str] = InFlight()
    found.sent("a", "lost", 2.0, now_s=0.0)
    found.sent("b", "kept", 2.0, now_s=0.0)
    found.keep({"kept"})
    assert (found.count("lost"), found.count("kept")) == (0, 1)
    found.ended("a", "lost", now_s=1.0)
    assert found.backlog_s("lost", 1.0) == 0.0


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("xy"), st.booleans()), max_size=40))
def test_every_request_is_counted_once(events: list[tuple[str, str, bool]]) -> None:
    """Whatever the order of sends and ends, a replica has what was sent there last and has not ended."""
    found: InFlight[str] = InFlight()
    where: dict[str, str] = {}
    for at, (id, replica, is_sent) in enumerate(events):
        if is_sent:
            found.sent(id, replica, 1.0, float(at))
            where[id] = replica
        else:
            found.ended(id, replica, float(at))
            if where.get(id) == replica:
                del where[id]
    for replica in "xy":
        n = sum(at == replica for at in where.values())
        assert found.count(replica) == n
        assert max(n - 1, 0) <= found.backlog_s(replica, float(len(events))) <= n
