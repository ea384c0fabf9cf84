"""An HTTP/1.1 connection that waits for no slow client. Knows bytes and time, no path and no token."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pliant.serve.limits import Limits


def guarded(limits: Limits) -> Callable[..., asyncio.Protocol]:
    """uvicorn's protocol within `limits`: what makes one for each connection."""

    class Guarded(_Guarded):
        pass

    Guarded.limits = limits
    return Guarded


class _Guarded(HttpToolsProtocol):
    """Bounds the head's size and number of lines, the time it may take to come, and that to read an answer.

    uvicorn itself waits for a head for ever, and keeps all of it (a "slowloris" needs no more).
    """

    limits: Limits

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._is_in_head = True
        self._is_leaving = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.n_connections:
            self._refuse(503, "too many connections; try again.", ("retry-after: 1",))
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_in_head:
            if self._timer is None and (self.cycle is None or self.cycle.response_complete):
                self._expect_head()
            self._head_bytes += len(data)
        super().data_received(data)
        if self._is_in_head and self._head_bytes > self.limits.head_bytes:
            self._refuse(431, f"headers are longer than {self.limits.head_bytes} bytes.")

    def on_message_begin(self) -> None:
        self._is_in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self.limits.n_headers:
            self._refuse(431, f"there are more than {self.limits.n_headers} headers.")

    def on_headers_complete(self) -> None:
        self._is_in_head, self._head_bytes = False, 0
        self._stop_timer()
        if self.transport.is_closing():
            return
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.limits.head_bytes:
            self._refuse(431, f"{size} bytes of headers are more than {self.limits.head_bytes}.")
            return
        super().on_headers_complete()
        if self._is_leaving and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        if not self.transport.is_closing() and self.cycle is not None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_head = True
        if not self.transport.is_closing() and self.cycle is not None:
            super().on_message_complete()
            if self.cycle.response_complete:
                self._expect_head()

    def on_response_complete(self) -> None:
        is_last = not self.pipeline
        super().on_response_complete()
        if self._unread is not None:
            self._unread.cancel()
        if self.transport.get_write_buffer_size():
            self._unread = self.loop.call_later(self.limits.write_s, self._abort_unread)
        if not is_last or self.transport.is_closing():
            return
        if self.cycle.more_body:  # answered without it, but the next head comes behind it
            self._timer = self.loop.call_later(self.limits.body_s, self.transport.close)
        elif self._head_bytes:
            self._expect_head()

    def shutdown(self) -> None:
        """A request whose head is on its way, or that the connection was made for, is still answered."""
        self._is_leaving = True
        if self.cycle is not None and not self._head_bytes:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _expect_head(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self.limits.head_s, self._head_is_late)

    def _head_is_late(self) -> None:
        if self._head_bytes:
            self._refuse(408, f"the request's head took longer than {self.limits.head_s:g} s.")
        elif not self.transport.is_closing():
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _abort_unread(self) -> None:
        if self.transport is not None and self.transport.get_write_buffer_size():
            self.transport.abort()

    def _refuse(self, status: int, why: str, more: tuple[str, ...] = ()) -> None:
        """Answer by hand and hang up: there is no request to hand on."""
        self._stop_timer()
        if self.transport.is_closing():
            return
        body = msgspec.json.encode({"error": why})
        lines = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "connection: close",
            *more,
        )
        self.transport.write("\r\n".join((*lines, "\r\n")).encode() + body)
        self.transport.close()
