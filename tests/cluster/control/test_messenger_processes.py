"""A messenger notices a peer process that is killed or stopped, and hears it again."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty

import pytest

from pliant.cluster.control.messages import (
    JoinRefusal,
)
from pliant.cluster.net.key import make_key
from pliant.errors import PeerLostError
from tests.cluster.control.messengers import PATIENT_S, Member, soon
from tests.cluster.control.messengers import start as start

_WORKER = """
import sys
from contextlib import suppress
from pathlib import Path
from pliant.cluster.net.key import read_key
from pliant.cluster.control.messages import JoinRefusal
from pliant.cluster.control.messenger import Messenger
from pliant.errors import PeerLostError
def answer(peer, message):
    with suppress(PeerLostError):  # on a busy machine a second may pass for silence: it is asked again
        messenger.send(peer, JoinRefusal(message.reason + "!"))
messenger = Messenger("bob", read_key(Path(sys.argv[1])), on_message=answer)
messenger.connect(sys.argv[2])
sys.stdin.read()
"""


@pytest.fixture
def worker(
    tmp_path: Path, start: Callable[..., Member]
) -> Iterator[tuple[Member, Callable[[], subprocess.Popen[bytes]]]]:
    """A member here that listens, and a way to start a process that knocks and answers.

    Silence is what is waited for, so it is short.
    """
    key = make_key(tmp_path / "key")
    ada = start("ada", key, "127.0.0.1:0", silence_s=1.0)
    assert ada.messenger.address is not None
    command = [sys.executable, "-c", _WORKER, str(tmp_path / "key"), ada.messenger.address]
    with ExitStack() as stack:

        def launch() -> subprocess.Popen[bytes]:
            process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE))
            stack.callback(process.kill)
            return process

        yield ada, launch


def _ask(ada: Member, text: str) -> None:
    """Until bob answers: on a busy machine either may be silent for a moment, and what was said is lost."""
    until_s = time.monotonic() + PATIENT_S
    while time.monotonic() < until_s:
        with suppress(PeerLostError):
            ada.messenger.send("bob", JoinRefusal(text))
        with suppress(Empty):
            while ada.events.get(timeout=1.0) != ("said", "bob", JoinRefusal(text + "!")):
                pass
            return
    pytest.fail("bob does not answer")


def test_a_killed_process_is_noticed_and_its_successor_is_taken_in(
    worker: tuple[Member, Callable[[], subprocess.Popen[bytes]]],
) -> None:
    """Power comes and goes."""
    ada, launch = worker
    for _ in range(2):
        process = launch()
        ada.until("came", "bob")
        _ask(ada, "hello")
        process.kill()
        ada.until("silent", "bob")
        soon(lambda: ada.messenger.peers == ())


def test_a_frozen_process_is_noticed_and_heard_again_when_it_thaws(
    worker: tuple[Member, Callable[[], subprocess.Popen[bytes]]],
) -> None:
    """TCP stays silent about a stopped process; only heartbeats tell."""
    ada, launch = worker
    process = launch()
    ada.until("came", "bob")
    process.send_signal(signal.SIGSTOP)
    try:
        ada.until("silent", "bob")
        soon(lambda: ada.messenger.peers == ())
    finally:
        process.send_signal(signal.SIGCONT)
    ada.until("came", "bob")
    _ask(ada, "again")
