"""Write a response's head and body in one system call, which also wakes the client only once."""

from typing import Any, final

from uvicorn.protocols.http.httptools_impl import HEADER_RE, HEADER_VALUE_RE, STATUS_LINE


@final
class ResponseWriter:
    """Replaces `send` of a request's `cycle`: writes the head and body of a response at once.

    The head waits for the body if the body's length is known. In all other cases uvicorn's own `send` writes
    each part, because the body may come much later or not at all. uvicorn does not log responses written
    here.
    """

    def __init__(self, cycle: Any) -> None:
        self._cycle, self._send = cycle, cycle.send
        self._head: Any = None
        self._length = 0

    async def __call__(self, message: Any) -> None:
        cycle, head = self._cycle, self._head
        if head is None or message["type"] != "http.response.body":
            self._head = message if self._is_followed(message) else None
            if self._head is None:
                await self._send(message)
            return
        self._head = None
        body = message.get("body", b"")
        if message.get("more_body") or len(body) != self._length:
            await self._send(head)
            await self._send(message)
            return
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        if not cycle.disconnected:
            self._write(head, body)

    def _is_followed(self, message: Any) -> bool:
        """Whether a body of known length will follow and the connection stays open."""
        cycle, self._length = self._cycle, 0
        if message["type"] != "http.response.start" or cycle.scope["method"] == "HEAD":
            return False
        for name, value in message["headers"]:
            if name == b"content-length":
                self._length = int(value)
            elif name in (b"connection", b"transfer-encoding"):
                return False
        return self._length > 0 and cycle.keep_alive

    def _write(self, head: Any, body: bytes) -> None:
        cycle, headers = self._cycle, [*self._cycle.default_headers, *head["headers"]]
        if HEADER_RE.search(b"".join([name for name, _ in headers])):
            raise RuntimeError("Invalid HTTP header name.")
        if HEADER_VALUE_RE.search(b"".join([value for _, value in headers])):
            raise RuntimeError("Invalid HTTP header value.")
        lines = [b"%b: %b\r\n" % header for header in headers]
        cycle.transport.write(b"".join((STATUS_LINE[head["status"]], *lines, b"\r\n", body)))
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        cycle.message_event.set()
        if not cycle.keep_alive:  # closed by a shutdown in the meantime
            cycle.transport.close()
        cycle.on_response()
