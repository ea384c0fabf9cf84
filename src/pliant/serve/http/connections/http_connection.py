"""An HTTP/1.1 connection with limits against slow clients."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pliant.serve.access.security import names_of
from pliant.serve.http.body_reader import ARRIVED_S, IS_WHOLE
from pliant.serve.http.byte_budget import ByteBudget
from pliant.serve.http.connections.arrival_loop import arrival_s
from pliant.serve.http.connections.connection_limiter import ConnectionLimiter
from pliant.serve.http.connections.response_writer import ResponseWriter
from pliant.serve.http.connections.tls_handshake import TlsHandshake
from pliant.serve.http.limits import Limits

_HEALTH = b"/v2/health/"
OnRefused = Callable[[int], None]
CurrentTls = Callable[[], ssl.SSLContext | None]


@dataclass(frozen=True, slots=True)
class SharedState:
    """State shared by a server's connections: limits, places, and the budget of unsent response bytes.

    `tls` returns the TLS context of new connections. `on_refused` is called with the status of each request
    that is refused before it reaches the application.
    """

    limits: Limits
    limiter: ConnectionLimiter
    answers: ByteBudget
    on_refused: OnRefused
    tls: CurrentTls


def protocol_factory(
    limits: Limits, on_refused: OnRefused = lambda status: None, tls: CurrentTls = lambda: None
) -> Callable[..., asyncio.Protocol]:
    """Return a factory of uvicorn's protocol with `limits`.

    Connections are encrypted with the context that `tls` returns when they are made. The listening sockets
    are plain, so that a connection takes its place before the handshake.
    """
    answers = ByteBudget(limits.buffer_bytes, limits.client_buffer_bytes)
    shared = SharedState(limits, ConnectionLimiter(limits), answers, on_refused, tls)

    def make(*args: Any, **named: Any) -> asyncio.Protocol:
        connection, context = _LimitedProtocol(shared, *args, **named), tls()
        return connection if context is None else TlsHandshake(connection, context, limits)

    return make


class _LimitedProtocol(HttpToolsProtocol):
    """Limits the size, header count and duration of a request head, and the time to read a response.

    uvicorn itself waits for a head without limits of time and size, which a slowloris attack exploits. If
    there are more connections than places, connections without a request are closed for newer ones.
    """

    def __init__(self, shared: SharedState, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.limits, self._shared = shared.limits, shared
        self.address = ""
        self._socket: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._idle_since_s = 0.0
        self._unread: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._head_since_s = self._heard_s = 0.0
        self._is_in_head = True
        self._is_leaving = False
        self._has_place = True
        self._working: tuple[Any, asyncio.Task[Any]] | None = None

    def accepted(self, transport: asyncio.Transport) -> None:
        """Take a place; `transport` is that of the socket, before any TLS handshake."""
        super().connection_made(transport)
        self._socket = transport
        self.address = self.client[0] if self.client else ""
        self._has_place = self._shared.limiter.enter(self, self.address)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if self._socket is None:
            self.accepted(transport)
        else:
            super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._shared.limiter.leave(self)
        self._shared.answers.release(self)
        for timer in (self._unread, self._stalled, self._idle):
            if timer is not None:
                timer.cancel()
        self._give_up()
        super().connection_lost(exc)

    def evict(self) -> None:
        """Close the connection for another one's place or buffer room.

        A request that has begun gets a 503.
        """
        is_reading = self.cycle is not None and self.cycle.more_body and not self.cycle.response_started
        if not self._n_unsent:
            if self._head_bytes or is_reading:
                why = "this request was too slow, and was dropped for others; try again."
                self._refuse(503, why, ("retry-after: 1",))
            elif not self.transport.is_closing():
                self.transport.close()
            if self._n_unsent:  # the unsent refusal; `_refuse` limits the time to send it
                return
        self._abort()  # over TLS, closing would wait for the client

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_in_head:
            self._head_bytes += len(data)
            self._heard_s = self.loop.time()
        super().data_received(data)
        if not self._is_in_head or not self._head_bytes:  # most heads arrive complete and need no timer
            return
        if self._head_bytes > self.limits.head_bytes:
            self._refuse(431, f"headers are longer than {self.limits.head_bytes} bytes.")
        elif self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._expect_head()

    def pause_writing(self) -> None:
        """The client does not read: limit the time, or the unsent response would stay in memory."""
        super().pause_writing()
        self._stalled = self.loop.call_later(self.limits.write_s, self._abort_unread)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def on_message_begin(self) -> None:
        self._is_in_head = True
        super().on_message_begin()
        if self.transport is not self._socket:
            encrypted = self.transport.get_extra_info("ssl_object")
            self.scope["extensions"] = {"tls": {"client_cert_names": names_of(encrypted.getpeercert())}}
            if encrypted.context is not self._shared.tls():
                self._is_leaving = True  # certificates were replaced: close after this request

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self.limits.n_headers:
            self._refuse(431, f"there are more than {self.limits.n_headers} headers.")

    def on_headers_complete(self) -> None:
        self._is_in_head, self._head_bytes = False, 0
        self._stop_timer()
        if self.transport.is_closing():
            return
        size = len(self.url) + sum([len(name) + len(value) for name, value in self.headers])
        if size > self.limits.head_bytes:
            self._refuse(431, f"{size} bytes of headers are more than {self.limits.head_bytes}.")
            return
        if not self._has_place and not self.url.startswith(_HEALTH):
            self._refuse(503, "too many connections; try again.", ("retry-after: 1",))
            return
        super().on_headers_complete()
        if (self._is_leaving or not self._has_place) and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        if not self.transport.is_closing() and self.cycle is not None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_head = True
        if not self.transport.is_closing() and self.cycle is not None:
            if not self.cycle.response_complete:
                self._shared.limiter.mark_busy(self)
            scope: Any = self.cycle.scope
            scope[ARRIVED_S] = arrival_s(self.loop)
            super().on_message_complete()
            if self.cycle.response_complete:
                self._expect_head()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        is_closing, is_last = self.transport.is_closing(), not self.pipeline
        if not is_closing:
            self.flow.resume_reading()
        if not is_closing and not is_last:
            self._start_asgi_task(*self.pipeline.pop())
        self._bound_unread()
        if not is_last or self.transport.is_closing():
            return
        self._shared.limiter.mark_idle(self)
        self._idle_since_s = self.loop.time()
        if self._idle is None:  # one timer serves many requests
            self._idle = self.loop.call_later(self.timeout_keep_alive, self._check_idle)
        if self.cycle.more_body:  # the response did not need it, but the next head follows it
            self._timer = self.loop.call_later(self.limits.body_s, self.transport.close)
        elif self._head_bytes:
            self._expect_head()

    def shutdown(self) -> None:
        """A request is still answered if its head is being received, or if the connection was made for it."""
        self._is_leaving = True
        if self.cycle is not None and not self._head_bytes:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _expect_head(self) -> None:
        self._head_since_s = self._heard_s = self.loop.time()
        self._wait_for_head()

    def _wait_for_head(self) -> None:
        self._stop_timer()
        wait_s = min(self._head_due_s - self.loop.time(), self.limits.stall_s)
        self._timer = self.loop.call_later(wait_s, self._check_head)

    @property
    def _head_due_s(self) -> float:
        """When the head times out: `head_s` after its start, or `stall_s` after its last byte."""
        due_s = self._head_since_s + self.limits.head_s
        return min(due_s, self._heard_s + self.limits.stall_s) if self._head_bytes else due_s

    def _check_idle(self) -> None:
        """Close a connection that has been idle for too long."""
        self._idle = None
        if self._head_bytes or not self.cycle.response_complete or self.transport.is_closing():
            return  # a new timer starts after the response
        left_s = self._idle_since_s + self.timeout_keep_alive - self.loop.time()
        if left_s > 0.0:
            self._idle = self.loop.call_later(left_s, self._check_idle)
        else:
            self.transport.close()

    def _check_head(self) -> None:
        if self.loop.time() < self._head_due_s:
            self._wait_for_head()
        elif self._head_bytes:
            self._refuse(
                408,
                f"the request's head took longer than {self.limits.head_s:g} s, or stalled for "
                f"{self.limits.stall_s:g} s.",
            )
        elif not self.transport.is_closing():
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Begin the next request once the client has read the previous responses.

        Otherwise the responses to a client that sends requests and reads nothing would accumulate in memory.
        """
        cycle.send = ResponseWriter(cycle)
        if cycle.more_body:
            self._shared.limiter.mark_reading(self)
        else:
            self._shared.limiter.mark_busy(self)
        super()._start_asgi_task(cycle, partial(self._when_read, cycle, app))

    async def _when_read(self, cycle: Any, app: Any, *asgi: Any) -> None:
        if self.flow.write_paused:
            await self.flow.drain()
        if not cycle.more_body:
            cycle.scope[IS_WHOLE] = True
        if self.transport.is_closing():
            cycle.disconnected = True
            return
        task = asyncio.current_task()
        assert task is not None
        self._working = (cycle, task)
        try:
            await app(*asgi)
        except asyncio.CancelledError:
            if not cycle.disconnected:
                raise
        finally:
            self._working = None
            del cycle.send  # a reference cycle, which would leave the whole request to the garbage collector

    def _give_up(self) -> None:
        """Cancel the request in progress: its client disconnected.

        A request still reading its body notices by itself.
        """
        if self._working is None:
            return
        cycle, task = self._working
        if not cycle.more_body and not cycle.response_complete:
            cycle.disconnected = True
            task.cancel()

    def _bound_unread(self) -> None:
        """Count unsent response bytes against the budget; drop the connection after `write_s`."""
        self._shared.answers.release(self)
        if self._unread is not None:
            self._unread.cancel()
        n_unread = self._n_unsent
        if not n_unread:
            return
        if self._shared.answers.take(self, n_unread):
            self._unread = self.loop.call_later(self.limits.write_s, self._abort_unread)
        else:
            self._abort()

    def _abort_unread(self) -> None:
        if self._n_unsent:
            self._abort()

    @property
    def _n_unsent(self) -> int:
        """Bytes that the socket has not accepted yet, including those in TLS buffers."""
        if self._socket is None:
            return 0
        n_bytes = self._socket.get_write_buffer_size()
        if self.transport is not self._socket and not self.transport.is_closing():
            n_bytes += self.transport.get_write_buffer_size()
        return n_bytes

    def _abort(self) -> None:
        if self._socket is not None:
            self._socket.abort()

    def _refuse(self, status: int, why: str, more: tuple[str, ...] = ()) -> None:
        """Send an error response without the application, and close the connection."""
        self._stop_timer()
        self._head_bytes = 0  # the rest of the head is ignored
        if self.transport.is_closing():
            return
        self._shared.on_refused(status)
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
        self._bound_unread()  # closing waits until everything is sent
