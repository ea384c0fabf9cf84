"""A client for other nodes with persistent connections: requests, pings, broadcasts."""

import asyncio
import logging
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import final
from urllib.parse import urlsplit

from pliant.errors import NodeError
from pliant.serve.access.security import bearer, is_unencrypted, unencrypted_warning
from pliant.serve.http.limits import Limits
from pliant.serve.http.raw_headers import HeaderTexts
from pliant.serve.upstream.client_connection import ClientConnection, RawResponse

KEPT_S = 100.0
"""Maximum idle time of a connection: less than that of the server (Limits.idle_s)."""
_OPENING_S = 10.0
_LINE_BYTES = 4
_LOG = logging.getLogger("pliant.serve")
_MOST_WARNED = 256
MOST_KEPT = 128
"""Maximum number of idle connections to all nodes: each has a descriptor (server.py reserves 256)."""
_READY = 2
_FORGETS = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
"""Drop unsent data on close. Otherwise the kernel would still send the request of an abandoned connection
once the link recovers, and it would run again although another node had answered it."""


@dataclass(frozen=True, slots=True)
class Response:
    """A response; `away_s` is the time from sending to receiving, without opening a connection.

    `sent_bytes` and `received_bytes` count bodies and headers.
    """

    status: int
    headers: Mapping[str, str]
    content: bytes
    sent_bytes: int
    received_bytes: int
    away_s: float


@lru_cache(maxsize=256)
def checked_url(url: str) -> str:
    """Validate a node's URL: http(s)://HOST[:PORT] without a path. Raises NodeError."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
        shown = url.rpartition("@")[2] if "@" in url else url  # it may contain a password before the @
        raise NodeError(f"{shown!r:.80} is not a node's address; give http://HOST:PORT or https://HOST:PORT.")
    return url.rstrip("/")


@final
class Client:
    """Calls other nodes, each with its token; an async context manager.

    A connection carries one request at a time and is then kept for the next. httpx would take most of the
    time of a forwarded request: bench/service.py compares a node with a forwarder that uses httpx.
    """

    def __init__(self, tls: ssl.SSLContext, limits: Limits) -> None:
        self._tls, self._limits = tls, limits
        self._kept: dict[ClientConnection, tuple[str, str]] = {}
        """Idle connections and their destinations, least recently used first."""
        self._spares: dict[tuple[str, str], asyncio.Task[None]] = {}
        """Spare connections that are being opened."""
        self._warned: set[str] = set()

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._spares.values():
            task.cancel()
        await asyncio.gather(*self._spares.values(), return_exceptions=True)
        for connection in self._kept:
            connection.close()
        self._kept.clear()

    def renew(self, tls: ssl.SSLContext) -> None:
        """Use `tls` for new connections, and close idle ones."""
        self._tls = tls
        for connection in self._kept:
            connection.close()
        self._kept.clear()

    async def call(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        timeout_s: float,
        token: str | None,
    ) -> Response:
        """Send a request and return its complete response.

        Raises NodeError (502, 504) without a valid one.
        """
        if token is not None:
            self._warn_unencrypted(url)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._call(method, url, {**headers, **bearer(token)}, body)
        except TimeoutError:
            raise NodeError(f"{url} did not answer within {timeout_s:.3g} s.", status=504) from None
        except NodeError as error:
            raise NodeError(f"the request to {url} failed: {error}", status=502) from error
        except (OSError, ssl.SSLError, UnicodeError) as error:
            raise NodeError(
                f"the request to {url} failed: {error or type(error).__name__}.", status=502
            ) from error

    def _warn_unencrypted(self, url: str) -> None:
        """Warn once for each destination to which a token is sent unencrypted."""
        place = "{0.scheme}://{0.netloc}".format(urlsplit(url))
        if place not in self._warned and len(self._warned) < _MOST_WARNED and is_unencrypted(place):
            self._warned.add(place)
            _LOG.warning(unencrypted_warning(place))

    def spare(self, url: str) -> None:
        """Prepare two connections to `url`: one for the next request, and one spare.

        Opening a connection takes one round trip, or two with TLS, which a request with a deadline may not
        afford. A cancelled request closes its connection, so the next request would be late too. Raises
        nothing: if no connection can be opened, a request will fail with the error.
        """
        parts = urlsplit(url)
        there = (parts.scheme, parts.netloc)
        n_ready = sum(place == there and connection.is_open for connection, place in self._kept.items())
        if n_ready < _READY and there not in self._spares:
            self._spares[there] = asyncio.get_running_loop().create_task(self._open_spare(there))

    async def _open_spare(self, there: tuple[str, str]) -> None:
        try:
            async with asyncio.timeout(_OPENING_S):
                connection = await self._open_connection(*there)
        except (OSError, ssl.SSLError, UnicodeError):
            return
        finally:
            del self._spares[there]
        self._keep(connection, there)

    async def _call(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Response:
        parts = urlsplit(url)
        path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        lines = [f"{method} {path} HTTP/1.1", f"host: {parts.netloc}", "accept-encoding: identity"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if method != "GET":
            lines.append(f"content-length: {len(body)}")
        head = "\r\n".join((*lines, "\r\n")).encode("ascii")
        received = await self._ask(parts.scheme, parts.netloc, head + body)
        n_received = sum([len(name) + len(value) + _LINE_BYTES for name, value in received.headers])
        n_received += len(received.content)
        answer = HeaderTexts(received.headers)
        return Response(
            received.status, answer, received.content, len(head) + len(body), n_received, received.away_s
        )

    async def _ask(self, scheme: str, netloc: str, request: bytes) -> RawResponse:
        """Send a request on an idle connection, or else on a new one.

        The server may close an idle connection while it is used; the request is then repeated on a new
        connection. It does not run twice, since requests carry an id.
        """
        there = (scheme, netloc)
        connection = self._take(there)
        if connection is not None:
            try:
                return await self._exchange(connection, there, request)
            except ConnectionError:
                pass
        return await self._exchange(await self._open_connection(scheme, netloc), there, request)

    async def _exchange(
        self, connection: ClientConnection, there: tuple[str, str], request: bytes
    ) -> RawResponse:
        received = await connection.ask(request)
        if connection.is_open:
            self._keep(connection, there)
        else:
            connection.close()
        return received

    def _keep(self, connection: ClientConnection, there: tuple[str, str]) -> None:
        connection.idle_since_s = time.monotonic()
        self._kept[connection] = there
        self._drop()

    def _take(self, there: tuple[str, str]) -> ClientConnection | None:
        """The most recently used idle connection to a destination."""
        self._drop()
        for connection in reversed(self._kept):
            if self._kept[connection] == there and connection.is_open:
                del self._kept[connection]
                return connection
        return None

    def _drop(self) -> None:
        """Close the least recently used connections that are expired or too many."""
        oldest_s = time.monotonic() - KEPT_S
        while self._kept:
            first = next(iter(self._kept))
            if first.is_open and first.idle_since_s >= oldest_s and len(self._kept) <= MOST_KEPT:
                return
            del self._kept[first]
            first.close()

    async def _open_connection(self, scheme: str, netloc: str) -> ClientConnection:
        parts, limits = urlsplit(f"{scheme}://{netloc}"), self._limits
        tls = self._tls if scheme == "https" else None
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: ClientConnection(limits.head_bytes, limits.body_bytes),
            parts.hostname or "",
            parts.port or (80 if tls is None else 443),
            ssl=tls,
        )
        assert connection.transport is not None
        connection.transport.get_extra_info("socket").setsockopt(*_FORGETS)
        return connection
