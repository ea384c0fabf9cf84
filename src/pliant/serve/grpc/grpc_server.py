"""Serve the protocol over gRPC, on the event loop of the node."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from pliant.errors import NodeError
from pliant.serve.access.credentials import PemKeyPair
from pliant.serve.access.security import ListenAddress
from pliant.serve.grpc.connection_watch import GrpcConnections
from pliant.serve.grpc.grpc_service import GrpcService
from pliant.serve.grpc.message_coding import AS_SENT, COMPRESSED
from pliant.serve.http.limits import Limits

_CALLS_AT_ONCE = 256
"""Further calls are refused before their messages are read: each may hold a message of
`Limits.body_bytes`."""

_QUIET_S, _CLOSING_S = 0.1, 2.0


@asynccontextmanager
async def serve_grpc(
    listen: ListenAddress,
    service: GrpcService,
    key_pair: Callable[[], PemKeyPair | None],
    limits: Limits,
) -> AsyncIterator[ListenAddress]:
    """Serve gRPC and yield its address until the context ends; pending calls are then completed first.

    `key_pair` returns the certificate for new connections. Raises NodeError if the server cannot listen at
    `listen`.
    """
    server = grpc.aio.server(options=_options(limits), maximum_concurrent_rpcs=_CALLS_AT_ONCE)
    server.add_generic_rpc_handlers((service.handler(),))
    credentials = _credentials(key_pair)
    try:
        if credentials is None:
            port = server.add_insecure_port(str(listen))
        else:
            port = server.add_secure_port(str(listen), credentials)
    except RuntimeError as error:
        raise NodeError(f"nothing can answer gRPC at {listen}: {error}. Name another address.") from error
    await server.start()
    loop = asyncio.get_running_loop()
    connections = GrpcConnections(port, limits, loop.time)
    service.around = connections.call
    watching = loop.create_task(connections.watch())
    try:
        yield ListenAddress(listen.host, port)
    finally:
        watching.cancel()
        await asyncio.wait({watching})
        await _refuse_calls(service)
        await server.stop(limits.hop_s + limits.body_s)


async def _refuse_calls(service: GrpcService) -> None:
    """Refuse further calls, until none has arrived for a while.

    Calls that have arrived and were not passed on yet are cancelled by `server.stop`. Clients do not send a
    cancelled call again, but one that was refused as unavailable.
    """
    loop, service.is_closing = asyncio.get_running_loop(), True
    ends_s, n_refused = loop.time() + _CLOSING_S, -1
    while n_refused < service.n_refused and loop.time() < ends_s:
        n_refused = service.n_refused
        await asyncio.sleep(_QUIET_S)


def _options(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),  # else two nodes at one port would share its calls
        AS_SENT,
        COMPRESSED,
        ("grpc.max_receive_message_length", limits.body_bytes),
        ("grpc.max_send_message_length", limits.client_buffer_bytes),
        ("grpc.max_metadata_size", limits.head_bytes),
        ("grpc.absolute_max_metadata_size", limits.head_bytes),
        ("grpc.max_concurrent_streams", _CALLS_AT_ONCE),
        ("grpc.server_handshake_timeout_ms", round(limits.head_s * 1e3)),
        ("grpc.max_connection_idle_ms", round(limits.idle_s * 1e3)),
        ("grpc.keepalive_time_ms", round(limits.idle_s * 1e3)),
        ("grpc.keepalive_timeout_ms", round(limits.write_s * 1e3)),
    ]


def _credentials(key_pair: Callable[[], PemKeyPair | None]) -> grpc.ServerCredentials | None:
    """Server credentials that load the current certificate for each handshake."""

    def latest() -> Any:
        now = key_pair()
        return None if now is None else grpc.ssl_server_certificate_configuration(((now.key, now.cert),))

    first = latest()
    return None if first is None else grpc.dynamic_ssl_server_credentials(first, latest)
