"""Read request bodies into memory, with limits on time, size and number."""

import asyncio
from dataclasses import dataclass, field
from typing import final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from pliant.errors import NodeError
from pliant.serve.http.byte_budget import ByteBudget
from pliant.serve.http.content_coding import Decoder
from pliant.serve.http.limits import Limits
from pliant.serve.http.raw_headers import header_of, headers_of

IS_WHOLE = "pliant.is_whole"
"""Key in the scope of a request whose body arrived together with its head."""
ARRIVED_S = "pliant.came_s"
"""Key in a request's scope: when it arrived, on the clock of the event loop."""
_LEAVES = {"connection": "close", "retry-after": "1"}


@dataclass(eq=False, slots=True)
class _BufferedBody:
    """A body that is being read or awaits its response; `timeout` bounds a read that may be slow."""

    address: str
    timeout: asyncio.Timeout | None = None
    is_evicted: bool = False
    parts: list[bytes] = field(default_factory=list)

    def evict(self) -> None:
        self.is_evicted = True
        if self.timeout is not None and not self.timeout.expired():
            self.timeout.reschedule(0.0)  # immediately


@final
class BodyReader:
    """Reads bodies; all bodies together hold at most `buffer_bytes`, also while they await responses.

    A body is given up if it stalls for `stall_s` or is slower than `body_Bps` after `body_s`. If another body
    needs its room, the oldest incomplete body is given up too.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._budget = ByteBudget(limits.buffer_bytes, limits.client_buffer_bytes)

    @property
    def n_bytes(self) -> int:
        """The number of body bytes held now."""
        return self._budget.n_bytes

    def read(self, request: Request, most: int) -> "_BodyContext":
        """A context that yields the complete, decompressed body, which counts as held until the context ends.

        Entering raises NodeError if the body has more than `most` bytes, compressed or not (413), is too slow
        (408), or has an unsupported encoding (415); InputError for damaged data; and HTTPException (503) if
        there is no room. Decompressed bytes count as they are produced.
        """
        return _BodyContext(self, request, most)

    async def begin(self, body: _BufferedBody, request: Request, most: int) -> bytes:
        """Read like `read`; the body is held until `end`."""
        _check(request, most)
        coding = ", ".join(headers_of(request.scope, b"content-encoding")) or "identity"
        if IS_WHOLE in request.scope and coding == "identity":
            content = await self._read_whole(body, request, most)
        else:
            content = await self._read_parts(body, request, most, Decoder(coding))
        self._budget.keep(body)
        return content

    def end(self, body: _BufferedBody) -> None:
        """Free the body."""
        self._budget.release(body)

    async def _read_whole(self, body: _BufferedBody, request: Request, most: int) -> bytes:
        """Return a body that has already arrived uncompressed."""
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        content: bytes = message["body"]
        if len(content) > most:
            raise _too_long(most)
        if not self._budget.take(body, len(content)):
            raise _no_room(self._limits)
        return content

    async def _read_parts(self, body: _BufferedBody, request: Request, most: int, decoder: Decoder) -> bytes:
        limits, start_s = self._limits, asyncio.get_running_loop().time()
        n_bytes = n_plain = 0
        body.timeout = asyncio.timeout(None)
        try:
            async with body.timeout as timeout:
                self._wait(timeout, start_s, 0)
                async for part in request.stream():
                    n_bytes += len(part)
                    if n_bytes > most:
                        raise _too_long(most)
                    for piece in decoder.pieces(part):
                        n_plain += len(piece)
                        if n_plain > most:
                            raise _too_long(most)
                        if body.is_evicted or not self._budget.take(body, len(piece)):
                            raise _no_room(limits)
                        body.parts.append(piece)
                        if n_plain > n_bytes:
                            await asyncio.sleep(0)  # let other tasks run between two pieces
                    self._wait(timeout, start_s, n_bytes)
                decoder.check_end()
        except TimeoutError:
            if body.is_evicted:
                raise _no_room(limits) from None
            raise NodeError(
                f"the body was too slow: {n_bytes} bytes came; at most {limits.stall_s:g} s may pass without "
                f"any, and after {limits.body_s:g} s {limits.body_Bps} bytes/s are required.",
                status=408,
            ) from None
        content = b"".join(body.parts)
        body.parts.clear()
        return content

    def _wait(self, timeout: asyncio.Timeout, start_s: float, n_bytes: int) -> None:
        """Set the time limit of the next part."""
        limits, now_s = self._limits, asyncio.get_running_loop().time()
        timeout.reschedule(min(now_s + limits.stall_s, start_s + limits.body_s + n_bytes / limits.body_Bps))


@final
class _BodyContext:
    """The context of one body: entering reads it, leaving frees it."""

    __slots__ = ("_bodies", "_body", "_most", "_request")

    def __init__(self, bodies: BodyReader, request: Request, most: int) -> None:
        self._bodies, self._request, self._most = bodies, request, most
        self._body = _BufferedBody(request.client.host if request.client else "")

    async def __aenter__(self) -> bytes:
        try:
            return await self._bodies.begin(self._body, self._request, self._most)
        except BaseException:
            self._bodies.end(self._body)
            raise

    async def __aexit__(self, *error: object) -> None:
        self._bodies.end(self._body)


def _check(request: Request, most: int) -> None:
    said = header_of(request.scope, b"content-length") or "0"
    if not said.isdigit() or int(said) > most:
        raise _too_long(most)


def _too_long(most: int) -> NodeError:
    return NodeError(f"the body is longer than {most} bytes.", status=413)


def _no_room(limits: Limits) -> HTTPException:
    why = (
        f"other requests use all of the {limits.buffer_bytes} bytes of buffer memory "
        f"({limits.client_buffer_bytes} for one client); try again."
    )
    return HTTPException(503, why, _LEAVES)
