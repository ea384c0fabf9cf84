"""Messengers of a test and what each reported."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from queue import Queue

import pytest

from pliant.cluster.control.messages import AnyMessage
from pliant.cluster.control.messenger import Messenger
from pliant.cluster.net.key import Key, new_key

PATIENT_S = 60.0
Event = tuple[str, str, AnyMessage | None]


class Member:
    """A messenger and what it reported, in order."""

    def __init__(
        self,
        name: str,
        key: Key,
        listen: str | None = None,
        silence_s: float = 10.0,
        on_message: Callable[[str, AnyMessage], None] | None = None,
    ) -> None:
        self.events: Queue[Event] = Queue()
        self.messenger = Messenger(
            name,
            key,
            listen,
            on_message=on_message or (lambda peer, message: self.events.put(("said", peer, message))),
            on_silence=lambda peer: self.events.put(("silent", peer, None)),
            on_peer=lambda peer: self.events.put(("came", peer, None)),
            silence_s=silence_s,
        )

    def until(self, what: str, peer: str) -> AnyMessage | None:
        """Wait for that event, over others."""
        while True:
            event = self.events.get(timeout=PATIENT_S)
            if event[:2] == (what, peer):
                return event[2]


def soon(is_so: Callable[[], bool]) -> None:
    """Wait until it is so."""
    until_s = time.monotonic() + PATIENT_S
    while not is_so():
        assert time.monotonic() < until_s
        threading.Event().wait(0.02)


@pytest.fixture
def start() -> Iterator[Callable[..., Member]]:
    with ExitStack() as stack:

        def member(*args: object, **options: object) -> Member:
            made = Member(*args, **options)  # type: ignore[arg-type]
            stack.enter_context(made.messenger)
            return made

        yield member


@pytest.fixture
def pair(start: Callable[..., Member]) -> tuple[Member, Member]:
    """One that listens and one that knocked, each heard by the other."""
    key = new_key()
    ada = start("ada", key, "127.0.0.1:0")
    bob = start("bob", key)
    assert ada.messenger.address is not None
    bob.messenger.connect(ada.messenger.address)
    ada.until("came", "bob")
    bob.until("came", "ada")
    return ada, bob
