"""A node on a socket until it is told to stop: bind, serve, drain. Knows no path and no model."""

import asyncio
import contextlib
import ctypes
import signal
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from typing import final

import uvicorn
from starlette.types import ASGIApp

from pliant.errors import NodeError
from pliant.serve.connection import guarded
from pliant.serve.limits import Limits
from pliant.serve.security import Address

BACKLOG = 512
LINGER_S = 0.2
"""Between the last new connection and the end of listening: those half made are made, and accepted."""
_ATTACH_FILTER = 26
"""SO_ATTACH_FILTER, which Python has no name for."""
_DROPS_SYNS = struct.pack(
    "HBBI" * 5,
    *(0x30, 0, 0, 13),  # the flags of the TCP header
    *(0x54, 0, 0, 0x12),  # SYN and ACK of these
    *(0x15, 0, 1, 0x02),  # SYN alone?
    *(0x06, 0, 0, 0),  # then the packet is dropped
    *(0x06, 0, 0, 0xFFFFFFFF),  # else it is taken
)
"""A filter in the kernel's language (socket(7)): calls to a socket are not heard, its packets else are."""


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
    answers, for `settle_s`: whoever spreads requests looks elsewhere. Then it hears no new calls, takes those
    that were made, listens no more, answers what it has read or is being sent, and ends. A connection that
    lay idle all the while is closed. A second signal ends it at once.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        tls: ssl.SSLContext | None,
        on_drain: Callable[[], None],
        settle_s: float,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=guarded(limits),  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=int(limits.idle_s),
                timeout_graceful_shutdown=int(limits.hop_s + limits.body_s),
            )
        )
        self._tls = tls
        self._on_drain, self._settle_s = on_drain, settle_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.ssl = self._tls
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_drain()
        ends_s = asyncio.get_running_loop().time() + self._settle_s
        while not self.force_exit and asyncio.get_running_loop().time() < ends_s:
            await asyncio.sleep(min(0.05, self._settle_s))
        for sock in sockets or []:
            hear_no_more(sock)
        if not self.force_exit:
            await asyncio.sleep(LINGER_S)
        await super().shutdown(sockets)

    def stop(self) -> None:
        """As SIGTERM does; once more, as a second one."""
        self.force_exit = self.should_exit
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The signals end the server, and not, as uvicorn has it, the process once more."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        installed = []
        for number in numbers:
            with contextlib.suppress(ValueError, RuntimeError):  # not in a main thread
                loop.add_signal_handler(number, self.stop)
                installed.append(number)
        try:
            yield
        finally:
            for number in installed:
                loop.remove_signal_handler(number)


def hear_no_more(sock: socket.socket) -> None:
    """Calls from now on find nobody, until `sock` is closed; then they are refused.

    Closing it alone would reset connections that the system has made, and nobody has accepted yet, with the
    requests that they carry.
    """
    code = ctypes.create_string_buffer(_DROPS_SYNS, len(_DROPS_SYNS))
    program = struct.pack("HP", len(_DROPS_SYNS) // 8, ctypes.addressof(code))
    with contextlib.suppress(OSError):  # a system without filters
        sock.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
