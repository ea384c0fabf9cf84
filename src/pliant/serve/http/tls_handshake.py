"""The TLS handshake of a connection that already has its place."""

import asyncio
import ssl
from contextlib import suppress
from typing import Protocol, final

from pliant.serve.http.limits import Limits


class Connection(Protocol):
    """An asyncio protocol that takes its place when it is accepted, before it is encrypted."""

    def accepted(self, transport: asyncio.Transport) -> None: ...
    def connection_made(self, transport: asyncio.Transport) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...


@final
class TlsHandshake(asyncio.Protocol):
    """Runs the handshake of `connection`, which hears only of what follows it.

    asyncio makes a protocol's connection once the handshake is complete: until then nothing could count
    or close it. A handshake takes `head_s` at most, and the end of the encryption `write_s`.
    """

    def __init__(self, connection: Connection, tls: ssl.SSLContext, limits: Limits) -> None:
        self._connection, self._tls, self._limits = connection, tls, limits
        self._early: list[bytes] = []
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._connection.accepted(transport)
        self._task = asyncio.get_running_loop().create_task(self._run(transport))

    def data_received(self, data: bytes) -> None:
        """What the client sent with the end of its handshake comes before `start_tls` returns."""
        self._early.append(data)

    async def _run(self, accepted: asyncio.Transport) -> None:
        encrypted = None
        if not accepted.is_closing():
            with suppress(OSError):  # ssl.SSLError and timeouts are some
                encrypted = await asyncio.get_running_loop().start_tls(
                    accepted,
                    self,
                    self._tls,
                    server_side=True,
                    ssl_handshake_timeout=self._limits.head_s,
                    ssl_shutdown_timeout=self._limits.write_s,
                )
        if encrypted is None or accepted.is_closing():  # asyncio tells nobody of the end of a handshake
            self._connection.connection_lost(None)
            return
        encrypted.set_protocol(self._connection)  # type: ignore[arg-type]
        self._connection.connection_made(encrypted)
        if self._early:
            self._connection.data_received(b"".join(self._early))
