"""Limit the gRPC connections, and the partially received messages, of each address.

The gRPC library neither reports connections nor limits them. They are sockets of this process, so they are
found among its file descriptors, and the system counts the bytes received on each (`pliant.system`).
To the library, a connection that is shut down here looks as if its client had left.
"""

import asyncio
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, final
from urllib.parse import unquote

from pliant.serve.http.limits import Limits
from pliant.system import own_sockets, received_bytes

_LOG = logging.getLogger("pliant.serve")
_LOOK_S: Final = 0.25
_OVERHEAD_BYTES: Final = 1024
_OVERHEAD: Final = 1 / 64
"""Allowance for a call's headers and the overhead of frames and TLS records."""
_SMALL_BYTES: Final = 16 << 10
"""Upper bound of bytes outside calls, such as handshakes and pings; a connection may stall within it."""
_Peer = tuple[str, int]


@dataclass(slots=True)
class _Connection:
    """A client connection; `whole_bytes` of the received bytes belong to complete messages."""

    peer: _Peer
    whole_bytes: int = 0
    received_bytes: int = 0
    moved_s: float = 0.0

    @property
    def part_bytes(self) -> int:
        return self.received_bytes - self.whole_bytes


@final
class GrpcConnections:
    """The connections to `port`. Call on one event loop."""

    def __init__(self, port: int, limits: Limits, clock: Callable[[], float]) -> None:
        self._port, self._limits, self._clock = port, limits, clock
        self._others: set[int] = set()
        """Inodes of this process's other sockets."""
        self._found: dict[int, _Connection] = {}
        """Connections by inode, in the order in which they were first seen."""
        self._by_peer: dict[_Peer, _Connection] = {}
        self._early: Counter[_Peer] = Counter()
        """Bytes of messages on connections that have not been seen yet."""
        self._n_calls: Counter[_Peer] = Counter()

    @property
    def n(self) -> int:
        """The number of connections at the last check."""
        return len(self._found)

    @contextmanager
    def call(self, caller: str, n_bytes: int) -> Iterator[None]:
        """Context of a call by `caller` (gRPC's peer string) whose message and metadata have `n_bytes`."""
        peer = _peer_of(caller)
        whole_bytes = n_bytes + _OVERHEAD_BYTES + int(n_bytes * _OVERHEAD)
        if (one := self._by_peer.get(peer)) is not None:
            one.whole_bytes += whole_bytes
        else:
            self._early[peer] += whole_bytes
        self._n_calls[peer] += 1
        try:
            yield
        finally:
            self._n_calls[peer] -= 1
            if not self._n_calls[peer]:
                del self._n_calls[peer]

    async def watch(self) -> None:
        """Check the connections periodically until cancelled."""
        has_failed = False
        while True:
            try:
                self.look()
                has_failed = False
            except Exception:  # noqa: BLE001 - at the limit of open files; without a watch, nothing is limited
                if not has_failed:
                    _LOG.exception("the gRPC connections could not be checked")
                has_failed = True
            await asyncio.sleep(_LOOK_S)

    def look(self) -> None:
        """Shut down connections over the limits of number or bytes, or stalled within a message.

        A connection with a call in progress does not count as stalled.
        """
        descriptors = dict(own_sockets())
        for inode in self._found.keys() - descriptors.keys():
            self._forget(inode)
        self._others &= descriptors.keys()
        now_s = self._clock()
        for inode, descriptor in descriptors.items():
            if inode not in self._others:
                self._look_at(inode, descriptor, now_s)
        self._early.clear()  # all their connections have been seen by now
        for inode in self._unwanted(now_s):
            _shut(descriptors[inode], self._port)
            self._forget(inode)

    def _forget(self, inode: int) -> None:
        one = self._found.pop(inode)
        if self._by_peer.get(one.peer) is one:
            del self._by_peer[one.peer]

    def _look_at(self, inode: int, descriptor: int, now_s: float) -> None:
        with _same(descriptor) as sock:
            if sock is None:
                return
            peer = _peer_at(sock, self._port)
            if peer is None:
                self._others.add(inode)
                return
            if inode not in self._found:
                new = _Connection(peer, self._early.pop(peer, 0), moved_s=now_s)
                self._found[inode] = self._by_peer[peer] = new
            one = self._found[inode]
            received = received_bytes(sock)
        if received != one.received_bytes:
            one.received_bytes, one.moved_s = received, now_s
        one.whole_bytes = min(one.whole_bytes, received)

    def _unwanted(self, now_s: float) -> list[int]:
        limits, left, unwanted = self._limits, dict(self._found), []
        for inode, one in self._found.items():
            is_still = now_s - one.moved_s > limits.stall_s and not self._n_calls[one.peer]
            if one.part_bytes > _SMALL_BYTES and is_still:
                del left[inode]
                unwanted.append(inode)
        n, parts = Counter[str](), Counter[str]()
        for one in left.values():
            n[one.peer[0]] += 1
            parts[one.peer[0]] += max(one.part_bytes, 0)
        for inode, one in reversed(left.copy().items()):  # newest first
            if n[one.peer[0]] > limits.n_client_connections or (
                n.total() > limits.n_connections and n[one.peer[0]] == max(n.values())
            ):
                n[one.peer[0]] -= 1
                parts[one.peer[0]] -= max(one.part_bytes, 0)
                del left[inode]
                unwanted.append(inode)
        for inode, one in left.items():  # oldest first, as with HTTP bodies
            address = one.peer[0]
            is_too_much = parts[address] > limits.client_buffer_bytes or (
                parts.total() > limits.buffer_bytes and parts[address] == max(parts.values())
            )
            if one.part_bytes > _SMALL_BYTES and is_too_much:
                parts[address] -= one.part_bytes
                unwanted.append(inode)
        return unwanted


def _peer_of(caller: str) -> _Peer:
    """Parse gRPC's peer string: `ipv4:127.0.0.1:4711`, `ipv6:%5B::1%5D:4711`."""
    address, _, port = unquote(caller).partition(":")[2].rpartition(":")
    return _plain(address.strip("[]")), int(port) if port.isdecimal() else 0


def _plain(address: str) -> str:
    return address.removeprefix("::ffff:")


@contextmanager
def _same(descriptor: int) -> Iterator[socket.socket | None]:
    """A duplicate of a descriptor owned by the gRPC library; None if there is none now.

    It may have been closed in the meantime, or be another file; or there are too many open files.
    """
    try:
        duplicate = os.dup(descriptor)
    except OSError:
        yield None
        return
    try:
        sock = socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        yield None
        return
    with sock:
        yield sock


def _peer_at(sock: socket.socket, port: int) -> _Peer | None:
    """The remote address of a connection to `port`; None for any other socket."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        if sock.type != socket.SOCK_STREAM or sock.getsockname()[1] != port:
            return None
        address, their_port = sock.getpeername()[:2]
    except OSError:  # a listening or closed socket
        return None
    return _plain(address), their_port


def _shut(descriptor: int, port: int) -> None:
    with _same(descriptor) as sock, suppress(OSError):
        if sock is not None and _peer_at(sock, port) is not None:
            sock.shutdown(socket.SHUT_RDWR)
