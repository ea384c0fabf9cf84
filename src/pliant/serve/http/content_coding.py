"""Compressed bodies (RFC 9110, 8.4): requests within the limits, responses for clients that accept them."""

import asyncio
import re
import zlib
from collections.abc import Iterator
from typing import Any, final

from starlette.types import ASGIApp, Receive, Scope, Send

from pliant.errors import InputError, NodeError
from pliant.serve.http.raw_headers import headers_of

CODINGS = "gzip, deflate, identity"
"""Codings of requests. Responses use the first that the client accepts."""
LEAST_BYTES = 1024
"""Shorter responses fit one packet uncompressed."""
_PIECE_BYTES = 1 << 18
_LEVEL = 1
"""The fastest level, to leave the CPU to inference."""
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_ACCEPTED = {
    coding: re.compile(rf"\b{coding}\b(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))", re.IGNORECASE)
    for coding in ("gzip", "deflate")
}
_THREAD_BYTES = 1 << 17
"""Longer responses are compressed on a thread, since the event loop would stand still."""


@final
class Decoder:
    """Decompresses one body in pieces of at most `_PIECE_BYTES`, whatever its total size.

    `coding` is the value of Content-Encoding; raises NodeError (415) for an unsupported one.
    """

    def __init__(self, coding: str) -> None:
        name = coding.strip().lower()
        if name not in ("identity", *_WINDOWS):
            raise NodeError(f"the content coding {coding[:40]!r} is not supported; use {CODINGS}.", 415)
        self._coding = name
        self._stream = zlib.decompressobj(_WINDOWS[name]) if name in _WINDOWS else None

    def pieces(self, part: bytes) -> Iterator[bytes]:
        """Decompress the next part. Raises InputError for invalid data."""
        stream = self._stream
        if stream is None:
            yield part
            return
        is_full = False
        while part or (is_full and not stream.eof):  # a full piece may leave data in the stream
            if stream.eof:
                raise InputError(f"more follows the end of the body's {self._coding} data; send one stream.")
            try:
                piece = stream.decompress(part, _PIECE_BYTES)
            except zlib.error as error:
                raise InputError(f"the body is not valid {self._coding} data: {error}.") from error
            part, is_full = stream.unconsumed_tail or stream.unused_data, len(piece) == _PIECE_BYTES
            yield piece

    def check_end(self) -> None:
        """Raise InputError if the data is incomplete."""
        if self._stream is not None and not self._stream.eof:
            raise InputError(f"the body's {self._coding} data are cut off; send them whole.")


@final
class ResponseCompression:
    """Middleware that compresses whole responses of at least `LEAST_BYTES` with gzip, or else deflate.

    Only for clients that accept it; no event streams.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            accepted = ",".join(headers_of(scope, b"accept-encoding"))
            coding = next((one for one, word in _ACCEPTED.items() if word.search(accepted)), None)
            send = _ResponseEncoder(send, coding)
        await self._app(scope, receive, send)


@final
class _ResponseEncoder:
    """Replaces `send` of one request; the head of a response that is compressed waits for its body.

    Without `coding`, the response is only marked as one that others get compressed.
    """

    def __init__(self, send: Send, coding: str | None) -> None:
        self._send, self._coding = send, coding
        self._head: Any = None

    async def __call__(self, message: Any) -> None:
        coding = self._coding
        if message["type"] == "http.response.start" and _is_worth_coding(message):
            message = {**message, "headers": [*message["headers"], (b"vary", b"Accept-Encoding")]}
            if coding is not None:
                self._head = message
                return
        head, self._head = self._head, None
        if head is not None and coding is not None:
            body = message.get("body", b"")
            if not message.get("more_body"):
                is_long = len(body) >= _THREAD_BYTES
                body = await asyncio.to_thread(_encode, body, coding) if is_long else _encode(body, coding)
                about = {b"content-encoding": coding.encode(), b"content-length": b"%d" % len(body)}
                kept = [one for one in head["headers"] if one[0] not in about]
                head = {**head, "headers": [*kept, *about.items()]}
                message = {**message, "body": body}
            await self._send(head)
        await self._send(message)


def _is_worth_coding(head: Any) -> bool:
    """Whether the response has a body of known length that is long enough, and not compressed before."""
    headers = dict(head["headers"])
    return b"content-encoding" not in headers and int(headers.get(b"content-length", 0)) >= LEAST_BYTES


def _encode(body: bytes, coding: str) -> bytes:
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOWS[coding])
    return stream.compress(body) + stream.flush()
