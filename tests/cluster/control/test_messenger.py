"""Control messages and silence between members of one process."""

import os
import queue
import re
import threading
from collections.abc import Callable

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
from pliant.cluster.net.key import new_key
from pliant.cluster.watch.peer_roster import MAX_PEERS
from pliant.errors import ClusterError, PeerLostError
from pliant.ir.envelope import LIMIT_BYTES, VERSION, Envelope
from pliant.ir.envelope import encode as encode_envelope
from tests.cluster.control.messengers import PATIENT_S, Member, soon
from tests.cluster.control.messengers import pair as pair
from tests.cluster.control.messengers import start as start
from tests.cluster.hostile import stranger
from tests.cluster.ports import unused_ports


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
    soon(lambda: any("another cluster key" in p for p in eve.messenger.problems))
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
    soon(lambda: any("there is another 'bob' already" in p for p in second.messenger.problems))
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
    """A member whose control is broken must not look alive, nor count on those that it no longer hears."""

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
    bob.until("silent", "ada")
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
    soon(lambda: "bob" in ada.messenger.peers)
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


def test_another_version_is_refused_by_name_and_others_are_heard(start: Callable[..., Member]) -> None:
    """A device that was not updated must be told, not guessed at; garbage of a key holder does no harm."""
    key = new_key()
    ada = start("ada", key, "127.0.0.1:0")
    far = encode_envelope(Envelope(VERSION + 4, "old", 1, Heartbeat()))
    with stranger(key, ada.messenger.address) as socket:
        for message in ([b""], [b"", b""], [b"hello"], [os.urandom(1000)], [far]):
            socket.send_multipart(message)
        soon(lambda: any(f"'old' speaks version {VERSION + 4}" in p for p in ada.messenger.problems))
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
    soon(lambda: any(re.search(clash, p) for p in second.messenger.problems))
    assert first.messenger.problems == ()
    assert first.messenger.peers == ("w",)
