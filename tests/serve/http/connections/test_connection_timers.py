"""Writes and timers of one connection, without a socket."""

import asyncio
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from uvicorn.server import ServerState

from pliant.serve.http.connections.http_connection import protocol_factory
from tests.serve.http.connections.connection_timers import Timers, a_transport, answered
from tests.serve.http.connections.connection_timers import by_hand as by_hand
from tests.serve.http.connections.raw_sockets import LIMITS, LIVE


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
