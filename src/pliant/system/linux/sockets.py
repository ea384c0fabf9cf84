"""Refuse connections, find this process's sockets, count the bytes received, raise the limit of files."""

import os
import resource
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from pliant.system.linux.kernel_files import PROC

_DESCRIPTORS: Final = PROC / "fd"
_BIND_TO_INTERFACE: Final = 62
"""SO_BINDTOIFINDEX (Linux 5.1), which the `socket` module does not define."""
_NO_INTERFACE: Final = 0x7FFFFFFF
"""An index of no interface: the kernel counts from 1."""
_RECEIVED = struct.Struct("=Q")
_RECEIVED_AT: Final = 128
"""Offset of `tcpi_bytes_received` in `struct tcp_info`, since Linux 4.1."""


def refuse_connections(sock: socket.socket) -> bool:
    """Make the kernel refuse new connections to a listening socket, while handshakes in progress complete.

    A listening socket bound to an interface only accepts connections on it; bound to an interface that does
    not exist, it accepts none, and they are refused as at a closed port. A handshake in progress does not
    look up the listening socket again (Linux: `tcp_v4_rcv`, TCP_NEW_SYN_RECV), so it completes into the
    queue. Returns False before Linux 5.1, which cannot do this.
    """
    try:
        sock.setsockopt(socket.SOL_SOCKET, _BIND_TO_INTERFACE, _NO_INTERFACE)
    except OSError:
        return False
    return True


def own_sockets() -> Iterator[tuple[int, int]]:
    """(inode, descriptor) of this process's sockets, those of its libraries included."""
    for name in os.listdir(_DESCRIPTORS):
        with suppress(OSError):  # it was closed in the meantime
            found = os.fstat(int(name))
            if stat.S_ISSOCK(found.st_mode):
                yield found.st_ino, int(name)


def received_bytes(sock: socket.socket) -> int:
    """Bytes received on a TCP connection (tcp(7), TCP_INFO); 0 if the kernel does not report them."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_AT + _RECEIVED.size)
    except OSError:
        return 0
    if len(info) < _RECEIVED_AT + _RECEIVED.size:
        return 0
    return int(_RECEIVED.unpack_from(info, _RECEIVED_AT)[0])


def allow_descriptors(needed: int) -> int:
    """The number of files that this process may open, at most `needed`; its limit is raised if possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft
