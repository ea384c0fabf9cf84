"""Run a node on a socket until it is told to stop: bind, serve, drain."""

import asyncio
import contextlib
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import final

import uvicorn
from starlette.types import ASGIApp

from pliant.errors import NodeError
from pliant.serve.http.connection import CurrentTls, OnRefused, guarded
from pliant.serve.http.limits import Limits
from pliant.serve.http.security import Address

BACKLOG = 4096
"""Calls that the system keeps until they are accepted: more are lost, and made again after a second."""
_ACCEPTED_AT_ONCE = 16
"""Calls accepted in one turn of the event loop, which then serves those that it has."""
LINGER_S = 0.2
"""For TCP handshakes that have begun: they take round trips."""
_POLL_S = 0.05
BIND_TO_INTERFACE = 62
"""SO_BINDTOIFINDEX (Linux 5.1), which Python has no name for."""
_NO_INTERFACE = 0x7FFFFFFF
"""An index that no interface has: the system counts them from 1."""
_TURNS_TO_MAKE = 3
"""Of the event loop, from a call that asyncio has accepted to a connection that is made."""
_SPARE_DESCRIPTORS = 256
"""For files, upstreams and the model, beside the connections of clients."""


def bind(listen: Address) -> socket.socket:
    """A socket that listens; port 0 becomes one that is free. Raises NodeError."""
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    # asyncio turns off Nagle's delay only for sockets that say they are TCP: head and body of an answer are
    # two writes, and the second would wait 40 ms for a client's delayed acknowledgement of the first.
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
    """Serves `app` until SIGTERM or SIGINT, then drains: no request that was read is lost.

    First the node says that it is not ready and asks every client to leave (`on_drain`), while it still
    accepts and answers, for `settle_s` after SIGTERM, so that load balancers look elsewhere. Then it refuses
    new connections at once, answers what it has read or is being sent, and ends. A connection that lay idle
    all the while is closed. SIGINT comes from a person and not from a balancer: there is no settling. A
    second signal ends it at once. `on_refused` hears the status of what is refused before it reaches `app`.
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
                http=guarded(within_descriptors(limits), on_refused, tls),  # type: ignore[arg-type]
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
            sock.listen(BACKLOG)  # asyncio listens with as many as it accepts at once

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_drain()
        if not self._is_interrupted:
            await self._serve_for(self._settle_s)
        await self._end_listening(sockets or [])
        await super().shutdown(sockets)

    async def _serve_for(self, seconds: float) -> None:
        """Go on as before, until a second signal at most."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + seconds
        while not self.force_exit and loop.time() < ends_s:
            await asyncio.sleep(min(_POLL_S, seconds))

    async def _end_listening(self, sockets: Sequence[socket.socket]) -> None:
        """Refuse new connections, accept those that were made or are being made, and close `sockets`.

        Closing alone would reset connections that were not accepted yet, with their requests, also those
        that the system completes between the last accept and the close; and asyncio loses those that it
        has accepted, but not made yet (`Server._attach`).
        """
        loop = asyncio.get_running_loop()
        refuses = [refuse_connections(sock) for sock in sockets]
        if all(refuses):
            await self._serve_for(LINGER_S)
        for sock in sockets:
            loop.remove_reader(sock)
        for _ in range(_TURNS_TO_MAKE):
            await asyncio.sleep(0)
        accepted = [connection for sock in sockets for connection in _accepted(sock)]
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
        """As SIGTERM does; once more, as a second one."""
        self.force_exit = self.should_exit
        self.should_exit = True

    def interrupt(self) -> None:
        """As SIGINT does."""
        self._is_interrupted = True
        self.stop()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The signals end the server, and not, as uvicorn has it, the process once more."""
        loop = asyncio.get_running_loop()
        installed = []
        for number, end in ((signal.SIGTERM, self.stop), (signal.SIGINT, self.interrupt)):
            with contextlib.suppress(ValueError, RuntimeError):  # not in a main thread
                loop.add_signal_handler(number, end)
                installed.append(number)
        try:
            yield
        finally:
            for number in installed:
                loop.remove_signal_handler(number)


def refuse_connections(sock: socket.socket) -> bool:
    """Have the system refuse new connections to `sock`, which listens, while those being made are completed.

    A listening socket that is bound to an interface takes connections that arrive there only: bound to one
    that does not exist, it takes none, and they are refused as at a closed port. A handshake that has begun
    does not look for the listening socket again (Linux: `tcp_v4_rcv`, TCP_NEW_SYN_RECV), so that it ends in
    its queue. False where the system cannot do that: before Linux 5.1, and elsewhere.
    """
    if sys.platform != "linux":
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, BIND_TO_INTERFACE, _NO_INTERFACE)
    except OSError:
        return False
    return True


def within_descriptors(limits: Limits) -> Limits:
    """`limits` with as many connections as the process may have files open, which is raised where it can be.

    At the limit of the system nothing could be accepted, not even a question about health.
    """
    needed = limits.n_connections + limits.n_reserved_connections + _SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return limits
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    room = soft - limits.n_reserved_connections - _SPARE_DESCRIPTORS
    return replace(limits, n_connections=max(1, min(limits.n_connections, room)))


def _accepted(sock: socket.socket) -> Iterator[socket.socket]:
    """Connections that were made to `sock` and wait in its queue."""
    with contextlib.suppress(BlockingIOError):
        for _ in range(BACKLOG):
            connection, _ = sock.accept()
            connection.setblocking(False)
            yield connection
