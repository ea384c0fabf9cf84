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


def entered(places: ConnectionLimiter, address: str, n: int) -> list[Connection]:
    made = [Connection(i) for i in range(n)]
    for connection in made:
        places.enter(connection, address)
    return made


def evicted(connections: list[Connection]) -> list[object]:
    return [connection.name for connection in connections if connection.is_evicted]


def test_half_sent_heads_push_each_other_out() -> None:
    """A thousand of them put every request at 503 for as long as a head may take."""
    places = ConnectionLimiter(LIMITS)
    flood = entered(places, "a", 1000)
    assert evicted(flood) == list(range(996))
    assert places.enter(Connection(), "b")


def test_the_address_with_most_connections_makes_room() -> None:
    """Whoever holds one connection is not closed for a stranger who opens hundreds."""
    places = ConnectionLimiter(LIMITS)
    (quiet,), flood = entered(places, "quiet", 1), entered(places, "a", 4) + entered(places, "b", 4)
    assert not quiet.is_evicted
    assert len(evicted(flood)) == 3


def test_what_has_brought_no_request_goes_before_what_has() -> None:
    """Of one address, an idle connection that a client keeps is worth more than a half-sent head."""
    places = ConnectionLimiter(LIMITS)
    kept, head, body = entered(places, "a", 3)
    places.works(kept)
    places.waits(kept)
    places.reads(body)
    late = entered(places, "a", 2)
    assert head.is_evicted
    assert evicted([kept, body, *late]) == []
    for connection in late:
        places.works(connection)
    assert places.enter(Connection(), "a")
    assert kept.is_evicted
    assert not body.is_evicted


def test_a_request_that_is_answered_is_never_closed_and_others_may_ask_for_health() -> None:
    """An orchestrator that hears nothing of a busy node would kill it."""
    places = ConnectionLimiter(LIMITS)
    busy = entered(places, "a", 4) + entered(places, "b", 2)
    for connection in busy:
        places.works(connection)
    asking = [Connection(i) for i in range(50)]
    assert [places.enter(connection, "c") for connection in asking] == [False] * 50
    assert evicted(busy) == []
    assert evicted(asking) == list(range(48))
    assert len(places) == 8
    places.leave(busy[0])
    assert places.enter(Connection(), "c")


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["enter", "reads", "works", "waits", "leave"]))
    )
)
def test_the_bounds_hold_whatever_happens(events: list[tuple[str, str]]) -> None:
    """In all, for each address, and no connection is evicted twice or counted after it left."""
    places = ConnectionLimiter(LIMITS)
    here: dict[str, list[Connection]] = {name: [] for name in "abc"}
    for address, event in events:
        if event == "enter":
            connection = Connection()
            if places.enter(connection, address):
                here[address].append(connection)
        elif here[address]:
            getattr(places, event)(here[address][-1])
            if event == "leave":
                here[address].pop()
        for name in here:
            here[name] = [connection for connection in here[name] if not connection.is_evicted]
        assert all(len(those) <= LIMITS.n_client_connections for those in here.values())
        assert sum(map(len, here.values())) <= LIMITS.n_connections
        assert len(places) <= LIMITS.n_connections + LIMITS.n_reserved_connections


@pytest.mark.parametrize("n", [1, 3])
def test_leaving_twice_counts_once(n: int) -> None:
    """A connection that is evicted hears of its end again when it is closed."""
    places = ConnectionLimiter(LIMITS)
    for connection in entered(places, "a", n):
        places.leave(connection)
        places.leave(connection)
    assert len(places) == 0
