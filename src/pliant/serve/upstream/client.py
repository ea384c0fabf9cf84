"""Other nodes, over connections that are kept: requests, pings, broadcasts."""

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
from pliant.serve.http.limits import Limits
from pliant.serve.http.raw_headers import HeaderTexts
from pliant.serve.http.security import bearer, in_clear, is_in_clear
from pliant.serve.upstream.exchange import Connection, Received

KEPT_S = 100.0
"""How long a connection may lie unused: less than the node at its other end keeps it (Limits.idle_s)."""
_OPENING_S = 10.0
_LINE_BYTES = 4
_LOG = logging.getLogger("pliant.serve")
_MOST_WARNED = 256
MOST_KEPT = 128
"""Connections to all nodes that lie unused: each has a descriptor (server.py spares 256 for such)."""
_READY = 2
_FORGETS = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
"""Closed is forgotten. Else the system goes on to send what lies in a socket that was given up, and once the
link is back, a request that was answered elsewhere long ago would run once more."""


@dataclass(frozen=True, slots=True)
class Response:
    """What came back, and how long it was away: from sent to received, without opening a connection.

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
    """`url`, if a node may be called there: http(s)://HOST[:PORT], nothing behind. Raises NodeError."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
        shown = url.rpartition("@")[2] if "@" in url else url  # before it, a password may stand
        raise NodeError(f"{shown!r:.80} is no node's address; give http://HOST:PORT or https://HOST:PORT.")
    return url.rstrip("/")


@final
class Client:
    """Calls other nodes, each with the token it is to be shown; an async context manager.

    A connection carries one request at a time and is kept for the next. httpx would take most of the time of
    a forwarded request: bench/service.py compares a node with a forwarder that uses it.
    """

    def __init__(self, tls: ssl.SSLContext, limits: Limits) -> None:
        self._tls, self._limits = tls, limits
        self._kept: dict[Connection, tuple[str, str]] = {}
        """Unused connections and where they lead, in order of their last use."""
        self._spares: dict[tuple[str, str], asyncio.Task[None]] = {}
        """Those that are being opened."""
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
        """New connections are encrypted by `tls`; those that lie unused are closed."""
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
        """One request and its whole answer. Raises NodeError (502, 504) where none comes, or one too long."""
        if token is not None:
            self._warn_in_clear(url)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._call(method, url, {**headers, **bearer(token)}, body)
        except TimeoutError:
            raise NodeError(f"{url} did not answer within {timeout_s:.3g} s.", status=504) from None
        except NodeError as error:
            raise NodeError(f"{url} could not be asked: {error}", status=502) from error
        except (OSError, ssl.SSLError, UnicodeError) as error:
            raise NodeError(
                f"{url} could not be asked: {error or type(error).__name__}.", status=502
            ) from error

    def _warn_in_clear(self, url: str) -> None:
        """Once for each place that a token goes to where others could read it on its way."""
        place = "{0.scheme}://{0.netloc}".format(urlsplit(url))
        if place not in self._warned and len(self._warned) < _MOST_WARNED and is_in_clear(place):
            self._warned.add(place)
            _LOG.warning(in_clear(place))

    def spare(self, url: str) -> None:
        """Have two connections to `url` ready: one for a request that comes now, and one more.

        Opening one takes a round trip, with TLS two, which a request with a deadline may not have. A request
        that is given up takes its connection with it, and the next would come too late again. Raises nothing:
        a request finds out where none can be opened.
        """
        parts = urlsplit(url)
        there = (parts.scheme, parts.netloc)
        n_ready = sum(place == there and connection.is_open for connection, place in self._kept.items())
        if n_ready < _READY and there not in self._spares:
            self._spares[there] = asyncio.get_running_loop().create_task(self._open_spare(there))

    async def _open_spare(self, there: tuple[str, str]) -> None:
        try:
            async with asyncio.timeout(_OPENING_S):
                connection = await self._opened(*there)
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

    async def _ask(self, scheme: str, netloc: str, request: bytes) -> Received:
        """On a connection that was kept, or else on a new one.

        One that was kept may have been closed as it was used: then once more on a new one. Nothing runs
        twice by that, as requests carry an id.
        """
        there = (scheme, netloc)
        connection = self._take(there)
        if connection is not None:
            try:
                return await self._asked(connection, there, request)
            except ConnectionError:
                pass
        return await self._asked(await self._opened(scheme, netloc), there, request)

    async def _asked(self, connection: Connection, there: tuple[str, str], request: bytes) -> Received:
        received = await connection.ask(request)
        if connection.is_open:
            self._keep(connection, there)
        else:
            connection.close()
        return received

    def _keep(self, connection: Connection, there: tuple[str, str]) -> None:
        connection.idle_since_s = time.monotonic()
        self._kept[connection] = there
        self._drop()

    def _take(self, there: tuple[str, str]) -> Connection | None:
        """The one that was used last of those that lead there."""
        self._drop()
        for connection in reversed(self._kept):
            if self._kept[connection] == there and connection.is_open:
                del self._kept[connection]
                return connection
        return None

    def _drop(self) -> None:
        """Close those that were used first, where they have lain for too long or are too many."""
        oldest_s = time.monotonic() - KEPT_S
        while self._kept:
            first = next(iter(self._kept))
            if first.is_open and first.idle_since_s >= oldest_s and len(self._kept) <= MOST_KEPT:
                return
            del self._kept[first]
            first.close()

    async def _opened(self, scheme: str, netloc: str) -> Connection:
        parts, limits = urlsplit(f"{scheme}://{netloc}"), self._limits
        tls = self._tls if scheme == "https" else None
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(limits.head_bytes, limits.body_bytes),
            parts.hostname or "",
            parts.port or (80 if tls is None else 443),
            ssl=tls,
        )
        assert connection.transport is not None
        connection.transport.get_extra_info("socket").setsockopt(*_FORGETS)
        return connection
