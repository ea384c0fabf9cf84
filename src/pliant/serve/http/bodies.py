"""The request bodies in memory: limits of time, size and number."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from pliant.errors import NodeError
from pliant.serve.http.client_budget import ByteBudget
from pliant.serve.http.content_coding import Decoder
from pliant.serve.http.limits import Limits

WHOLE = "pliant.is_whole"
"""In the scope of a request whose body has come with its head."""
_LEAVES = {"connection": "close", "retry-after": "1"}


@dataclass(eq=False, slots=True)
class _Body:
    """One body that is being read, or waits for its answer; `timeout` ends its reading."""

    address: str
    timeout: asyncio.Timeout
    is_evicted: bool = False
    parts: list[bytes] = field(default_factory=list)

    def evict(self) -> None:
        self.is_evicted = True
        if not self.timeout.expired():
            self.timeout.reschedule(0.0)  # at once


@final
class Bodies:
    """Reads bodies; they take `buffer_bytes` at most together, also while they wait for an answer.

    A body that stands still for `stall_s`, or is slower than `body_Bps` after `body_s`, is given up,
    and so is the oldest that is not complete where another needs its room.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._budget = ByteBudget(limits.buffer_bytes, limits.client_buffer_bytes)

    @property
    def n_bytes(self) -> int:
        """What is held of all bodies now."""
        return self._budget.n_bytes

    @asynccontextmanager
    async def read(self, request: Request, most: int) -> AsyncIterator[bytes]:
        """The whole body, decompressed, which counts as held until the context ends.

        Raises NodeError for one of more than `most` bytes (413), compressed or not, too slow (408), or in
        another coding (415), InputError for broken data, and HTTPException (503) where there is no room for
        it. A body counts by its decompressed bytes, while these come.
        """
        _check(request, most)
        body = _Body(request.client.host if request.client else "", asyncio.timeout(None))
        try:
            yield await self._read(body, request, most)
        finally:
            self._budget.release(body)

    async def _read(self, body: _Body, request: Request, most: int) -> bytes:
        limits, start_s, n_bytes = self._limits, asyncio.get_running_loop().time(), 0
        coding = ", ".join(request.headers.getlist("content-encoding")) or "identity"
        decoder, n_plain = Decoder(coding), 0
        is_awaited = WHOLE not in request.scope or coding != "identity"
        try:
            async with body.timeout if is_awaited else nullcontext() as timeout:
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
                            await asyncio.sleep(0)  # others have their turn between two pieces
                    self._wait(timeout, start_s, n_bytes)
                decoder.check_end()
        except TimeoutError:
            if body.is_evicted:
                raise _no_room(limits) from None
            raise NodeError(
                f"the body was too slow: {n_bytes} bytes came; at most {limits.stall_s:g} s may pass without "
                f"any, and after {limits.body_s:g} s {limits.body_Bps} bytes/s are asked for.",
                status=408,
            ) from None
        self._budget.keep(body)
        content = b"".join(body.parts)
        body.parts.clear()
        return content

    def _wait(self, timeout: asyncio.Timeout | None, start_s: float, n_bytes: int) -> None:
        """Until when the next part may come."""
        if timeout is None:
            return
        limits, now_s = self._limits, asyncio.get_running_loop().time()
        timeout.reschedule(min(now_s + limits.stall_s, start_s + limits.body_s + n_bytes / limits.body_Bps))


def _check(request: Request, most: int) -> None:
    said = request.headers.get("content-length", "0")
    if not said.isdigit() or int(said) > most:
        raise _too_long(most)


def _too_long(most: int) -> NodeError:
    return NodeError(f"the body is longer than {most} bytes.", status=413)


def _no_room(limits: Limits) -> HTTPException:
    why = (
        f"bodies of other requests take all of the {limits.buffer_bytes} bytes that are kept "
        f"({limits.client_buffer_bytes} for one client); try again."
    )
    return HTTPException(503, why, _LEAVES)
