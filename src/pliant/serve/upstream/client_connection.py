"""An HTTP/1.1 client connection to another node, one request at a time."""

import asyncio
import time
from dataclasses import dataclass
from typing import final

import httptools

from pliant.errors import NodeError

_FRAMES = (b"content-length", b"transfer-encoding")
_CONTINUES = 200
"""Lower statuses are interim responses (RFC 9110, 15.2)."""


@dataclass(frozen=True, slots=True)
class RawResponse:
    """A response; `away_s` is from the written request to the last byte of the response."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    content: bytes
    away_s: float


@final
class ClientConnection(asyncio.Protocol):
    """Created by `loop.create_connection`; parsed by llhttp, as in uvicorn.

    A response with more than `head_bytes` of headers or `body_bytes` of body closes the connection.
    """

    def __init__(self, head_bytes: int, body_bytes: int) -> None:
        self._most_head, self._most_body = head_bytes, body_bytes
        self.transport: asyncio.Transport | None = None
        self.idle_since_s = 0.0
        self._reply: asyncio.Future[RawResponse] | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []
        self._is_kept = self._is_unframed = False
        self._parser = httptools.HttpResponseParser(self)
        self._start()

    @property
    def is_open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    async def ask(self, request: bytes) -> RawResponse:
        """Send `request`, head and body, and wait for its response.

        Raises ConnectionError if the server closes the connection first, and NodeError (502) for an invalid
        or too long response. Cancelling closes the connection, because the response may still arrive.
        """
        if not self.is_open:
            raise ConnectionResetError("the connection is closed")
        assert self.transport is not None
        self._start()
        self._reply = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        self._sent_s = time.monotonic()
        try:
            return await self._reply
        except BaseException:
            self.close()
            raise
        finally:
            self._reply = None

    def close(self) -> None:
        """Close at once; unsent data is dropped."""
        if self.transport is not None:
            self.transport.abort()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._reply is not None and self._is_unframed:  # the body ends with the connection
            self._is_kept = False
            self._finish()
        self._fail(ConnectionResetError("the connection was closed"))

    def data_received(self, data: bytes) -> None:
        if self._reply is None or self._reply.done():
            self.close()  # no request is pending
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            cause = error.__context__
            why = cause if isinstance(cause, NodeError) else f"it did not answer in HTTP: {error}."
            self._fail(cause if isinstance(cause, NodeError) else NodeError(str(why), status=502))
            self.close()

    # -- httptools

    def on_message_begin(self) -> None:
        if self._reply is None or self._reply.done():
            self.close()  # an unexpected second response must not answer the next request

    def on_header(self, name: bytes, value: bytes) -> None:
        self._n_head += len(name) + len(value)
        if self._n_head > self._most_head:
            raise NodeError(f"it answered more than {self._most_head} bytes of headers.", status=502)
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._is_kept = self._parser.should_keep_alive()
        self._is_unframed = not any(name in _FRAMES for name, _ in self._headers)

    def on_body(self, body: bytes) -> None:
        self._n_body += len(body)
        if self._n_body > self._most_body:
            raise NodeError(f"it answered more than {self._most_body} bytes.", status=502)
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < _CONTINUES:
            self._headers, self._is_unframed = [], False
            return
        self._finish()

    # -- below

    def _start(self) -> None:
        self._headers, self._parts = [], []
        self._n_head = self._n_body = 0
        self._sent_s = 0.0
        self._is_kept = self._is_unframed = False

    def _finish(self) -> None:
        if self._reply is None or self._reply.done():
            return
        away_s = time.monotonic() - self._sent_s
        status, content = self._parser.get_status_code(), b"".join(self._parts)
        self._reply.set_result(RawResponse(status, tuple(self._headers), content, away_s))
        if not self._is_kept:
            self.close()

    def _fail(self, error: Exception) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)
