"""Which connection makes room for another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.serve.http.connections.connection_limiter import ConnectionLimiter
from pliant.serve.http.limits import Limits

LIMITS = Limits(n_connections=6, n_client_connections=4, n_reserved_connections=2)


class Connection:
    """One that says whether it was evicted."""

    def __init__(self, name: object = "") -> None:
        self.name = name
        self.is_evicted = False

    def evict(self) -> None:
        assert not self.is_evicted
        self.is_evicted = True


def entered(limiter: ConnectionLimiter, address: str, n: int) -> list[Connection]:
    made = [Connection(i) for i in range(n)]
    for connection in made:
        limiter.enter(connection, address)
    return made


def evicted(connections: list[Connection]) -> list[object]:
    return [connection.name for connection in connections if connection.is_evicted]


def test_half_sent_heads_push_each_other_out() -> None:
    """A thousand of them put every request at 503 for as long as a head may take."""
    limiter = ConnectionLimiter(LIMITS)
    flood = entered(limiter, "a", 1000)
    assert evicted(flood) == list(range(996))
    assert limiter.enter(Connection(), "b")


def test_the_address_with_most_connections_makes_room() -> None:
    """Whoever holds one connection is not closed for a stranger who opens hundreds."""
    limiter = ConnectionLimiter(LIMITS)
    (quiet,), flood = entered(limiter, "quiet", 1), entered(limiter, "a", 4) + entered(limiter, "b", 4)
    assert not quiet.is_evicted
    assert len(evicted(flood)) == 3


def test_what_has_brought_no_request_goes_before_what_has() -> None:
    """Of one address, an idle connection that a client keeps is worth more than a half-sent head."""
    limiter = ConnectionLimiter(LIMITS)
    kept, head, body = entered(limiter, "a", 3)
    limiter.mark_busy(kept)
    limiter.mark_idle(kept)
    limiter.mark_reading(body)
    late = entered(limiter, "a", 2)
    assert head.is_evicted
    assert evicted([kept, body, *late]) == []
    for connection in late:
        limiter.mark_busy(connection)
    assert limiter.enter(Connection(), "a")
    assert kept.is_evicted
    assert not body.is_evicted


def test_a_request_that_is_answered_is_never_closed_and_others_may_ask_for_health() -> None:
    """An orchestrator that hears nothing of a busy node would kill it."""
    limiter = ConnectionLimiter(LIMITS)
    busy = entered(limiter, "a", 4) + entered(limiter, "b", 2)
    for connection in busy:
        limiter.mark_busy(connection)
    asking = [Connection(i) for i in range(50)]
    assert [limiter.enter(connection, "c") for connection in asking] == [False] * 50
    assert evicted(busy) == []
    assert evicted(asking) == list(range(48))
    assert len(limiter) == 8
    limiter.leave(busy[0])
    assert limiter.enter(Connection(), "c")


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.sampled_from(["enter", "mark_reading", "mark_busy", "mark_idle", "leave"]),
        )
    )
)
def test_the_bounds_hold_whatever_happens(events: list[tuple[str, str]]) -> None:
    """In all, for each address, and no connection is evicted twice or counted after it left."""
    limiter = ConnectionLimiter(LIMITS)
    here: dict[str, list[Connection]] = {name: [] for name in "abc"}
    for address, event in events:
        if event == "enter":
            connection = Connection()
            if limiter.enter(connection, address):
                here[address].append(connection)
        elif here[address]:
            getattr(limiter, event)(here[address][-1])
            if event == "leave":
                here[address].pop()
        for name in here:
            here[name] = [connection for connection in here[name] if not connection.is_evicted]
        assert all(len(those) <= LIMITS.n_client_connections for those in here.values())
        assert sum(map(len, here.values())) <= LIMITS.n_connections
        assert len(limiter) <= LIMITS.n_connections + LIMITS.n_reserved_connections


@pytest.mark.parametrize("n", [1, 3])
def test_leaving_twice_counts_once(n: int) -> None:
    """A connection that is evicted hears of its end again when it is closed."""
    limiter = ConnectionLimiter(LIMITS)
    for connection in entered(limiter, "a", n):
        limiter.leave(connection)
        limiter.leave(connection)
    assert len(limiter) == 0
