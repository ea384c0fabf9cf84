"""Other nodes, over connections that are kept: requests, pings, broadcasts. Knows no route and no model."""

import asyncio
import socket
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final
from urllib.parse import urlsplit

import httpx

from pliant.errors import NodeError
from pliant.serve.limits import Limits
from pliant.serve.security import bearer

KEPT_S = 100.0
"""How long a connection may lie unused: less than the node at its other end keeps it (Limits.idle_s)."""
_LINE_BYTES = 4
_FORGETS = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
"""Closed is forgotten. Else the system goes on to send what lies in a socket that was given up, and once the
link is back, a request that was answered elsewhere long ago would run once more."""


@dataclass(frozen=True, slots=True)
class Response:
    """What came back; `sent_bytes` and `received_bytes` count bodies and the headers that nodes set."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    sent_bytes: int
    received_bytes: int


def checked_url(url: str) -> str:
    """`url`, if a node may be called there: http(s)://HOST[:PORT], nothing behind. Raises NodeError."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
        raise NodeError(f"{url!r:.80} is no node's address; give http://HOST:PORT or https://HOST:PORT.")
    return url.rstrip("/")


@final
class Client:
    """Calls other nodes, each with the token it is to be shown; an async context manager."""

    def __init__(self, tls: ssl.SSLContext, limits: Limits) -> None:
        self._limits = limits
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(
                verify=tls,
                trust_env=False,
                limits=httpx.Limits(
                    max_connections=None, max_keepalive_connections=64, keepalive_expiry=KEPT_S
                ),
                socket_options=[_FORGETS],
            ),
            trust_env=False,
            timeout=None,  # a call is bounded as a whole
            headers={"accept-encoding": "identity"},
        )

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

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
        headers = {**headers, **bearer(token)}
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    return await self._call(method, url, headers, body)
                except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                    # A connection that was kept may have been closed as it was used: once more on a new one.
                    # Nothing runs twice by that: requests carry an id.
                    return await self._call(method, url, headers, body)
        except TimeoutError:
            raise NodeError(f"{url} did not answer within {timeout_s:.3g} s.", status=504) from None
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError) as error:
            raise NodeError(
                f"{url} could not be asked: {error or type(error).__name__}.", status=502
            ) from error

    async def _call(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Response:
        request = self._http.build_request(method, url, headers=headers, content=body)
        response = await self._http.send(request, stream=True)
        try:
            parts, n_bytes = [], 0
            async for part in response.aiter_raw():
                parts.append(part)
                n_bytes += len(part)
                if n_bytes > self._limits.body_bytes:
                    raise NodeError(f"{url} answered more than {self._limits.body_bytes} bytes.", status=502)
        finally:
            await response.aclose()
        return Response(
            response.status_code,
            response.headers,
            b"".join(parts),
            _head_bytes(request.headers) + len(body),
            _head_bytes(response.headers) + n_bytes,
        )


def _head_bytes(headers: httpx.Headers) -> int:
    return sum(len(name) + len(value) + _LINE_BYTES for name, value in headers.raw)
