"""Control messages and silence between members in this process, and others that are killed or stopped."""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty, Queue

import pytest

from pliant.cluster.control import control_frame
from pliant.cluster.control.message_codec import decode, encode
from pliant.cluster.control.messages import (
    AnyMessage,
    Heartbeat,
    JoinRefusal,
    SegmentFailure,
    UnreadableMessage,
)
from pliant.cluster.control.messenger import Messenger
from pliant.cluster.net.key import Key, make_key, new_key
from pliant.cluster.watch.peer_roster import MAX_PEERS
from pliant.errors import ClusterError, PeerLostError
from pliant.ir.envelope import LIMIT_BYTES, VERSION, Envelope
from pliant.ir.envelope import encode as encode_envelope
from tests.cluster.hostile import stranger
from tests.cluster.ports import unused_ports

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


def _soon(is_so: Callable[[], bool]) -> None:
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


def test_messages_go_both_ways_whole_and_in_order(pair: tuple[Member, Member]) -> None:
    """Reports are long, and `go` follows `prepare`."""
    ada, bob = pair
    texts = ["", "x", "y" * 1_000_000, *(str(i) for i in range(300))]
    for src, dst in ((ada, bob), (bob, ada)):
        for text in texts:
            src.messenger.send(dst.messenger.name, JoinRefusal(text))
        for text in texts:
            assert dst.until("said", src.messenger.name) == JoinRefusal(text)


def test_who_is_here_and_when_it_was_heard_can_be_asked(pair: tuple[Member, Member]) -> None:
    """`pliant cluster status` prints it."""
    ada, bob = pair
    assert ada.messenger.peers == ("bob",)
    assert bob.messenger.peers == ("ada",)
    assert ada.messenger.heard_s_ago("bob") < PATIENT_S
    assert ada.messenger.heard_s_ago("eve") == float("inf")
    assert bob.messenger.problems == ()


def test_a_member_that_closes_says_good_bye(pair: tuple[Member, Member]) -> None:
    """Nobody waits for the silence of one that left in order."""
    ada, bob = pair
    bob.messenger.close()
    ada.until("silent", "bob")
    assert ada.messenger.peers == ()
    with pytest.raises(PeerLostError, match="does not hear bob") as caught:
        ada.messenger.send("bob", JoinRefusal("?"))
    assert caught.value.peer == "bob"


def test_a_worker_that_comes_first_knocks_until_somebody_opens(start: Callable[..., Member]) -> None:
    """Workers may be started before the primary, and outlive it."""
    key, (port,) = new_key(), unused_ports(1)
    address = f"127.0.0.1:{port}"
    bob = start("bob", key)
    bob.messenger.connect(address)
    assert any("no response from" in p for p in bob.messenger.problems)
    for _ in range(2):  # the second is a primary that was restarted
        ada = start("ada", key, address)
        bob.until("came", "ada")
        ada.until("came", "bob")
        bob.messenger.send("ada", JoinRefusal("hello"))
        assert ada.until("said", "bob") == JoinRefusal("hello")
        ada.messenger.send("bob", JoinRefusal("welcome"))
        assert bob.until("said", "ada") == JoinRefusal("welcome")
        ada.messenger.close()
        bob.until("silent", "ada")


def test_a_wrong_key_is_never_heard_and_says_so(start: Callable[..., Member]) -> None:
    """Loopback too: without the key there is no message and no name."""
    ada = start("ada", new_key(), "127.0.0.1:0")
    eve = start("eve", new_key())
    eve.messenger.connect(ada.messenger.address)
    _soon(lambda: any("another cluster key" in p for p in eve.messenger.problems))
    assert ada.messenger.peers == ()
    assert eve.messenger.peers == ()
    assert ada.events.empty()


def test_two_of_one_name_do_not_answer_for_each_other(start: Callable[..., Member]) -> None:
    """The second waits until the first is gone."""
    key = new_key()
    ada = start("ada", key, "127.0.0.1:0")
    first, second = start("bob", key), start("bob", key)
    first.messenger.connect(ada.messenger.address)
    ada.until("came", "bob")
    first.until("came", "ada")
    second.messenger.connect(ada.messenger.address)
    _soon(lambda: any("there is another 'bob' already" in p for p in second.messenger.problems))
    assert second.messenger.peers == ()
    assert any("there is another 'bob' already" in p for p in ada.messenger.problems)
    first.messenger.send("ada", JoinRefusal("it is me"))
    assert ada.until("said", "bob") == JoinRefusal("it is me")
    first.messenger.close()
    ada.until("silent", "bob")
    second.until("came", "ada")
    second.messenger.send("ada", JoinRefusal("now I am"))
    assert ada.until("said", "bob") == JoinRefusal("now I am")
    assert second.messenger.problems == ()


def test_a_callback_that_raises_ends_the_messenger(
    start: Callable[..., Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member whose control is broken must not look alive."""

    def fail(peer: str, message: AnyMessage) -> None:
        raise KeyError(message)

    raised: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.put(str(args.exc_value)))
    key = new_key()
    ada = start("ada", key, "127.0.0.1:0")
    bob = start("bob", key, on_message=fail)
    bob.messenger.connect(ada.messenger.address)
    ada.until("came", "bob")
    ada.messenger.send("bob", JoinRefusal("boom"))
    ada.until("silent", "bob")
    assert "boom" in raised.get(timeout=60)
    with pytest.raises(ClusterError, match="bob has closed"):
        bob.messenger.send("ada", JoinRefusal(""))


def test_it_may_be_closed_twice_and_from_a_callback(start: Callable[..., Member]) -> None:
    """`shutdown` arrives as a message."""
    key = new_key()
    ada = start("ada", key, "127.0.0.1:0")
    done = threading.Event()

    def end(peer: str, message: AnyMessage) -> None:
        bob.messenger.close()
        done.set()

    bob = start("bob", key, on_message=end)
    bob.messenger.connect(ada.messenger.address)
    ada.until("came", "bob")
    ada.messenger.send("bob", JoinRefusal("end"))
    assert done.wait(PATIENT_S)
    bob.messenger.close()
    ada.until("silent", "bob")


def test_a_message_that_is_too_long_is_refused_here(pair: tuple[Member, Member]) -> None:
    """The other side would refuse this member for it."""
    with pytest.raises(ValueError, match=f"a Refused of .* bytes is over the limit of {LIMIT_BYTES:,}"):
        pair[0].messenger.send("bob", JoinRefusal("x" * LIMIT_BYTES))


@pytest.mark.parametrize("stray", [encode(JoinRefusal("?"), "bob", 0)[:5], bytes(LIMIT_BYTES + 1)])
def test_what_a_peer_sends_that_is_no_message_is_handed_on_under_its_name(
    start: Callable[..., Member], stray: bytes
) -> None:
    """Whoever reads it refuses the peer; here nobody would know whom to name."""
    key = new_key()
    ada = start("ada", key, "127.0.0.1:0")
    with stranger(key, ada.messenger.address) as socket:
        socket.send(control_frame.pack_first_heartbeat("bob", 0))
        ada.until("came", "bob")
        socket.send(stray)
        found = ada.until("said", "bob")
    assert isinstance(found, UnreadableMessage)
    assert found.why.startswith("bob sent ada ")
    assert not found.is_other_version


def test_floods_of_names_and_garbage_leave_others_heard_and_little_behind(
    start: Callable[..., Member],
) -> None:
    """A process with the key can send anything, any number of times; the memory for it is bounded."""
    key = new_key()
    ada = start("ada", key, "127.0.0.1:0", silence_s=1.0)
    start_of_body = encode(JoinRefusal("?"), "liar", 1)[:16]
    garbage = (os.urandom(2000), start_of_body + b"\x91" * 100_000, start_of_body + b"\xdd" + b"\xff" * 4)
    for _ in range(2):
        with stranger(key, ada.messenger.address) as socket:
            socket.send(control_frame.pack_first_heartbeat("liar", 1))
            for number in range(2 * MAX_PEERS):
                socket.send(control_frame.pack_first_heartbeat(f"n{number}", number))
                socket.send(garbage[number % 3])
    bob = start("bob", key)
    bob.messenger.connect(ada.messenger.address)
    _soon(lambda: "bob" in ada.messenger.peers)
    assert len(ada.messenger.peers) <= MAX_PEERS
    assert len(ada.messenger.problems) <= 16
    assert all(len(problem) < 1000 for problem in ada.messenger.problems)


def test_a_member_of_the_version_before_is_answered_in_its_form(start: Callable[..., Member]) -> None:
    """It knows no envelopes; a cluster is upgraded a device at a time."""
    key = new_key()
    ada = start("ada", key, "127.0.0.1:0")
    with stranger(key, ada.messenger.address) as socket:
        socket.send(control_frame.pack(Heartbeat(), "old", 0))
        ada.until("came", "old")
        socket.send(control_frame.pack(JoinRefusal("?"), "old", 0))
        assert ada.until("said", "old") == JoinRefusal("?")
        ada.messenger.send("old", JoinRefusal("!"))
        while (data := socket.recv())[:4] == control_frame.MAGIC and decode(data).body == Heartbeat():
            pass
        assert data == control_frame.pack(JoinRefusal("!"), "ada", decode(data).incarnation)


def test_two_members_of_this_version_speak_in_envelopes_once_one_has_knocked(
    start: Callable[..., Member],
) -> None:
    """Letters are for strangers, and for the version before."""
    key = new_key()
    ada = start("ada", key, "127.0.0.1:0")
    with stranger(key, ada.messenger.address) as socket:
        socket.send(control_frame.pack_first_heartbeat("bob", 0))
        assert decode(data := socket.recv()).version == VERSION
        assert not data.startswith(control_frame.MAGIC)
        newer = Envelope(VERSION + 1, "bob", 0, SegmentFailure(1, 2, None, False, "of the next version"))
        socket.send(encode_envelope(newer))
        assert ada.until("said", "bob") == newer.body


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
        _soon(lambda: ada.messenger.peers == ())


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
        _soon(lambda: ada.messenger.peers == ())
    finally:
        process.send_signal(signal.SIGCONT)
    ada.until("came", "bob")
    _ask(ada, "again")


def test_another_version_is_refused_by_name_and_others_are_heard(start: Callable[..., Member]) -> None:
    """A device that was not updated must be told, not guessed at; garbage of a key holder does no harm."""
    key = new_key()
    ada = start("ada", key, "127.0.0.1:0")
    far = encode_envelope(Envelope(VERSION + 4, "old", 1, Heartbeat()))
    with stranger(key, ada.messenger.address) as socket:
        for message in ([b""], [b"", b""], [b"hello"], [os.urandom(1000)], [far]):
            socket.send_multipart(message)
        _soon(lambda: any(f"'old' speaks version {VERSION + 4}" in p for p in ada.messenger.problems))
        said = decode(socket.recv()).body
        assert "a stranger sent ada" in getattr(said, "reason", "")
    bob = start("bob", key)
    bob.messenger.connect(ada.messenger.address)
    ada.until("came", "bob")
    assert ada.messenger.peers == ("bob",)


def test_a_clash_of_names_is_told_to_the_one_that_was_knocked_at(start: Callable[..., Member]) -> None:
    """Two primaries of one name on one machine: the second must learn why no worker joins it."""
    key = new_key()
    first, second = start("primary", key, "127.0.0.1:0"), start("primary", key, "127.0.0.1:0")
    worker = start("w", key)
    worker.messenger.connect(first.messenger.address)
    worker.until("came", "primary")
    worker.messenger.connect(second.messenger.address)
    clash = r"w does not admit primary: there is another 'primary' already: .* another --name"
    _soon(lambda: any(re.search(clash, p) for p in second.messenger.problems))
    assert first.messenger.problems == ()
    assert first.messenger.peers == ("w",)
