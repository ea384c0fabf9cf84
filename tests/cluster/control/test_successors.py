"""Primaries that follow one another at an address, and say no good-bye that is heard."""

from collections.abc import Iterator
from queue import Queue

import pytest

from pliant.cluster.control.message_codec import encode
from pliant.cluster.control.messages import AnyMessage, Heartbeat, JoinRefusal
from pliant.cluster.control.messenger import Messenger
from pliant.cluster.net.key import new_key
from pliant.cluster.net.zmq_sockets import Socket
from pliant.ir.envelope import VERSION
from tests.cluster.hostile import listener

Events = Queue[tuple[str, str]]
PATIENT_S = 60.0


@pytest.fixture
def worker() -> Iterator[tuple[Events, Socket, bytes]]:
    """What a member reports that knocks at a socket, which is patient, and its name on that socket."""
    key, events = new_key(), Events()
    with (
        listener(key) as (socket, address),
        Messenger(
            "bob",
            key,
            on_message=lambda peer, message: events.put((str(getattr(message, "reason", "")), peer)),
            on_peer=lambda peer: events.put(("came", peer)),
            on_silence=lambda peer: events.put(("silent", peer)),
            silence_s=10 * PATIENT_S,
        ) as bob,
    ):
        bob.connect(address)
        way, _ = socket.recv_multipart()
        yield events, socket, way


def _say(socket: Socket, way: bytes, name: str, incarnation: int, message: AnyMessage) -> None:
    socket.send_multipart([way, encode(message, name, incarnation, VERSION)])


@pytest.mark.parametrize("name", ["eve", "ada"], ids=["another name", "the same name"])
def test_a_successor_at_an_address_ends_the_peer_before_it(
    worker: tuple[Events, Socket, bytes], name: str
) -> None:
    """A worker that still waits for a primary that is gone refuses to work for the next one."""
    events, socket, way = worker
    _say(socket, way, "ada", 1, Heartbeat())
    assert events.get(timeout=PATIENT_S) == ("came", "ada")
    _say(socket, way, name, 2, JoinRefusal("first"))
    assert [events.get(timeout=PATIENT_S) for _ in range(3)] == [
        ("silent", "ada"),
        ("came", name),
        ("first", name),
    ]


def test_what_was_sent_before_a_successor_came_does_not_bring_the_peer_back(
    worker: tuple[Events, Socket, bytes],
) -> None:
    """Two connections to one address are read in turns: the last words of the old one may come late."""
    events, socket, way = worker
    for incarnation in range(1, 20):
        _say(socket, way, f"n{incarnation}", incarnation, Heartbeat())
        _say(socket, way, f"n{incarnation - 1}", incarnation - 1, JoinRefusal("late"))
    _say(socket, way, "n19", 19, JoinRefusal("last"))
    seen = []
    while not seen or seen[-1][0] != "last":
        seen.append(events.get(timeout=PATIENT_S))
    assert [what for what in seen if what[0] == "late"] == [("late", "n0")]  # n0 was never heard before
    assert [peer for what, peer in seen if what == "came"].count("n19") == 1
