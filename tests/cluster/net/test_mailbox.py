"""The inbox alone: what one peer may leave in it."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pliant.cluster.net.comm import Tag
from pliant.cluster.net.mailbox import DataMessage, Mailbox
from pliant.errors import PeerProtocolError


def test_a_peer_cannot_fill_the_memory_with_messages_nobody_asked_for() -> None:
    """A member that runs another plan, or lies, must not end this process."""
    box = Mailbox("bob", unclaimed_limit_bytes=100)
    for step in range(20):
        box.deliver("ada", Tag(0, 0, step), DataMessage((bytes(30),), 30, b""))
    got = np.zeros(30, np.uint8)
    for step in range(3):  # what fitted is still good
        box.receive("ada", Tag(0, 0, step), got, 10)
    with pytest.raises(PeerProtocolError, match="120 bytes that bob never asked for; the limit is 100"):
        box.receive("ada", Tag(0, 0, 3), got, 10)


def test_taking_and_dropping_make_room_again() -> None:
    """The limit is on what lies here, not on what ever came."""
    box = Mailbox("bob", unclaimed_limit_bytes=100)
    got = np.zeros(60, np.uint8)
    for epoch in range(50):
        box.deliver("ada", Tag(epoch, 0, 0), DataMessage((bytes(60),), 60, b""))
        if epoch % 2:
            box.drop(epoch)
        else:
            box.receive("ada", Tag(epoch, 0, 0), got, 10)
    box.deliver("ada", Tag(99, 0, 0), DataMessage((bytes(60),), 60, b"last"))
    assert box.receive("ada", Tag(99, 0, 0), got, 10).note == b"last"


def test_a_message_says_how_long_it_lay_here() -> None:
    """Who was busy when it came must not take its own delay for a slow link."""
    box = Mailbox("bob")
    box.deliver("ada", Tag(0, 0, 0), DataMessage((bytes(4),), 4, b"", arrived_s=time.monotonic() - 5.0))
    assert 5.0 <= box.receive("ada", Tag(0, 0, 0), np.zeros(4, np.uint8), 10).waited_s < 15.0
    with ThreadPoolExecutor(1) as threads:
        got = threads.submit(box.receive, "ada", Tag(0, 0, 1), np.zeros(4, np.uint8), 10)
        box.deliver("ada", Tag(0, 0, 1), DataMessage((bytes(4),), 4, b"now"))
        assert got.result().note == b"now"
