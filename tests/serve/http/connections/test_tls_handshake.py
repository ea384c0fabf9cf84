"""Connections over TLS: their handshakes have places, limits and an orderly end, as plain ones have."""

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from pliant.serve.access.security import Tls
from tests.serve.http.connections.raw_sockets import LIMITS, connect, is_cut, until_closed
from tests.serve.models import Echo, Upper
from tests.serve.nodes import PATIENCE_S, Running, running
from tests.serve.test_routing import until
from tests.serve.test_shutdown import _is_refused

pytestmark = pytest.mark.usefixtures("lingering")

FEW = replace(LIMITS, n_connections=12, n_client_connections=8, n_reserved_connections=4)
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""The beginning of a ClientHello of 512 bytes."""


@dataclass(frozen=True)
class Keys:
    """What a node shows, and what its clients trust."""

    node: Tls
    trust: ssl.SSLContext

    def encrypted(self, sock: socket.socket) -> ssl.SSLSocket:
        return self.trust.wrap_socket(sock, server_hostname="127.0.0.1")

    def status(self, node: Running, path: str) -> int:
        return httpx.get(f"{node.url}{path}", verify=self.trust, timeout=PATIENCE_S).status_code


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    trustme = pytest.importorskip("trustme", reason="trustme, which makes certificates, is not installed")
    folder: Path = tmp_path_factory.mktemp("keys")
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1")
    made.cert_chain_pems[0].write_to_path(folder / "cert")
    made.private_key_pem.write_to_path(folder / "key")
    (folder / "key").chmod(0o600)
    authority.cert_pem.write_to_path(folder / "ca")
    return Keys(Tls(folder / "cert", folder / "key"), Tls(ca=folder / "ca").client())


@pytest.fixture(scope="module")
def node(keys: Keys) -> Iterator[Running]:
    with running(Upper(), limits=FEW, tls=keys.node) as run:
        yield run


@pytest.mark.parametrize("sent", [b"", HELLO])
def test_half_handshakes_push_each_other_out_and_health_is_answered(
    keys: Keys, node: Running, sent: bytes
) -> None:
    """[serve.flood] 200 of them stood for a minute behind 8 places: nothing counted them."""
    with ExitStack() as stack:
        flood = [stack.enter_context(connect(node)) for _ in range(40)]
        for sock in flood[: FEW.n_client_connections]:
            assert until_closed(sock) == b""
        for sock in flood[-2:]:
            sock.sendall(sent)
        assert keys.status(node, "/v2/health/live") == 200
        assert keys.status(node, "/v2") == 200
        assert node.n_connections <= FEW.n_client_connections
    until(lambda: node.n_connections == 0)


def test_complete_handshakes_without_a_request_push_each_other_out(keys: Keys, node: Running) -> None:
    """A connection that was closed stayed for 30 s, until its client agreed to the end of the encryption."""
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(keys.encrypted(connect(node)))
        until(lambda: node.n_connections <= FEW.n_client_connections)
        assert keys.status(node, "/v2") == 200
    until(lambda: node.n_connections == 0)


def test_a_handshake_may_take_as_long_as_a_head(keys: Keys) -> None:
    """A minute, as asyncio has it, is six times as long."""
    limits = replace(FEW, head_s=0.3)
    with running(Upper(), limits=limits, tls=keys.node) as run, connect(run) as sock:
        sock.sendall(HELLO)
        assert until_closed(sock) == b""
        until(lambda: run.n_connections == 0)


@pytest.mark.parametrize("said", [b"GET /v2 HTTP/1.1\r\n\r\n", b""])
def test_a_handshake_that_fails_leaves_nothing(node: Running, said: bytes) -> None:
    """A client that speaks no TLS, or hangs up amid it."""
    with connect(node) as sock:
        if said:
            sock.sendall(said)
            until_closed(sock)
    until(lambda: node.n_connections == 0)


@pytest.mark.parametrize("n_early", [0, 300])
def test_a_handshake_that_begins_after_the_node_listens_no_more_is_answered(keys: Keys, n_early: int) -> None:
    """Whether a part of it has come or nothing: a request is on its way."""
    with running(Upper(), limits=FEW, tls=keys.node) as run:
        host, _, port = run.address.partition(":")
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = keys.trust.wrap_bio(incoming, outgoing, server_hostname=host)
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        hello = outgoing.read()
        with connect(run) as sock:
            sock.sendall(hello[:n_early])
            assert keys.status(run, "/v2") == 200
            run.stop()
            until(lambda: _is_refused(host, int(port)))
            sock.sendall(hello[n_early:])
            _exchange(client.do_handshake, sock, incoming, outgoing)
            client.write(b"GET /v2 HTTP/1.1\r\nhost: localhost\r\n\r\n")  # with the end of the handshake
            sock.sendall(outgoing.read())
            answer = _exchange(lambda: client.read(65536), sock, incoming, outgoing).lower()
    assert answer.startswith(b"http/1.1 200 ok")
    assert b"connection: close" in answer


def _exchange(step: Any, sock: socket.socket, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> Any:
    """What `step` gives; what TLS has to say at its end is not sent yet."""
    while True:
        try:
            return step()
        except ssl.SSLWantReadError:
            sock.sendall(outgoing.read())
            part = sock.recv(65536)
            assert part, "hung up on instead of answered"
            incoming.write(part)


def test_a_connection_is_used_again_over_tls(keys: Keys, node: Running) -> None:
    """A handshake for each request would cost more than most answers."""
    with httpx.Client(base_url=node.url, timeout=PATIENCE_S, verify=keys.trust) as client:
        for _ in range(3):
            assert client.get("/v2").status_code == 200
            assert node.n_connections == 1


def test_the_contexts_own_options_hold(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may ask for certificates, and negotiate a protocol."""
    context = keys.node.server()
    assert context is not None
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["http/1.1"])
    monkeypatch.setattr(Tls, "server", lambda _: context)
    with running(Upper(), limits=FEW, tls=keys.node) as run:
        authority = keys.trust.get_ca_certs(binary_form=True)[0]
        trust = ssl.create_default_context(cadata=authority)
        trust.set_alpn_protocols(["http/1.1"])
        trust.maximum_version = ssl.TLSVersion.TLSv1_2  # where the refusal is part of the handshake
        with connect(run) as sock, pytest.raises(ssl.SSLError):
            trust.wrap_socket(sock, server_hostname="127.0.0.1")
        context.verify_mode = ssl.CERT_NONE
        with trust.wrap_socket(connect(run), server_hostname="127.0.0.1") as sock:
            assert sock.selected_alpn_protocol() == "http/1.1"


def test_who_never_reads_an_answer_over_tls_is_cut_off(keys: Keys) -> None:
    """What TLS has handed to the socket counts as unread too: its own buffer is empty by then."""
    n = 1 << 20
    given = {
        "name": "float64",
        "shape": [1, n],
        "datatype": "FP64",
        "parameters": {"binary_data_size": 8 * n},
    }
    wanted = {"name": "float64", "parameters": {"binary_data": True}}
    head = json.dumps({"inputs": [given], "outputs": [wanted]}).encode()
    lines = (
        "POST /v2/models/echo/infer HTTP/1.1",
        "host: localhost",
        f"inference-header-content-length: {len(head)}",
        f"content-length: {len(head) + 8 * n}",
    )
    with running(Echo(("float64",)), limits=replace(LIMITS, write_s=0.5), tls=keys.node) as run:
        host, _, port = run.address.partition(":")
        with socket.socket() as plain:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            plain.settimeout(PATIENCE_S)
            plain.connect((host, int(port)))
            with keys.encrypted(plain) as sock:
                sock.sendall("\r\n".join((*lines, "\r\n")).encode() + head + bytes(8 * n))
                until(lambda: run.node is not None and run.node.metrics.text().count(b'outcome="ok"') > 0)
                until(lambda: run.n_connections == 0)
                assert is_cut(sock) or is_cut(sock)
