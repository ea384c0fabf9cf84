"""Bound the connections of gRPC, and the messages that have come in part, for each address.

The library that answers gRPC neither tells of connections nor bounds them. They are this process's own
sockets, so they are found among its descriptors (Linux), and the system counts what has come over each
(tcp(7), TCP_INFO). One that is shut down is to the library as if its client had left.
"""

import asyncio
import os
import socket
import stat
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, final
from urllib.parse import unquote

from pliant.serve.http.limits import Limits

_DESCRIPTORS: Final = "/proc/self/fd"
_LOOK_S: Final = 0.25
_RECEIVED = struct.Struct("=Q")
_RECEIVED_AT: Final = 128
"""Of `tcpi_bytes_received` in `struct tcp_info`, since Linux 4.1."""
_OVERHEAD_BYTES: Final = 1024
_OVERHEAD: Final = 1 / 64
"""Of a call: its headers, and those of frames and of TLS records."""
_SMALL_BYTES: Final = 16 << 10
"""What comes without a call, such as handshakes and pings, is less; it may stand still."""
_Peer = tuple[str, int]


@dataclass(slots=True)
class _Connection:
    """One with a client; `whole_bytes` of what came belong to messages that are complete."""

    peer: _Peer
    whole_bytes: int = 0
    received_bytes: int = 0
    moved_s: float = 0.0

    @property
    def part_bytes(self) -> int:
        return self.received_bytes - self.whole_bytes


@final
class GrpcConnections:
    """Those at `port`. Call on one event loop."""

    def __init__(self, port: int, limits: Limits, clock: Callable[[], float]) -> None:
        self._port, self._limits, self._clock = port, limits, clock
        self._others: set[int] = set()
        """Sockets of this process that are none of them, by inode."""
        self._found: dict[int, _Connection] = {}
        """By inode, in the order in which they were seen first."""
        self._by_peer: dict[_Peer, _Connection] = {}
        self._early: Counter[_Peer] = Counter()
        """Bytes of messages over connections that were not seen yet."""
        self._n_calls: Counter[_Peer] = Counter()

    @property
    def n(self) -> int:
        """How many there were when they were looked at."""
        return len(self._found)

    @contextmanager
    def call(self, caller: str, n_bytes: int) -> Iterator[None]:
        """Around a call whose message and metadata, `n_bytes`, have come from `caller`, as gRPC writes it."""
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
        """Look again and again, until it is cancelled."""
        if sys.platform != "linux":
            return
        while True:
            self.look()
            await asyncio.sleep(_LOOK_S)

    def look(self) -> None:
        """Shut down the connections that are too many, hold too much, or stand still within a message.

        One with a call under way does not stand still.
        """
        descriptors = dict(_sockets())
        for inode in self._found.keys() - descriptors.keys():
            self._forget(inode)
        self._others &= descriptors.keys()
        now_s = self._clock()
        for inode, descriptor in descriptors.items():
            if inode not in self._others:
                self._look_at(inode, descriptor, now_s)
        self._early.clear()  # all that had come were seen just now
        for inode in self._unwanted(now_s):
            _shut(descriptors[inode], self._port)
            self._forget(inode)

    def _forget(self, inode: int) -> None:
        one = self._found.pop(inode)
        if self._by_peer.get(one.peer) is one:
            del self._by_peer[one.peer]

    def _look_at(self, inode: int, descriptor: int, now_s: float) -> None:
        with _same(descriptor) as sock:
            peer = _peer_at(sock, self._port)
            if sock is None or peer is None:
                self._others.add(inode)
                return
            if inode not in self._found:
                new = _Connection(peer, self._early.pop(peer, 0), moved_s=now_s)
                self._found[inode] = self._by_peer[peer] = new
            one = self._found[inode]
            received = _received_bytes(sock)
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
        for inode, one in reversed(left.copy().items()):  # the latest come last
            if n[one.peer[0]] > limits.n_client_connections or (
                n.total() > limits.n_connections and n[one.peer[0]] == max(n.values())
            ):
                n[one.peer[0]] -= 1
                parts[one.peer[0]] -= max(one.part_bytes, 0)
                del left[inode]
                unwanted.append(inode)
        for inode, one in left.items():  # the oldest first, as with bodies over HTTP
            address = one.peer[0]
            is_too_much = parts[address] > limits.client_buffer_bytes or (
                parts.total() > limits.buffer_bytes and parts[address] == max(parts.values())
            )
            if one.part_bytes > _SMALL_BYTES and is_too_much:
                parts[address] -= one.part_bytes
                unwanted.append(inode)
        return unwanted


def _peer_of(caller: str) -> _Peer:
    """Of a caller as gRPC writes it: `ipv4:127.0.0.1:4711`, `ipv6:%5B::1%5D:4711`."""
    address, _, port = unquote(caller).partition(":")[2].rpartition(":")
    return _plain(address.strip("[]")), int(port) if port.isdecimal() else 0


def _plain(address: str) -> str:
    return address.removeprefix("::ffff:")


def _sockets() -> Iterator[tuple[int, int]]:
    """(inode, descriptor) of this process's sockets."""
    for name in os.listdir(_DESCRIPTORS):
        with suppress(OSError):  # it was closed meanwhile
            found = os.fstat(int(name))
            if stat.S_ISSOCK(found.st_mode):
                yield found.st_ino, int(name)


@contextmanager
def _same(descriptor: int) -> Iterator[socket.socket | None]:
    """The socket of a descriptor that another owns, who may have closed it meanwhile: then None."""
    sock: socket.socket | None = None
    with suppress(OSError):
        sock = socket.socket(fileno=os.dup(descriptor))
    try:
        yield sock
    finally:
        if sock is not None:
            sock.close()


def _peer_at(sock: socket.socket | None, port: int) -> _Peer | None:
    """Whom a connection at `port` is with; None for another socket."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        if sock.type != socket.SOCK_STREAM or sock.getsockname()[1] != port:
            return None
        address, their_port = sock.getpeername()[:2]
    except OSError:  # it listens, or has gone
        return None
    return _plain(address), their_port


def _received_bytes(sock: socket.socket) -> int:
    """0 where the system does not say."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_AT + _RECEIVED.size)
    except OSError:
        return 0
    if len(info) < _RECEIVED_AT + _RECEIVED.size:
        return 0
    return int(_RECEIVED.unpack_from(info, _RECEIVED_AT)[0])


def _shut(descriptor: int, port: int) -> None:
    with _same(descriptor) as sock, suppress(OSError):
        if sock is not None and _peer_at(sock, port) is not None:
            sock.shutdown(socket.SHUT_RDWR)
