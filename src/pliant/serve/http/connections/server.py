"""Run a node on a socket: bind, serve until a signal, drain."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import final

import uvicorn
from starlette.types import ASGIApp

from pliant.errors import NodeError
from pliant.serve.access.security import ListenAddress
from pliant.serve.http.connections.http_connection import CurrentTls, OnRefused, protocol_factory
from pliant.serve.http.limits import Limits
from pliant.system import allow_descriptors, refuse_connections

BACKLOG = 4096
"""Accept queue of the kernel; further connections are dropped and retried by clients after a second."""
_ACCEPTED_AT_ONCE = 16
"""Connections accepted in one turn of the event loop, which then serves the open ones."""
LINGER_S = 0.2
"""Time for TCP handshakes in progress to complete: they take round trips."""
_POLL_S = 0.05
_TURNS_TO_MAKE = 3
"""Turns of the event loop from an accepted connection to its protocol's `connection_made`."""
_SPARE_DESCRIPTORS = 256
"""Descriptors for files, upstreams and the model, beside the client connections."""


def bind(listen: ListenAddress) -> socket.socket:
    """Bind a listening socket; port 0 picks a free port. Raises NodeError."""
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    # asyncio disables Nagle's algorithm only for sockets that were created as IPPROTO_TCP. Otherwise the body
    # of a response in two writes would wait 40 ms for the client's delayed acknowledgement of the head.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((listen.host, listen.port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise NodeError(f"nothing can listen at {listen}: {error.strerror}. Name another address.") from error
    sock.setblocking(False)
    return sock


@final
class NodeServer(uvicorn.Server):
    """Serves `app` until SIGTERM or SIGINT, then drains: every request that was read is answered.

    After SIGTERM the node first reports that it is not ready and asks clients to close their connections
    (`on_drain`), while it accepts and answers requests for another `settle_s`, so that load balancers can
    switch to other nodes. Then it refuses new connections, answers the requests that it has read or is
    receiving, and ends. Idle connections are closed. After SIGINT, which comes from a person, `settle_s` is
    skipped. A second signal ends the server at once. `on_refused` is called with the status of each request
    refused before `app`.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        tls: CurrentTls,
        on_drain: Callable[[], None],
        settle_s: float,
        on_refused: OnRefused = lambda status: None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol_factory(fit_descriptors(limits), on_refused, tls),  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=_ACCEPTED_AT_ONCE,
                timeout_keep_alive=int(limits.idle_s),
                timeout_graceful_shutdown=int(limits.hop_s + limits.body_s),
            )
        )
        self._on_drain, self._settle_s, self._is_interrupted = on_drain, settle_s, False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for sock in sockets or []:
            sock.listen(BACKLOG)  # asyncio set it to the number accepted at once

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_drain()
        if not self._is_interrupted:
            await self._serve_for(self._settle_s)
        await self._end_listening(sockets or [])
        await super().shutdown(sockets)

    async def _serve_for(self, seconds: float) -> None:
        """Keep serving for `seconds`, or until a second signal."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + seconds
        while not self.force_exit and loop.time() < ends_s:
            await asyncio.sleep(min(_POLL_S, seconds))

    async def _end_listening(self, sockets: Sequence[socket.socket]) -> None:
        """Refuse new connections, accept those already made or in progress, and close `sockets`.

        Closing the sockets alone would reset connections that were not accepted yet, with their requests,
        including those that the kernel completes between the last accept and the close. asyncio also loses
        connections that it has accepted but not attached yet (`Server._attach`).
        """
        loop = asyncio.get_running_loop()
        refuses = [refuse_connections(sock) for sock in sockets]
        if all(refuses):
            await self._serve_for(LINGER_S)
        for sock in sockets:
            loop.remove_reader(sock)
        for _ in range(_TURNS_TO_MAKE):
            await asyncio.sleep(0)
        accepted = [connection for sock in sockets for connection in _accept_queued(sock)]
        for server in self.servers:
            server.close()
        made = [
            loop.create_task(loop.connect_accepted_socket(self._protocol, connection))
            for connection in accepted
        ]
        for _ in range(_TURNS_TO_MAKE):
            await asyncio.sleep(0)
        for task in made:
            task.cancel()

    def _protocol(self) -> asyncio.Protocol:
        make: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    def stop(self) -> None:
        """Stop as on SIGTERM; a second call acts as a second signal."""
        self.force_exit = self.should_exit
        self.should_exit = True

    def interrupt(self) -> None:
        """Stop as on SIGINT."""
        self._is_interrupted = True
        self.stop()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals by ending the server; uvicorn would also raise them again for the process."""
        loop = asyncio.get_running_loop()
        installed = []
        for number, end in ((signal.SIGTERM, self.stop), (signal.SIGINT, self.interrupt)):
            with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread
                loop.add_signal_handler(number, end)
                installed.append(number)
        try:
            yield
        finally:
            for number in installed:
                loop.remove_signal_handler(number)


def fit_descriptors(limits: Limits) -> Limits:
    """Reduce `limits` to the process's limit of open files, which is raised if possible.

    At the limit of open files the server could accept nothing, not even a health check.
    """
    others = limits.n_reserved_connections + _SPARE_DESCRIPTORS
    room = allow_descriptors(limits.n_connections + others) - others
    return replace(limits, n_connections=max(1, room))


def _accept_queued(sock: socket.socket) -> Iterator[socket.socket]:
    """Accept the completed connections in the queue of `sock`."""
    with contextlib.suppress(BlockingIOError):
        for _ in range(BACKLOG):
            connection, _ = sock.accept()
            connection.setblocking(False)
            yield connection
