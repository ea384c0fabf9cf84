"""Compressed bodies (RFC 9110, 8.4): requests within the limits, responses for clients that accept gzip."""

import re
import zlib
from collections.abc import Iterator
from typing import final

from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from pliant.errors import InputError, NodeError
from pliant.serve.http.raw_headers import header_of

CODINGS = "gzip, deflate, identity"
"""Codings of requests. Responses use gzip or no coding."""
LEAST_BYTES = 1024
"""Shorter responses fit one packet uncompressed."""
_PIECE_BYTES = 1 << 18
_LEVEL = 1
"""The fastest level, to leave the CPU to inference."""
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_REFUSED = re.compile(r"gzip\s*;\s*q=0(?:\.0*)?\s*(?:,|$)", re.IGNORECASE)


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
class GzipMiddleware:
    """Middleware that compresses responses of at least `LEAST_BYTES` with gzip, if accepted.

    No event streams.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._coded = GZipMiddleware(app, minimum_size=LEAST_BYTES, compresslevel=_LEVEL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        accepted = header_of(scope, b"accept-encoding") or "" if scope["type"] == "http" else ""
        is_coded = "gzip" in accepted and not _REFUSED.search(accepted)
        await (self._coded if is_coded else self._app)(scope, receive, send)
