"""Calls to other nodes over connections that are kept, against servers that answer by hand."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from pliant.errors import NodeError
from pliant.serve.http.limits import Limits
from pliant.serve.upstream.client import Client, Response

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nPliant-Node: up\r\ncontent-length: 2\r\n\r\nok"


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = [line.lower() for line in head.split(b"\r\n")]
    sizes = [int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")]
    return head + await reader.readexactly(sum(sizes))


def calling(
    serve: Serve, n_calls: int = 1, timeout_s: float = 30.0, limits: Limits | None = None
) -> list[Response]:
    """What came of as many calls, one after another."""

    async def run() -> list[Response]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v2/x?model=m"
        async with server, Client(ssl.create_default_context(), limits or Limits()) as client:
            return [
                await client.call("POST", url, {"a": "b"}, b"body", timeout_s, "token")
                for _ in range(n_calls)
            ]

    return asyncio.run(run())


def answering(*answers: bytes, then_closes: bool = False) -> tuple[Serve, list[bytes], list[int]]:
    """A server that gives `answers` on each connection; what it was sent, and its connections."""
    requests: list[bytes] = []
    connections: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        try:
            for answer in answers:
                requests.append(await read_request(reader))
                writer.write(answer)
                await writer.drain()
            if not then_closes:
                await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    return serve, requests, connections


def test_a_call_is_one_request_on_a_connection_that_is_kept() -> None:
    """Opening one for each request costs a round trip, and with TLS two."""
    serve, requests, connections = answering(OK, OK, OK)
    answers = calling(serve, 3)
    assert [(a.status, a.content, a.headers.get("pliant-node")) for a in answers] == [(200, b"ok", "up")] * 3
    assert len(connections) == 1
    assert requests[0].startswith(b"POST /v2/x?model=m HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"authorization: Bearer token\r\n" in requests[0]
    assert requests[0].endswith(b"content-length: 4\r\n\r\nbody")
    assert answers[0].sent_bytes == len(requests[0])
    assert answers[0].away_s > 0.0


def test_a_connection_that_was_closed_meanwhile_costs_no_request() -> None:
    """The other end may close a connection that lies idle whenever it likes (RFC 9112, 9.3.1)."""
    serve, _, connections = answering(OK, then_closes=True)
    assert [answer.status for answer in calling(serve, 3)] == [200] * 3
    assert len(connections) == 3


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
    ],
)
def test_every_form_of_an_answer_is_read(answer: bytes) -> None:
    """Proxies between nodes choose it."""
    assert [a.content for a in calling(answering(answer)[0])] == [b"ok"]


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    """As HTTP/1.0 has it."""
    assert calling(answering(b"HTTP/1.0 200 OK\r\n\r\nok", then_closes=True)[0])[0].content == b"ok"


@pytest.mark.parametrize(
    "answer",
    [
        b"not http\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2000\r\n\r\n" + b"x" * 2000,
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"h%d: %s\r\n" % (i, b"x" * 100) for i in range(20)) + b"\r\n",
        b"",
    ],
)
def test_what_is_no_answer_or_too_long_a_one_is_refused(answer: bytes) -> None:
    """An upstream cannot fill this node's memory, nor hold a request."""
    with pytest.raises(NodeError) as failed:
        calling(answering(answer, then_closes=True)[0], limits=Limits(body_bytes=1000, head_bytes=1000))
    assert failed.value.status == 502


def test_an_answer_that_does_not_come_ends_its_connection() -> None:
    """Else the next request there would be given the answer of this one."""
    served: list[int] = []

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        served.append(len(await reader.read()))
        writer.close()

    with pytest.raises(NodeError) as failed:
        calling(late, timeout_s=0.05)
    assert failed.value.status == 504


@pytest.mark.parametrize(("limit", "value", "n_open"), [("MOST_KEPT", 2, 2), ("KEPT_S", -1.0, 0)])
def test_connections_to_nodes_that_are_not_called_again_are_closed(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: float, n_open: int
) -> None:
    """Anybody with a peer's token may register ports to be called at: each kept a descriptor for ever."""
    monkeypatch.setattr(f"pliant.serve.upstream.client.{limit}", value)
    open_: set[int] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("sockname")[1]
        open_.add(port)
        await read_request(reader)
        writer.write(OK)
        with suppress(ConnectionResetError):
            await reader.read()
        open_.remove(port)
        writer.close()

    async def run() -> None:
        servers = [await asyncio.start_server(serve, "127.0.0.1", 0) for _ in range(5)]
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        async with Client(ssl.create_default_context(), Limits()) as client:
            for port in ports:
                await client.call("POST", f"http://127.0.0.1:{port}/v2", {}, b"body", 30.0, None)
            async with asyncio.timeout(30.0):
                while len(open_) > n_open:
                    await asyncio.sleep(0)
            assert open_ == set(ports[5 - n_open :])
        for server in servers:
            server.close()
            await server.wait_closed()

    asyncio.run(run())


def test_a_request_after_one_that_was_given_up_finds_a_connection() -> None:
    """Opening one takes a round trip: on a long way every second request would be late."""
    accepted: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(1)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                if b"/slow" not in await read_request(reader):
                    writer.write(OK)

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, Client(ssl.create_default_context(), Limits()) as client:

            async def ready(n: int) -> None:
                while len(accepted) < n:
                    await asyncio.sleep(0.001)

            client.spare(url)
            client.spare(url)
            await ready(1)
            await asyncio.sleep(0.01)
            assert len(accepted) == 1, "one at a time"
            client.spare(url)
            await ready(2)
            with pytest.raises(NodeError, match="did not answer within"):
                await client.call("POST", f"{url}/slow", {}, b"", 0.01, None)
            assert (await client.call("POST", url, {}, b"", 30.0, None)).content == b"ok"
            client.spare(url)
            await ready(3)
            assert len(accepted) == 3, "in place of the one that was given up"

    asyncio.run(run())


def test_nobody_hears_of_a_spare_connection_that_cannot_be_opened() -> None:
    """A request to that address raises it. Closing the client cancels what is being opened."""

    async def run() -> None:
        closed = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = closed.sockets[0].getsockname()[1]
        closed.close()
        await closed.wait_closed()
        async with Client(ssl.create_default_context(), Limits()) as client:
            client.spare(f"http://127.0.0.1:{port}")
            await asyncio.sleep(0.01)
            with pytest.raises(NodeError, match=r"the request to .* failed"):
                await client.call("GET", f"http://127.0.0.1:{port}", {}, b"", 30.0, None)
            client.spare("http://10.255.255.1:9")  # nobody answers
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


def test_what_an_upstream_sends_behind_its_answer_is_no_part_of_the_next() -> None:
    """The beginning of another one in the same segment: the next call has a connection of its own."""
    behind = b"HTTP/1.1 503 Busy\r\ncontent-"
    serve, _, connections = answering(OK + behind, OK)
    found = calling(serve, 2)
    assert [(one.status, one.content) for one in found] == 2 * [(200, b"ok")]
    assert len(connections) == 2
