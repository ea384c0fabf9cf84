"""Clients that are slow, endless or not of HTTP, at the socket itself."""

import gc
import json
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from pliant.serve.access.security import Tls
from tests.serve.http.connections.raw_sockets import (
    LIMITS,
    LIVE,
    answers,
    answers_in_the_end,
    connect,
    is_cut,
    said,
    until_answered,
    until_closed,
)
from tests.serve.models import Echo, Upper
from tests.serve.nodes import PATIENCE_S, Running, asking, running
from tests.serve.test_routing import until


@pytest.fixture(scope="module")
def node() -> Iterator[Running]:
    with running(Upper(), limits=LIMITS) as run:
        yield run


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
            until(lambda: is_cut(sock))


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


def test_an_answered_request_leaves_nothing_to_the_garbage_collector(node: Running) -> None:
    """Else its body, headers and answer stay in memory, and each collection visits them."""
    body = asking("a film")
    head = b"POST /v2/models/upper/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
    with connect(node) as sock:
        sock.sendall(head % len(body) + body)
        until_answered(sock)
        gc.collect()
        gc.disable()
        try:
            for _ in range(50):
                sock.sendall(head % len(body) + body)
                until_answered(sock)
            assert gc.collect() < 50
        finally:
            gc.enable()


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
