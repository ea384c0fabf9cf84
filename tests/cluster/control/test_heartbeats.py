"""Why members send heartbeats of their own, beside those of ZeroMQ, which an interpreter that hangs answers.

Both kinds watch the same two processes, with the same patience.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

import pytest

from pliant.cluster.net.key import make_key

PATIENT_S = 60.0
SILENCE_S = 2.0
_MEMBER = """
import ctypes, sys
from pathlib import Path
from threading import Lock, Thread
from pliant.cluster.control.messenger import Messenger
from pliant.cluster.net.key import read_key
from pliant.cluster.net.zmq_sockets import event, zmq
name, key, silence_s, addresses = sys.argv[1], read_key(Path(sys.argv[2])), float(sys.argv[3]), sys.argv[4:]
lock = Lock()
def say(*words):
    with lock:
        print(*words, flush=True)
def watch():
    while True:
        say("zeromq", "lost" if event(monitor) == zmq.EVENT_DISCONNECTED else "came")
socket = zmq.Context.instance().socket(zmq.DEALER if addresses else zmq.ROUTER)
socket.heartbeat_ivl, socket.heartbeat_timeout = 100, int(silence_s * 1e3)
monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
messenger = Messenger(
    name, key, None if addresses else "127.0.0.1:0", silence_s=silence_s,
    on_message=lambda peer, message: None,
    on_peer=lambda peer: say("ours", "came"), on_silence=lambda peer: say("ours", "lost"),
)
if addresses:
    messenger.connect(addresses[0])
    socket.connect(addresses[1])
else:
    socket.bind("tcp://127.0.0.1:*")
    say(messenger.address, socket.last_endpoint.decode())
Thread(target=watch, daemon=True).start()
for line in sys.stdin:
    ctypes.PyDLL(None).pause()  # holds the interpreter, as native code may that has a bug
"""


class Member:
    """A process with both kinds of heartbeat, and what it says of its peer."""

    def __init__(self, name: str, key: Path, *addresses: str) -> None:
        command = [sys.executable, "-c", _MEMBER, name, str(key), str(SILENCE_S), *addresses]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines: Queue[str] = Queue()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def close(self) -> None:
        self.process.kill()
        self._reader.join()
        with self.process:
            pass

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.put(line.strip())

    def hang(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def until(self, *wanted: str) -> list[str]:
        """What it said until all that is wanted was."""
        said: list[str] = []
        until_s = time.monotonic() + PATIENT_S
        while not set(wanted) <= set(said):
            said.append(self.lines.get(timeout=max(0.0, until_s - time.monotonic())))
        return said

    def during(self, seconds: float) -> list[str]:
        """What it says for so long."""
        said: list[str] = []
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            try:
                said.append(self.lines.get(timeout=left_s))
            except Empty:
                break
        return said


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Member, Member]]:
    """One that listens and one that knocked, each heard by the other in both ways."""
    make_key(tmp_path / "key")
    with ExitStack() as stack:

        def start(name: str, *addresses: str) -> Member:
            member = Member(name, tmp_path / "key", *addresses)
            stack.callback(member.close)
            return member

        ada = start("ada")
        bob = start("bob", *ada.lines.get(timeout=PATIENT_S).split())
        for member in (ada, bob):
            member.until("ours came", "zeromq came")
        yield ada, bob


def test_a_frozen_process_is_noticed_by_both(pair: tuple[Member, Member]) -> None:
    """As far as that goes, ZeroMQ's would do."""
    ada, bob = pair
    bob.process.send_signal(signal.SIGSTOP)
    ada.until("ours lost", "zeromq lost")
    bob.process.send_signal(signal.SIGCONT)
    ada.until("ours came", "zeromq came")


def test_a_process_whose_interpreter_hangs_is_noticed_by_ours_alone(pair: tuple[Member, Member]) -> None:
    """ZeroMQ's are answered by a thread that needs no interpreter: a member that does nothing looks well.

    Then a run would wait for its exchanges, a new plan a minute for its weights, and workers for a primary
    for ever.
    """
    ada, bob = pair
    bob.hang()
    said = ada.until("ours lost") + ada.during(2 * SILENCE_S)
    assert "zeromq lost" not in said
    bob.process.kill()
    ada.until("zeromq lost")
