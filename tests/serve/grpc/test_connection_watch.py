"""Connections of gRPC and messages that have come in part are bounded for each address."""

import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from pliant.serve.grpc import connection_watch
from pliant.serve.http.limits import Limits
from tests.serve.models import Upper
from tests.serve.nodes import ANY_PORT, PATIENCE_S, Running, running
from tests.serve.telemetry.test_grpc_context import infer
from tests.serve.test_routing import until

pytest.importorskip("grpc", reason="grpcio is not installed")
FLOOD = "127.0.0.2"
"""Another address of this machine, so that others are not of the address that floods."""
PART = 60_000
"""Within the window that HTTP/2 begins with (65,535)."""


@contextmanager
def connected(node: Running, n: int) -> Iterator[list[socket.socket]]:
    assert node.grpc is not None
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                socket.create_connection((node.grpc.host, node.grpc.port), PATIENCE_S, (FLOOD, 0))
            )
            for _ in range(n)
        ]


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """As RFC 9113, 4.1."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + struct.pack("!I", stream) + payload


def literal(name: str, value: str) -> bytes:
    """A header that is written out (RFC 7541, 6.2.2)."""
    return b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


def send_part(sock: socket.socket, n_bytes: int = PART) -> None:
    """The first `n_bytes` of a longer message to ModelInfer."""
    headers = b"".join(
        literal(name, value)
        for name, value in (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/inference.GRPCInferenceService/ModelInfer"),
            (":authority", "node"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        )
    )
    message = b"\0" + struct.pack("!I", 2 * PART) + bytes(n_bytes)
    data = b"".join(frame(0, 0, 1, message[at : at + 16_000]) for at in range(0, len(message), 16_000))
    sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, headers) + data)


def ends(sock: socket.socket) -> bool:
    """Wait until the node closes the connection; False where it does not."""
    sock.settimeout(PATIENCE_S)
    try:
        while sock.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def is_open(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        while sock.recv(1 << 16):
            pass
    except BlockingIOError:
        return True
    return False


def test_one_address_has_no_more_connections_than_it_may() -> None:
    """The latest are closed; those before them stay, and others are answered."""
    limits = Limits(n_client_connections=4)
    with running(Upper(), grpc=ANY_PORT, limits=limits) as node, connected(node, 9) as flood:
        assert all(ends(sock) for sock in flood[4:])
        assert all(is_open(sock) for sock in flood[:4])
        assert infer(node, "film")[0] == b"FILM"


def test_connections_are_watched_again_after_a_look_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit of open files the first failure ended the watch, and nothing was limited any more."""
    look, failures = connection_watch.own_sockets, [OSError("too many open files")]

    def flawed() -> Iterator[tuple[int, int]]:
        if failures:
            raise failures.pop()
        return look()

    monkeypatch.setattr(connection_watch, "own_sockets", flawed)
    limits = Limits(n_client_connections=4)
    with running(Upper(), grpc=ANY_PORT, limits=limits) as node:
        until(lambda: not failures)
        with connected(node, 9) as flood:
            assert all(ends(sock) for sock in flood[4:])
            assert all(is_open(sock) for sock in flood[:4])  # else gRPC gave up those that said nothing


def test_messages_that_have_come_in_part_are_bounded_for_one_address() -> None:
    """The oldest makes room, and a client that sends its messages whole is answered meanwhile."""
    limits = Limits(body_bytes=128 << 10, buffer_bytes=1 << 20, client_buffer_bytes=128 << 10)
    with running(Upper(), grpc=ANY_PORT, limits=limits) as node, connected(node, 3) as flood:
        for sock in flood:
            send_part(sock)
        assert ends(flood[0])
        for number in range(5):
            assert infer(node, f"film {number}")[0] == f"FILM {number}".encode()
        assert is_open(flood[1])
        assert is_open(flood[2])


def test_a_message_that_stands_still_is_given_up() -> None:
    """As a body over HTTP is; a connection that lies idle, and one that sent its messages whole, is not."""
    limits = Limits(stall_s=0.3)
    with running(Upper(), grpc=ANY_PORT, limits=limits) as node, connected(node, 2) as (stalled, idle):
        send_part(stalled)
        assert ends(stalled)
        assert is_open(idle)


def test_calls_that_take_long_keep_their_connection() -> None:
    """Long messages of a new connection, before and after it was looked at, belong to no message in part."""
    limits, served, text = Limits(stall_s=0.1), Upper(), "a" * 50_000
    served.max_length = 1 << 20
    with running(served, grpc=ANY_PORT, limits=limits) as node, ThreadPoolExecutor(4) as pool:
        served.gate.clear()
        answers = [pool.submit(infer, node, f"{text}{number}") for number in range(4)]
        until(lambda: served.answered)
        threading.Event().wait(1.0)  # far beyond stall_s
        served.gate.set()
        assert [one.result()[0] for one in answers] == [f"{text}{n}".upper().encode() for n in range(4)]
