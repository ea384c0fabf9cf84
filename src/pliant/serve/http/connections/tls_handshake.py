"""The TLS handshake of a connection that has already taken its place."""

import asyncio
import ssl
from contextlib import suppress
from typing import Protocol, final

from pliant.serve.http.limits import Limits


class AcceptedProtocol(Protocol):
    """An asyncio protocol that takes its place when it is accepted, before the TLS handshake."""

    def accepted(self, transport: asyncio.Transport) -> None: ...
    def connection_made(self, transport: asyncio.Transport) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...


@final
class TlsHandshake(asyncio.Protocol):
    """Runs the TLS handshake of `connection`, which receives only the data after it.

    asyncio calls a protocol's `connection_made` after the handshake, so without this class nothing could
    count or close a connection during its handshake. A handshake takes at most `head_s`, a TLS shutdown
    `write_s`.
    """

    def __init__(self, connection: AcceptedProtocol, tls: ssl.SSLContext, limits: Limits) -> None:
        self._connection, self._tls, self._limits = connection, tls, limits
        self._early: list[bytes] = []
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._connection.accepted(transport)
        self._task = asyncio.get_running_loop().create_task(self._run(transport))

    def data_received(self, data: bytes) -> None:
        """Keep data that arrives with the end of the handshake, before `start_tls` returns."""
        self._early.append(data)

    async def _run(self, accepted: asyncio.Transport) -> None:
        encrypted = None
        if not accepted.is_closing():
            with suppress(OSError):  # includes ssl.SSLError and timeouts
                encrypted = await asyncio.get_running_loop().start_tls(
                    accepted,
                    self,
                    self._tls,
                    server_side=True,
                    ssl_handshake_timeout=self._limits.head_s,
                    ssl_shutdown_timeout=self._limits.write_s,
                )
        if encrypted is None or accepted.is_closing():  # asyncio does not report that a handshake ended
            self._connection.connection_lost(None)
            return
        encrypted.set_protocol(self._connection)  # type: ignore[arg-type]
        self._connection.connection_made(encrypted)
        if self._early:
            self._connection.data_received(b"".join(self._early))
