"""Floods of half-sent requests: health is answered, requests too, and memory stays bounded."""

import json
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from pliant.errors import InputError
from pliant.serve.http.connections.http_connection import protocol_factory
from pliant.serve.http.connections.server import fit_descriptors
from pliant.serve.http.limits import Limits
from tests.serve.http.connections.connection_timers import Timers, a_transport, answered
from tests.serve.http.connections.raw_sockets import LIMITS, LIVE, answers, connect, said, until_closed
from tests.serve.models import Echo, Upper
from tests.serve.nodes import PATIENCE_S, Running, asking, running
from tests.serve.test_routing import metric, until

FEW = replace(LIMITS, n_connections=12, n_client_connections=8, n_reserved_connections=4)
SMALL = replace(
    LIMITS, n_connections=64, body_bytes=1 << 20, buffer_bytes=4 << 20, client_buffer_bytes=2 << 20
)
INFER = "/v2/models/upper/infer"
HALF = b"POST /v2/models/upper/infer HTTP/1.1\r\nhost: localhost\r\n"


@contextmanager
def flooded(node: Running, n: int, sent: bytes) -> Iterator[list[socket.socket]]:
    """`n` connections that send that and no more, and stay open."""
    with ExitStack() as stack:
        made = [stack.enter_context(connect(node)) for _ in range(n)]
        for sock in made:
            with suppress(OSError):  # it may have been evicted by then
                sock.sendall(sent)
        yield made


def is_live(node: Running) -> bool:
    response = httpx.get(f"{node.url}/v2/health/live", timeout=PATIENCE_S)
    return response.status_code == 200 and response.json() == {"live": True}


@pytest.mark.parametrize("sent", [b"", HALF])
def test_health_and_requests_are_answered_while_half_sent_heads_stand(sent: bytes) -> None:
    """[serve.flood] 1,030 of them put everything at 503, health too, until each had timed out."""
    with running(Upper(), limits=FEW) as node, flooded(node, 40, sent):
        for _ in range(3):
            assert is_live(node)
            assert answers(node)


def test_health_is_answered_while_every_place_is_taken_by_a_request() -> None:
    """An orchestrator would kill a node that is only busy; other requests are told to come again."""
    served = Upper()
    served.gate.clear()
    with running(served, limits=FEW) as node, ThreadPoolExecutor(FEW.n_client_connections) as pool:
        asked = [pool.submit(node.post, f"{i}") for i in range(FEW.n_client_connections)]
        until(lambda: node.node is not None and node.node.n_open == len(asked))
        assert is_live(node)
        answer = said(node, b"GET /v2 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b" 503 " in answer.partition(b"\r\n")[0]
        assert b"retry-after" in answer
        served.gate.set()
        assert [future.result().status_code for future in asked] == [200] * len(asked)
    assert len(served.answered) == len(asked)


def test_memory_is_bounded_and_requests_are_answered_while_bodies_stand_still() -> None:
    """[serve.flood] sixty of 16 MB took a gigabyte. The oldest give way to whoever sends a whole one."""
    sent = HALF + b"content-length: 1000000\r\n\r\n" + bytes(900_000)
    with running(Upper(), limits=SMALL) as node, flooded(node, 12, sent) as flood:
        held = "pliant_body_bytes"
        until(lambda: metric(node, held) > SMALL.client_buffer_bytes - 1_000_000)
        for _ in range(3):
            assert is_live(node)
            assert answers(node)
            assert metric(node, held) <= SMALL.client_buffer_bytes
        assert b" 503 " in until_closed(flood[0]).partition(b"\r\n")[0]


def test_who_leaves_amid_a_body_holds_nothing_and_leaves_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A flood that filled the log with tracebacks would fill the disk next."""
    with running(Upper(), limits=SMALL) as node:
        with flooded(node, 1, HALF + b"content-length: 1000\r\n\r\n{"):
            until(lambda: metric(node, "pliant_body_bytes") > 0)
        until(lambda: metric(node, "pliant_body_bytes") == 0)
        until(lambda: metric(node, f'pliant_responses_total{{path="{INFER}",status="499"}}') == 1)
    assert not caplog.records


@pytest.mark.parametrize("head", [b"", b"pliant-request: once\r\n"])
def test_a_request_whose_client_has_left_is_not_computed(
    caplog: pytest.LogCaptureFixture, head: bytes
) -> None:
    """A client that gave up and asked again had the device work for both, and others wait for it."""
    served, body = Upper(), asking("left")
    served.gate.clear()
    with running(served, limits=LIMITS) as node, ThreadPoolExecutor(2) as pool:
        first = pool.submit(node.post, "first")
        until(lambda: served.answered == [b"first"])
        with flooded(node, 1, HALF + head + b"content-length: %d\r\n\r\n" % len(body) + body):
            until(lambda: node.node is not None and node.node.n_open == 2)
        until(lambda: metric(node, f'pliant_responses_total{{path="{INFER}",status="499"}}') == 1)
        assert metric(node, "pliant_body_bytes") == len(asking("first"))
        last = pool.submit(node.post, "last")
        until(lambda: node.node is not None and node.node.n_open == 2)
        served.gate.set()
        assert [future.result().status_code for future in (first, last)] == [200, 200]
    assert served.answered == [b"first", b"last"]
    assert not caplog.records


@pytest.mark.parametrize(
    "sent", [b"GET /v2 HTTP/1.1\r\nhost:", HALF + b"content-length: 100\r\n\r\nx"], ids=["head", "body"]
)
def test_a_request_that_stands_still_is_given_up_long_before_it_would_be_late(sent: bytes) -> None:
    """A whole request may take long on a slow link; without progress it holds its place for nothing."""
    with running(Upper(), limits=replace(LIMITS, stall_s=0.3)) as node:
        assert b" 408 " in said(node, sent).partition(b"\r\n")[0]


def test_a_head_that_makes_progress_has_its_whole_time() -> None:
    """On a virtual clock: a byte every four seconds, a stall of five, ten in all."""
    timers, (connection, transport) = Timers(), made_by(protocol_factory(Limits(head_s=10.0, stall_s=5.0)))
    connection.loop = timers
    connection.connection_made(transport)
    for part in (b"G", b"E"):
        connection.data_received(part)
        timers.passes(4.0)
        assert not transport.close.called
    connection.data_received(b"T")
    timers.passes(2.0)
    assert b" 408 " in transport.write.call_args.args[0]


@pytest.mark.parametrize(
    ("sent", "said"), [(b"", b""), (HALF, b" 503 "), (HALF + b"content-length: 9\r\n\r\nx", b" 503 ")]
)
def test_whoever_is_evicted_amid_a_request_is_told_so_and_it_is_counted(sent: bytes, said: bytes) -> None:
    """A client that was only slow tries again; an operator sees that there are floods."""
    counted: list[int] = []
    connection, transport = made_by(protocol_factory(LIMITS, counted.append))
    connection.connection_made(transport)
    connection.data_received(sent)
    connection.evict()
    assert transport.close.called
    assert counted == [503] * bool(said)
    assert said in (transport.write.call_args.args[0] if said else b"")


def made_by(make: Any) -> tuple[Any, Mock]:
    """A connection that is not made yet, and a transport of which nothing is read."""
    transport = a_transport()
    config = uvicorn.Config(Mock(), interface="asgi3", log_config=None, ws="none", timeout_keep_alive=120)
    return make(config, ServerState(), {}, Timers()), transport


def test_answers_that_nobody_reads_are_bounded_too() -> None:
    """They lie in the node's memory like bodies; the oldest is given up."""
    make = protocol_factory(Limits(body_bytes=50, buffer_bytes=100, client_buffer_bytes=60))
    transports = []
    for _ in range(3):
        connection, transport = made_by(make)
        connection.connection_made(transport)
        transport.get_write_buffer_size.return_value = 30
        connection.data_received(LIVE + b"\r\n")
        answered(connection)
        transports.append(transport)
    assert [transport.abort.called for transport in transports] == [True, False, False]


def test_an_answer_that_fits_no_clients_buffer_is_refused() -> None:
    """It counted as nothing, since no room could be made for it, and several took as much each."""
    with running(Echo(("float64",)), limits=Limits(body_bytes=5000, client_buffer_bytes=5000)) as node:
        numbers = [1 / 3] * 400
        given = {"name": "float64", "shape": [1, 400], "datatype": "FP64"}
        outputs = [{"name": "float64", "parameters": {"binary_data": False}}]
        binary = {**given, "parameters": {"binary_data_size": 3200}}
        head = json.dumps({"inputs": [binary], "outputs": outputs}).encode()
        response = httpx.post(
            f"{node.url}/v2/models/echo/infer",
            content=head + struct.pack("400d", *numbers),
            headers={"inference-header-content-length": str(len(head))},
            timeout=PATIENCE_S,
        )
    assert response.status_code == 422
    assert "5000" in response.json()["error"]


def test_buffers_that_hold_no_body_are_refused() -> None:
    """Every request of that size would be told to come again, for ever."""
    with pytest.raises(InputError, match="buffer_bytes"):
        Limits(body_bytes=1 << 30)


def test_connections_fit_into_the_files_that_a_process_may_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit of 1024, which is usual, nothing could be accepted any more, no question about health."""
    limits, asked = Limits(), []
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr("resource.setrlimit", lambda _, both: asked.append(both))
    assert fit_descriptors(limits) == limits
    assert asked == [(limits.n_connections + limits.n_reserved_connections + 256, 4096)]
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 1024))
    assert fit_descriptors(limits).n_connections == 1024 - limits.n_reserved_connections - 256
