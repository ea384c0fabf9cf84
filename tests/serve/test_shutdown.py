"""A node that is told to leave answers what it has taken, and nothing is lost."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection, HTTPException

import httpx
import pytest

from pliant.serve.access.security import ListenAddress
from pliant.serve.http.connections.server import bind
from pliant.serve.http.limits import Limits
from pliant.serve.node.start_node import NodeOptions
from pliant.system import refuse_connections
from tests.serve.models import Upper
from tests.serve.nodes import ANY_PORT, PATIENCE_S, asking, running

pytestmark = pytest.mark.usefixtures("lingering")


def test_every_request_that_was_taken_is_answered() -> None:
    """Those that compute and those that wait: eight clients, one of which is being answered."""
    served = Upper()
    served.gate.clear()
    with running(served, settle_s=0.3) as node, ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(node.post, f"text {i}") for i in range(8)]
        _until(lambda: node.node is not None and node.node.n_open == 8)
        node.stop()
        _until(lambda: node.node is not None and node.node.is_draining)
        served.gate.set()
        answers = [future.result() for future in waiting]
        node.join()
    assert [answer.json()["outputs"][0]["data"][0] for answer in answers] == [f"TEXT {i}" for i in range(8)]
    assert sorted(served.answered) == sorted(f"text {i}".encode() for i in range(8))
    assert served.is_closed


def test_a_node_that_leaves_asks_its_clients_to_go() -> None:
    """It still answers, as long as it is to settle, but each connection once; whoever asks is told."""
    with (
        running(Upper(), settle_s=PATIENCE_S) as node,
        httpx.Client(base_url=node.url, timeout=PATIENCE_S) as client,
    ):
        assert "connection" not in client.get("/v2").headers
        node.stop()
        _until(lambda: node.node is not None and node.node.is_draining)
        response = client.post("/v2/models/upper/infer", content=asking("late"))
        assert response.status_code == 200
        assert response.headers["connection"] == "close"
        assert client.get("/v2/health/ready").status_code == 503
        assert client.get("/v2/health/live").status_code == 200
        node.stop()  # the second time it goes at once


@pytest.mark.parametrize("is_kept", [True, False])
def test_clients_that_ask_all_the_time_lose_nothing(is_kept: bool) -> None:
    """Until they cannot connect: each request on a connection that was made for it is answered.

    One that is kept may be closed between two requests, and a client asks again then (RFC 9112, 9.3.1).
    """
    with running(Upper(), settle_s=0.5) as node, ThreadPoolExecutor(4) as pool:
        counts = [0] * 4

        def client(number: int) -> None:
            with closing(HTTPConnection(node.address, timeout=PATIENCE_S)) as http:
                while True:
                    is_new = http.sock is None
                    try:
                        if is_new:
                            http.connect()
                    except OSError:
                        return
                    word = f"{number} {counts[number]}"
                    try:
                        http.request("POST", "/v2/models/upper/infer", asking(word))
                        answer = json.loads(http.getresponse().read())
                    except (OSError, HTTPException):
                        if is_new:
                            raise
                        http.close()
                        continue
                    assert answer["outputs"][0]["data"] == [word]
                    counts[number] += 1
                    if not is_kept:
                        http.close()

        asking_all = [pool.submit(client, number) for number in range(4)]
        _until(lambda: min(counts) > 3)
        node.stop()
        for future in asking_all:
            future.result()


@pytest.fixture
def defers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes listen so that a handshake ends with the client's first byte (TCP_DEFER_ACCEPT).

    Over loopback a handshake takes no time; here a test decides how long one is under way.
    """
    with bind(ANY_PORT) as probe:
        if not refuse_connections(probe):
            pytest.skip("this system cannot refuse connections while it completes others")

    def listening(address: ListenAddress) -> socket.socket:
        sock = bind(address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, int(PATIENCE_S))
        return sock

    monkeypatch.setattr("pliant.serve.node.start_node.bind", listening)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.usefixtures("defers")
def test_a_handshake_that_ends_after_others_are_refused_is_answered(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """The system completed it between the last accept and the close, which reset it with its request."""
    monkeypatch.setattr("pliant.serve.http.connections.server.LINGER_S", PATIENCE_S)
    with running(Upper(), listen=ListenAddress(host, 0)) as node:
        port = int(node.address.rpartition(":")[2])
        with socket.create_connection((host, port), timeout=PATIENCE_S) as early:
            node.stop()
            _until(lambda: _is_refused(host, port))
            early.sendall(b"GET /v2 HTTP/1.1\r\nhost: localhost\r\n\r\n")
            answer = early.recv(4096)
        node.stop()  # the second time it goes at once
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_node_ends_where_the_system_cannot_refuse_connections_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Older systems, and sandboxes that forbid it: closing the socket refuses them there."""
    monkeypatch.setattr("pliant.serve.http.connections.server.refuse_connections", lambda sock: False)
    with running(Upper()) as node:
        host, _, port = node.address.partition(":")
        node.stop()
        node.join()
        assert _is_refused(host, int(port))


@pytest.mark.parametrize("sent", [b"", b"GET /v2 HT"])
def test_who_had_connected_is_answered_after_the_node_listens_no_more(sent: bytes) -> None:
    """Whether half a head has come or nothing yet: a request is on its way."""
    with running(Upper(), limits=Limits(head_s=PATIENCE_S)) as node:
        host, _, port = node.address.partition(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as early:
            early.sendall(sent)
            assert httpx.get(f"{node.url}/v2", timeout=PATIENCE_S).status_code == 200
            node.stop()
            _until(lambda: _is_refused(host, int(port)))
            early.sendall(b"GET /v2 HTTP/1.1\r\nhost: localhost\r\n\r\n"[len(sent) :])
            parts = []
            while part := early.recv(4096):
                parts.append(part)
    head = b"".join(parts).partition(b"\r\n\r\n")[0].lower()
    assert b" 200 ok" in head
    assert b"connection: close" in head


def test_once_it_listens_no_more_calls_are_refused_at_once() -> None:
    """Packets of calls were dropped for a while: whoever called then heard nothing for a second.

    The system repeats a lost call after a second, so a call that takes as long was left to time out.
    """
    served = Upper()
    served.gate.clear()
    with running(served, settle_s=0.2) as node, ThreadPoolExecutor(1) as pool:
        first = pool.submit(node.post, "x")
        _until(lambda: node.node is not None and node.node.n_open == 1)
        host, _, port = node.address.partition(":")
        node.stop()
        try:
            _until(lambda: _is_refused(host, int(port), timeout_s=0.9))
            assert not first.done()
        finally:
            served.gate.set()
        assert first.result().status_code == 200


def test_a_node_settles_for_five_seconds_unless_told_otherwise() -> None:
    """As long as balancers take to see that it is not ready; a person who presses Ctrl-C does not wait."""
    assert NodeOptions(ListenAddress("127.0.0.1", 0), "0").settle_s == 5.0
    with running(Upper(), settle_s=PATIENCE_S) as node:
        node.interrupt()
        node.join()


def _is_refused(host: str, port: int, timeout_s: float = PATIENCE_S) -> bool:
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except ConnectionRefusedError:
        return True
    return False


def _until(holds: object) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if holds():  # type: ignore[operator]
            return
        time.sleep(0.01)
    raise AssertionError("it never came to that")
