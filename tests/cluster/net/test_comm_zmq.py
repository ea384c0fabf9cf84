"""What the wire of the ZeroMQ engine must survive: garbage, strangers, lies, processes that die or stop."""

import os
import secrets
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
import zmq

from pliant.cluster.net.comm import Tag
from pliant.cluster.net.comm_zmq import ZmqComm
from pliant.cluster.net.frame import PIECE_BYTES, pack
from pliant.cluster.net.key import Key, make_key, new_key
from pliant.errors import ClusterError, PeerLostError, PeerProtocolError

PATIENT_S = 60.0

Start = Callable[..., ZmqComm]


@pytest.fixture
def key(tmp_path: Path) -> Key:
    return make_key(tmp_path / "key")


@pytest.fixture
def start(key: Key) -> Iterator[Start]:
    with ExitStack() as stack:

        def member(name: str, with_key: Key = key, **options: float) -> ZmqComm:
            return stack.enter_context(ZmqComm(name, with_key, **options))  # type: ignore[arg-type]

        yield member


def _exchange(src: ZmqComm, dst: ZmqComm, epoch: int = 9) -> None:
    """Assert that `src` can still be understood by `dst`."""
    sent = np.arange(100, dtype=np.int32)
    got = np.zeros_like(sent)
    src.connect(dst.name, dst.address)
    src.send(dst.name, Tag(epoch, 0, 0), sent)
    dst.receive(src.name, Tag(epoch, 0, 0), got, PATIENT_S)
    assert np.array_equal(got, sent)


def _raw(address: str, data: bytes) -> None:
    """Send bytes to a member's port and wait until it hangs up, or says nothing more."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=PATIENT_S)
    with connection as s, suppress(OSError):  # it may hang up in the middle
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
        while s.recv(4096):
            pass


_GREETING = b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03\x01"
_GARBAGE = {
    "nothing": b"",
    "one byte": b"\0",
    "random": secrets.token_bytes(5000),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(190),
    "zeros": bytes(100_000),
    "ones": b"\xff" * 100_000,
    "no mechanism": _GREETING + b"NULL".ljust(20, b"\0") + b"\0" * 32 + b"\x04\x1a\x05READY" + bytes(20),
    "plain": _GREETING + b"PLAIN".ljust(20, b"\0") + b"\0" * 32 + b"\x04\x0c\x05HELLO\x02me\x02pw",
    "half a handshake": _GREETING + b"CURVE".ljust(20, b"\0") + b"\0" * 32 + b"\x04\xc8\x05HELLO" + bytes(50),
    "huge length": _GREETING
    + b"CURVE".ljust(20, b"\0")
    + b"\0" * 32
    + b"\x06"
    + b"\x7f"
    + b"\xff" * 7
    + bytes(99),
    "another zmtp": b"\xff" + b"\0" * 8 + b"\x7f" + b"\x09\x09" + bytes(60),
}


def _frame(src: str, step: int, n_bytes: int) -> bytearray:
    return next(pack(src, Tag(0, 0, step), np.zeros(n_bytes, np.uint8), b""))


@pytest.mark.parametrize("what", _GARBAGE)
def test_bytes_of_another_protocol_do_no_harm(start: Start, what: str) -> None:
    """Port scanners, browsers and broken peers reach every open port."""
    ada, bob = start("ada"), start("bob")
    for _ in range(3):
        _raw(bob.address, _GARBAGE[what])
    _exchange(ada, bob)
    assert dict(bob.counters) == {"ada": bob.counters["ada"]}


def test_what_ends_a_connection_leaves_no_memory_behind(start: Start) -> None:
    """A message that announces gigabytes must not be given room for them."""
    psutil = pytest.importorskip("psutil")
    ada, bob = start("ada"), start("bob")
    _exchange(ada, bob, 0)
    before = psutil.Process().memory_info().rss
    for _ in range(50):
        _raw(bob.address, _GARBAGE["huge length"])
    assert psutil.Process().memory_info().rss - before < 64 << 20
    _exchange(ada, bob, 1)


def _client(server: ZmqComm, server_key: Key, client: Key | None) -> zmq.Socket[bytes]:
    """A socket as a member has it, with these keys."""
    made = zmq.Context.instance().socket(zmq.PUSH)
    made.linger = 0
    if client is not None:
        made.curve_serverkey = server_key.public
        made.curve_publickey, made.curve_secretkey = client.public, client.secret
    made.connect(server.address)
    return made


@pytest.mark.parametrize("who", ["no key", "a key of its own", "another cluster"])
def test_who_does_not_hold_the_key_is_not_heard(start: Start, key: Key, who: str) -> None:
    """Loopback too. A key of its own: it knows the cluster's public half, and proves another secret."""
    ada, bob = start("ada"), start("bob")
    server_key = new_key() if who == "another cluster" else key
    stranger = _client(bob, server_key, None if who == "no key" else new_key())
    try:
        with suppress(zmq.Again):  # a socket that was refused before it sends would wait for ever
            stranger.send(bytes(_frame("ada", 0, 4)), zmq.DONTWAIT)
        _exchange(ada, bob)
        with pytest.raises(PeerLostError, match="waited"):
            bob.receive("ada", Tag(0, 0, 0), np.zeros(4, np.uint8), 0.5)
    finally:
        stranger.close()


def test_another_cluster_key_is_named_as_a_reason(start: Start) -> None:
    """The commonest mistake of all: a key file that was not copied."""
    bob = start("bob")
    eve = start("eve", new_key(), send_timeout_s=1.0)
    eve.connect("bob", bob.address)
    with pytest.raises(PeerLostError, match=r"another (cluster )?key") as caught:
        eve.send("bob", Tag(0, 0, 0), np.zeros(4, np.uint8))
    assert caught.value.peer == "bob"


@pytest.fixture
def liar(start: Start, key: Key) -> Iterator[tuple[ZmqComm, Callable[[bytes], None]]]:
    """A member that is connected to nobody, and a way for one that holds the key to send it any frame."""
    bob = start("bob")
    made = _client(bob, key, key)
    yield bob, made.send
    made.close()


def test_another_version_is_refused_and_counted(
    liar: tuple[ZmqComm, Callable[[bytes], None]], start: Start
) -> None:
    """A name in a frame of another version cannot be relied on."""
    bob, send = liar
    frame = _frame("eve", 0, 4)
    frame[4] += 2  # neighbouring versions are understood
    send(bytes(frame))
    send(b"")
    send(b"hello")
    send(bytes(_frame("eve", 1, 4)))
    bob.receive("eve", Tag(0, 0, 1), np.zeros(4, np.uint8), PATIENT_S)
    assert bob.n_refused == 3
    with pytest.raises(PeerLostError, match="waited"):
        bob.receive("eve", Tag(0, 0, 0), np.zeros(4, np.uint8), 0.01)


@pytest.mark.parametrize("damage", ["short", "long", "note"])
def test_a_frame_that_does_not_add_up_is_refused_by_name(
    liar: tuple[ZmqComm, Callable[[bytes], None]], start: Start, damage: str
) -> None:
    """The plan leaves that worker out; the others go on."""
    bob, send = liar
    frame = _frame("eve", 0, 400)
    if damage == "note":
        frame[6:8] = b"\xff\xff"
    send(bytes(frame[:-1] if damage == "short" else frame + b"x" if damage == "long" else frame))
    with pytest.raises(
        PeerProtocolError, match=r"eve sent bob a frame of [0-9]+ bytes that promises"
    ) as caught:
        bob.receive("eve", Tag(0, 0, 0), np.zeros(400, np.uint8), PATIENT_S)
    assert caught.value.peer == "eve"
    _exchange(start("ada"), bob)


def test_a_frame_over_the_limit_ends_that_connection_alone(
    liar: tuple[ZmqComm, Callable[[bytes], None]], start: Start
) -> None:
    """Memory is given for no more than the limit, whatever a peer sends."""
    bob, send = liar
    send(bytes(10_000_000))
    _exchange(start("ada"), bob)
    assert bob.n_refused == 0  # it never became a message


def test_a_lost_piece_loses_that_message_alone(liar: tuple[ZmqComm, Callable[[bytes], None]]) -> None:
    """A connection that broke in the middle, or a send that was given up, leaves the next one whole."""
    bob, send = liar
    frames = list(pack("eve", Tag(0, 0, 0), np.zeros(4 * PIECE_BYTES, np.uint8), b""))
    for i in (0, 1, 3, 2, 0):
        send(bytes(frames[i]))
    send(bytes(_frame("eve", 1, 4)))
    bob.receive("eve", Tag(0, 0, 1), np.zeros(4, np.uint8), PATIENT_S)
    with pytest.raises(PeerLostError, match="waited"):
        bob.receive("eve", Tag(0, 0, 0), np.zeros(4 * PIECE_BYTES, np.uint8), 0.01)
    for frame in frames:
        send(bytes(frame))
    bob.receive("eve", Tag(0, 0, 0), np.zeros(4 * PIECE_BYTES, np.uint8), PATIENT_S)


def test_a_message_over_the_limit_is_refused_by_name(start: Start) -> None:
    """Members with other limits must hear of it, not wait."""
    bob = start("bob", max_message_bytes=10_000)
    eve = start("eve")
    eve.connect("bob", bob.address)
    eve.send("bob", Tag(0, 0, 0), np.zeros(1_000_000, np.uint8))
    with pytest.raises(PeerProtocolError, match=r"eve sent bob .* 1,000,000 bytes; the limit is 10,000"):
        bob.receive("eve", Tag(0, 0, 0), np.zeros(1_000_000, np.uint8), PATIENT_S)
    _exchange(start("ada"), bob)
    bob.connect("eve", eve.address)
    with pytest.raises(ClusterError, match="10,001 bytes, the limit is 10,000"):
        bob.send("eve", Tag(0, 0, 0), np.zeros(10_001, np.uint8))


@pytest.mark.parametrize(
    "address", ["", "x", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:-1", "203.0.113.1:1234"]
)
def test_an_address_that_cannot_be_listened_at_is_refused(key: Key, address: str) -> None:
    """The message names it, and nothing is left open."""
    with pytest.raises(ClusterError, match="address"):
        ZmqComm("ada", key, address)


def test_a_port_that_is_taken_is_refused(key: Key, start: Start) -> None:
    """Two workers on one device."""
    with pytest.raises(ClusterError, match=r"cannot listen at .*in use"):
        ZmqComm("bob", key, start("ada").address)


def test_a_name_of_no_length_or_too_long_is_refused(key: Key) -> None:
    """It travels in every message."""
    for name in ("", "x" * 256):
        with pytest.raises(ClusterError, match="1 to 255 bytes"):
            ZmqComm(name, key)


_WORKER = """
import sys
from pathlib import Path
import numpy as np
from pliant.cluster.net.comm import Tag
from pliant.cluster.net.comm_zmq import ZmqComm
from pliant.cluster.net.key import read_key
comm = ZmqComm("bob", read_key(Path(sys.argv[1])))
comm.connect("ada", sys.argv[2])
comm.send("ada", Tag(0, 0, 0), np.frombuffer(comm.address.encode().ljust(64), np.uint8))
sys.stdin.read()
"""


@pytest.fixture
def worker(tmp_path: Path, start: Start) -> Iterator[tuple[ZmqComm, subprocess.Popen[bytes]]]:
    """A member here, and one in another process, which sent its address."""
    ada = start("ada")
    command = [sys.executable, "-c", _WORKER, str(tmp_path / "key"), ada.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ) as process:
        try:
            address = np.zeros(64, np.uint8)
            ada.receive("bob", Tag(0, 0, 0), address, PATIENT_S)
            ada.connect("bob", address.tobytes().decode().strip())
            ada.send("bob", Tag(0, 0, 0), np.zeros(1))
            yield ada, process
        finally:
            process.kill()


def test_a_killed_process_is_noticed_without_any_time_out(
    worker: tuple[ZmqComm, subprocess.Popen[bytes]],
) -> None:
    """The kernel closes its connections, and that is heard."""
    ada, process = worker
    process.kill()
    with pytest.raises(PeerLostError, match=r"bob at .* has ended its connection") as caught:
        ada.receive("bob", Tag(0, 0, 1), np.zeros(1), 10 * PATIENT_S)
    assert caught.value.peer == "bob"


def test_a_frozen_process_holds_up_neither_receiver_nor_sender_for_ever(
    worker: tuple[ZmqComm, subprocess.Popen[bytes]],
) -> None:
    """And what is sent to it does not pile up in memory."""
    ada, process = worker
    process.send_signal(signal.SIGSTOP)
    ada.send_timeout_s = 1.0  # from here on: its handshake may take longer on a busy machine
    with pytest.raises(PeerLostError, match=r"waited 0.3 s"):
        ada.receive("bob", Tag(0, 0, 1), np.zeros(1), 0.3)
    big = np.zeros(16 << 20, np.uint8)
    steps = iter(range(100))
    with pytest.raises(PeerLostError, match="took nothing for 1 s"):
        deque((ada.send("bob", Tag(0, 1, step), big) for step in steps), maxlen=0)
    assert next(steps) < 50


def test_a_peer_that_is_connected_to_again_is_heard_after_a_violation(start: Start) -> None:
    """Its connection is the same, and the error outlived the plan that had caused it."""
    ada, bob = start("ada", max_message_bytes=1000), start("bob")
    ada.connect("bob", bob.address)
    _exchange(bob, ada)
    bob.send("ada", Tag(9, 0, 1), np.zeros(2000, np.uint8))
    with pytest.raises(PeerProtocolError, match="promises 2,000 bytes"):
        ada.receive("bob", Tag(9, 0, 1), np.zeros(2000, np.uint8), PATIENT_S)
    _exchange(ada, bob, 10)
