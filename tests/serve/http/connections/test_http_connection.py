"""Clients that are slow, endless or not of HTTP, at the socket itself."""

import asyncio
import json
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from pliant.serve.access.security import Tls
from pliant.serve.http.connections.http_connection import protocol_factory
from pliant.serve.http.limits import Limits
from tests.serve.models import Echo, Upper
from tests.serve.nodes import PATIENCE_S, Running, asking, running
from tests.serve.test_routing import until

LIMITS = Limits(
    head_s=PATIENCE_S,
    stall_s=PATIENCE_S,
    body_s=PATIENCE_S,
    write_s=PATIENCE_S,
    head_bytes=2000,
    n_headers=20,
    n_connections=8,
)
"""A test of one wait shortens that one: a client of a busy machine is a slow client too."""


@pytest.fixture(scope="module")
def node() -> Iterator[Running]:
    with running(Upper(), limits=LIMITS) as run:
        yield run


def connect(node: Running) -> socket.socket:
    host, _, port = node.address.partition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def until_closed(sock: socket.socket) -> bytes:
    """All that comes until the other side hangs up; fails where it does not."""
    parts = []
    try:
        while part := sock.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def said(node: Running, *parts: bytes) -> bytes:
    with connect(node) as sock:
        try:
            for part in parts:
                sock.sendall(part)
        except OSError:
            pass  # it has hung up already
        return until_closed(sock)


def answers(node: Running) -> bool:
    return node.post("a").status_code == 200


def answers_in_the_end(node: Running) -> bool:
    """Of a node that is impatient, or full until it has seen others leave."""
    try:
        return answers(node)
    except httpx.HTTPError:
        return False


def test_who_says_nothing_is_hung_up_on() -> None:
    """[crime.damage] a connection costs a place: it is not kept for ever."""
    with running(Upper(), limits=replace(LIMITS, head_s=0.5)) as node:
        assert said(node) == b""


def test_a_head_that_trickles_in_is_cut_off() -> None:
    """[crime.damage] slowloris: each byte comes in time, the head never ends."""
    with running(Upper(), limits=replace(LIMITS, head_s=0.5)) as node, connect(node) as sock:
        sock.sendall(b"GET /v2 HTTP/1.1\r\n")
        started = time.monotonic()
        try:
            while time.monotonic() - started < 30:
                sock.sendall(b"x: y\r\n")
                time.sleep(0.2)
                sock.settimeout(0.001)
                try:
                    answer = sock.recv(4096)
                    break
                except TimeoutError:
                    sock.settimeout(30)
        except OSError:
            answer = b""
        assert time.monotonic() - started < 20
        assert answer == b"" or b" 408 " in answer or b" 431 " in answer
        until(lambda: answers_in_the_end(node))


def test_a_body_that_trickles_in_is_cut_off() -> None:
    """[crime.damage] the same behind a complete head."""
    head = b"POST /v2/models/upper/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n"
    with running(Upper(), limits=replace(LIMITS, body_s=0.5)) as node:
        assert b" 408 " in said(node, head, b"{")
        until(lambda: answers_in_the_end(node))


def test_who_never_reads_an_answer_is_cut_off() -> None:
    """[crime.damage] an answer larger than the system keeps for a client lies in the node's memory."""
    with running(Echo(("float64",)), limits=replace(LIMITS, write_s=0.5)) as node:
        host, _, port = node.address.partition(":")
        n = 1 << 20
        about = {"shape": [1, n], "datatype": "FP64", "parameters": {"binary_data_size": 8 * n}}
        wanted = {"name": "float64", "parameters": {"binary_data": True}}
        head = json.dumps({"inputs": [{"name": "float64", **about}], "outputs": [wanted]}).encode()
        lines = (
            "POST /v2/models/echo/infer HTTP/1.1",
            "host: localhost",
            f"inference-header-content-length: {len(head)}",
            f"content-length: {len(head) + 8 * n}",
        )
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(60)
            sock.connect((host, int(port)))
            sock.sendall("\r\n".join((*lines, "\r\n")).encode() + head + bytes(8 * n))
            until(lambda: node.node is not None and node.node.metrics.text().count(b'outcome="ok"') > 0)
            until(lambda: _is_cut(sock))


def _is_cut(sock: socket.socket) -> bool:
    """Whether the other side is gone, found by what it says to one more byte."""
    try:
        sock.send(b"x")
    except OSError:
        return True
    return False


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /v2 HTTP/1.1\r\nx: " + b"y" * 3000 + b"\r\n\r\n", b" 431 "),
        (b"GET /v2 HTTP/1.1\r\nx: " + b"y" * 100_000, b" 431 "),
        (b"GET /v2 HTTP/1.1\r\n" + b"x: y\r\n" * 30 + b"\r\n", b" 431 "),
        (b"GET /" + b"v" * 3000 + b" HTTP/1.1\r\n\r\n", b" 431 "),
        (b"\x16\x03\x01\x02\x00\x01\x00", b" 400 "),
        (b"hello\r\n\r\n", b" 400 "),
        (b"GET /v2 HTTP/1.1\r\nbad header\r\n\r\n", b" 400 "),
        (b"GET /v2 HTTP/9.9\r\n\r\n", b" 400 "),
        (b"POST /v2 HTTP/1.1\r\ncontent-length: -5\r\n\r\n", b" 400 "),
        (b"POST /v2 HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", b" 400 "),
        (b"POST /v2 HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n", b" 400 "),
        (b"POST /v2 HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", b" 400 "),
    ],
)
def test_heads_that_are_huge_or_none_are_refused(node: Running, head: bytes, status: bytes) -> None:
    """[crime.damage] huge headers, other protocols, and what smuggles one request within another."""
    answer = said(node, head)
    assert status in answer.partition(b"\r\n")[0] or b" 405 " in answer.partition(b"\r\n")[0]
    assert answers(node)


def test_requests_behind_each_other_are_answered_in_order(node: Running) -> None:
    """Pipelining is part of HTTP/1.1."""
    one = b"POST /v2/models/upper/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n%s\r\n%s"
    bodies = [asking(text) for text in ("one", "two")]
    sent = b"".join(
        one % (len(body), b"connection: close\r\n" if body is bodies[-1] else b"", body) for body in bodies
    )
    answer = said(node, sent)
    assert answer.count(b" 200 OK") == 2
    assert answer.index(b"ONE") < answer.index(b"TWO")


def test_a_connection_is_used_again(node: Running) -> None:
    """A new one for each request would cost its round trips."""
    ports = set()
    with httpx.Client(base_url=node.url, timeout=PATIENCE_S) as client:
        for _ in range(3):
            answer = client.get("/v2")
            assert answer.status_code == 200
            ports.add(answer.extensions["network_stream"].get_extra_info("client_addr"))
    assert len(ports) == 1


def test_a_node_speaks_tls_with_its_certificate(tmp_path: Path) -> None:
    """And a client that trusts another authority hangs up."""
    trustme = pytest.importorskip("trustme", reason="trustme, which makes certificates, is not installed")
    authority, stranger = trustme.CA(), trustme.CA()
    made = authority.issue_cert("127.0.0.1")
    made.cert_chain_pems[0].write_to_path(tmp_path / "cert")
    made.private_key_pem.write_to_path(tmp_path / "key")
    (tmp_path / "key").chmod(0o600)
    authority.cert_pem.write_to_path(tmp_path / "ca")
    stranger.cert_pem.write_to_path(tmp_path / "other")
    with running(Upper(), tls=Tls(tmp_path / "cert", tmp_path / "key")) as node:
        assert node.url.startswith("https://")
        good: ssl.SSLContext = Tls(ca=tmp_path / "ca").client()
        assert node.post("a", verify=good).json()["outputs"][0]["data"] == ["A"]
        with pytest.raises(httpx.ConnectError, match="certificate"):
            node.post("a", verify=Tls(ca=tmp_path / "other").client())


def until_answered(sock: socket.socket) -> bytes:
    """What comes up to the end of the answer about the node's health."""
    found = b""
    while not found.endswith(b"}"):
        part = sock.recv(4096)
        assert part, "hung up on instead of answered"
        found += part
    return found


LIVE = b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n"


def test_a_body_that_is_late_for_its_answer_holds_no_connection() -> None:
    """[crime.damage] one byte of it stopped the wait for the next request, and no other began."""
    with running(Upper(), limits=replace(LIMITS, body_s=0.5)) as node, connect(node) as sock:
        sock.sendall(LIVE + b"content-length: 100\r\n\r\n")
        assert b" 200 " in until_answered(sock)
        with suppress(OSError):
            sock.sendall(b"x")
        assert until_closed(sock) == b""


def test_a_request_behind_a_body_that_was_not_needed_is_answered(node: Running) -> None:
    """An answer may come before the end of what it was asked with; the connection stays of use."""
    with connect(node) as sock:
        sock.sendall(LIVE + b"content-length: 5\r\n\r\n")
        assert b" 200 " in until_answered(sock)
        sock.sendall(b"x")
        sock.sendall(b"yyyy" + LIVE + b"connection: close\r\n\r\n")
        assert b" 200 " in until_closed(sock).partition(b"\r\n")[0]


class Timers:
    """An event loop whose time passes when a test says so, and whose tasks never start."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[tuple[float, Mock, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, wait_s: float, then: Callable[[], None]) -> Mock:
        handle = Mock()
        self.timers.append((self.now_s + wait_s, handle, then))
        return handle

    def create_task(self, work: Coroutine[object, object, None], **_: object) -> Mock:
        work.close()
        return Mock()

    def passes(self, seconds: float) -> None:
        ends_s = self.now_s + seconds
        while due := [timer for timer in self.timers if timer[0] <= ends_s]:
            first = min(due, key=lambda timer: timer[0])
            self.timers.remove(first)
            self.now_s = first[0]
            if not first[1].cancel.called:
                first[2]()
        self.now_s = ends_s


def a_transport() -> Mock:
    """One that sends at once, until a test says otherwise."""
    transport = Mock()
    transport.is_closing.return_value = False
    transport.get_write_buffer_size.return_value = 0
    transport.get_extra_info.return_value = None
    return transport


@pytest.fixture
def by_hand() -> tuple[Any, Mock, Timers]:
    """A connection, its transport and its time; waits are 10 s for a head, and 30 s for its answer."""
    timers, transport = Timers(), a_transport()
    config = uvicorn.Config(Mock(), interface="asgi3", log_config=None, ws="none", timeout_keep_alive=120)
    made: Any = protocol_factory(Limits(head_s=10.0, stall_s=10.0, write_s=30.0))
    connection = made(config, ServerState(), {}, timers)
    connection.connection_made(transport)
    return connection, transport, timers


def answered(connection: Any) -> None:
    """As its cycle does once the last byte was given to the transport."""
    connection.cycle.response_complete = True
    connection.on_response_complete()


@pytest.mark.parametrize(
    ("method", "length", "n_writes"),
    [("GET", b"2", 1), ("HEAD", b"2", 1), ("GET", None, 3), ("GET", b"0", 2)],
)
def test_an_answer_of_known_length_is_one_write(
    method: str, length: bytes | None, n_writes: int, by_hand: tuple[Any, Mock, Timers]
) -> None:
    """A system call costs more than a copy. Nothing waits for a body that may not come."""
    connection, transport, _ = by_hand
    connection.data_received(LIVE.replace(b"GET", method.encode()) + b"\r\n")
    headers = [] if length is None else [(b"content-length", length)]

    async def send() -> None:
        cycle = connection.cycle
        await cycle.send({"type": "http.response.start", "status": 200, "headers": headers})
        if length is None:
            await cycle.send({"type": "http.response.body", "body": b"ok", "more_body": True})
        body = b"" if length in (None, b"0") else b"ok"
        await cycle.send({"type": "http.response.body", "body": body})

    asyncio.run(send())
    written = [call.args[0] for call in transport.write.call_args_list]
    assert len(written) == n_writes
    assert b"".join(written).startswith(b"HTTP/1.1 200 OK\r\n")
    assert (b"ok" in b"".join(written)) == (method == "GET" and length != b"0")


def test_an_answer_whose_body_fails_says_so(by_hand: tuple[Any, Mock, Timers]) -> None:
    """Its head was not sent yet, so that another can be."""
    connection, transport, _ = by_hand
    connection.data_received(LIVE + b"\r\n")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        raise RuntimeError

    asyncio.run(connection.cycle.run_asgi(app))
    written = b"".join(call.args[0] for call in transport.write.call_args_list)
    assert written.startswith(b"HTTP/1.1 500 ")
    assert b"200 OK" not in written
    assert transport.close.called


@pytest.mark.parametrize("header", [(b"x", b"a\r\nset-cookie: b"), (b"x y", b"a")])
def test_no_header_smuggles_another(header: tuple[bytes, bytes], by_hand: tuple[Any, Mock, Timers]) -> None:
    """What a caller sent may come back in one; uvicorn checks each, we check all of a head at once."""
    connection, transport, _ = by_hand
    connection.data_received(LIVE + b"\r\n")

    async def send() -> None:
        headers = [(b"content-length", b"2"), header]
        await connection.cycle.send({"type": "http.response.start", "status": 200, "headers": headers})
        await connection.cycle.send({"type": "http.response.body", "body": b"ok"})

    with pytest.raises(RuntimeError, match="Invalid HTTP header"):
        asyncio.run(send())
    assert not transport.write.called


def test_a_connection_that_lies_idle_is_closed_by_one_timer(by_hand: tuple[Any, Mock, Timers]) -> None:
    """A timer for each request would be made and cancelled thousands of times a second."""
    connection, transport, timers = by_hand
    for _ in range(3):
        connection.data_received(LIVE + b"\r\n")
        answered(connection)
        timers.passes(50.0)
    assert len(timers.timers) == 1
    timers.passes(69.0)
    assert not transport.close.called
    timers.passes(1.0)
    assert transport.close.called


def test_an_answer_has_its_own_time_to_be_read(by_hand: tuple[Any, Mock, Timers]) -> None:
    """The time of the answer before it ended a later one, which had only begun."""
    connection, transport, timers = by_hand
    transport.get_write_buffer_size.return_value = 1000
    for _ in range(2):
        connection.data_received(LIVE + b"\r\n")
        answered(connection)
        timers.passes(20.0)
    assert not transport.abort.called
    timers.passes(10.0)
    assert transport.abort.called


def test_a_head_is_late_only_once_the_request_before_it_is_answered(
    by_hand: tuple[Any, Mock, Timers],
) -> None:
    """A line end behind a body, which many clients send, put a 408 in the place of the answer."""
    connection, transport, timers = by_hand
    connection.data_received(LIVE + b"\r\n")
    connection.data_received(b"\r\nGET")
    timers.passes(60.0)
    assert not transport.close.called
    answered(connection)
    timers.passes(9.0)
    assert not transport.close.called
    timers.passes(1.0)
    assert b" 408 " in transport.write.call_args.args[0]
    assert transport.close.called


def test_a_connection_that_was_reset_leaves_nothing_behind(by_hand: tuple[Any, Mock, Timers]) -> None:
    """uvicorn's timer of idle connections held it, and the head of its last request, for two minutes."""
    connection, _, timers = by_hand
    connection.data_received(LIVE + b"\r\n")
    answered(connection)
    connection.connection_lost(ConnectionResetError())
    assert all(handle.cancel.called for _, handle, _ in timers.timers)


def test_a_refusal_that_is_never_read_holds_no_connection(by_hand: tuple[Any, Mock, Timers]) -> None:
    """Closing waits until what was written is sent, for ever: the connection had no place any more."""
    connection, transport, timers = by_hand
    transport.write.side_effect = lambda _: setattr(transport.get_write_buffer_size, "return_value", 100)
    connection.data_received(b"hello\r\n\r\n")
    assert transport.close.called
    timers.passes(29.0)
    assert not transport.abort.called
    timers.passes(1.0)
    assert transport.abort.called


def test_a_request_is_begun_once_the_answers_before_it_are_read() -> None:
    """A client that sent many at once and read nothing had a second answer of each kind kept for it."""
    begun: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(100_000)})

    async def work() -> None:
        transport = a_transport()
        config = uvicorn.Config(app, interface="asgi3", log_config=None, ws="none", lifespan="off")
        made: Any = protocol_factory(LIMITS)
        connection = made(config, ServerState(), {})
        connection.connection_made(transport)
        transport.write.side_effect = lambda part: len(part) < 100_000 or connection.pause_writing()
        connection.data_received(
            b"".join(b"GET /%d HTTP/1.1\r\nhost: localhost\r\n\r\n" % i for i in range(3))
        )
        for expected in (["/0"], ["/0", "/1"], ["/0", "/1", "/2"]):
            for _ in range(5):
                await asyncio.sleep(0)
            assert begun == expected
            connection.resume_writing()
        connection.connection_lost(None)

    asyncio.run(work())


def test_a_connection_that_is_worked_for_is_not_evicted_for_what_comes_behind() -> None:
    """The half of a second request made it one that may be closed, and the first was answered with 503."""
    transports = []
    make: Any = protocol_factory(replace(LIMITS, n_client_connections=1))
    for sent in (LIVE + b"\r\n" + LIVE + b"content-length: 9\r\n\r\nx", b""):
        transport = a_transport()
        config = uvicorn.Config(Mock(), interface="asgi3", log_config=None, ws="none")
        connection = make(config, ServerState(), {}, Timers())
        connection.connection_made(transport)
        connection.data_received(sent)
        transports.append(transport)
    assert not transports[0].write.called
    assert not transports[0].close.called
