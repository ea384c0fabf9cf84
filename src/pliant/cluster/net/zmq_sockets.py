"""Open the ZeroMQ sockets of a cluster: authenticated, encrypted and bounded.

Each member is CURVE server and client with the cluster's one key pair. A connection is admitted (ZAP,
ZeroMQ RFC 27) only if the other side proves that it holds the same secret key; raw bytes, other protocols
and other keys are rejected before any message is read.
"""

import math
import socket as sockets
import struct
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING

from pliant.errors import ClusterError

try:
    import zmq as zmq
    from zmq.utils import z85
except ImportError as error:  # pragma: no cover - the tests need pyzmq
    raise ClusterError("a cluster needs pyzmq: pip install 'pliant[cluster]'.") from error

if TYPE_CHECKING:
    from pliant.cluster.net.key import Key

Socket = zmq.Socket[bytes]

CONNECTED = zmq.EVENT_HANDSHAKE_SUCCEEDED
_EVENTS = CONNECTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_MONITOR_STOPPED

_DOMAIN = b"pliant"
_HANDSHAKE_LIMIT_MS = 5_000
_RETRY_MS = 50
_RETRY_LIMIT_MS = 1_000
_LINGER_MS = 1_000
_EVERY = ("*", "0.0.0.0", "::")


class SecureContext:
    """A ZeroMQ context, its authenticated sockets, and the `gate` socket that decides admission.

    A connection without any acknowledgement for `stale_s` is reconnected. The owner must poll `gate` and
    call `admit` when it is readable; until then no new connection of a listening socket completes.
    """

    def __init__(self, key: "Key", max_message_bytes: int, stale_s: float) -> None:
        self._key = key
        self._max_message_bytes = max_message_bytes
        self._stale_ms = math.ceil(stale_s * 1e3)
        self._context: zmq.Context[Socket] = zmq.Context()
        self.gate: Socket = self._context.socket(zmq.REP)
        self.gate.linger = 0
        self.gate.bind("inproc://zeromq.zap.01")

    def listen(self, kind: int, address: str, n_queued: int) -> tuple[Socket, str]:
        """Return a socket bound to `address` (port 0 picks a free port), and its actual address.

        Raises ClusterError if binding fails.
        """
        host, port = host_and_port(address)
        socket = self._socket(kind, n_queued, is_ipv6=":" in host)
        socket.curve_server = True
        socket.zap_domain = _DOMAIN
        socket.zap_enforce_domain = True
        try:
            socket.bind(tcp(address))
        except zmq.ZMQError as error:
            socket.close()
            raise ClusterError(
                f"cannot listen at {host}, {f'port {port}' if port else 'any port'}: "
                f"{_reason(error)}. Name an address of this device and a free port (0 takes any)."
            ) from error
        return socket, str(socket.getsockopt_string(zmq.LAST_ENDPOINT))

    def listen_or_close(self, kind: int, address: str, n_queued: int) -> tuple[Socket, str]:
        """Call `listen`; on failure close this object before the error is raised."""
        try:
            return self.listen(kind, address, n_queued)
        except ClusterError:
            self.close()
            raise

    def connect(
        self, kind: int, address: str, n_queued: int, *, is_ipv6: bool = False
    ) -> tuple[Socket, Socket]:
        """Return a socket that connects and reconnects to `address`, and its monitor.

        A name is looked up as an IPv4 address unless `is_ipv6`.
        """
        host, port = host_and_port(address)
        if port == 0:
            raise ClusterError(f"{address!r} has port 0, where nobody listens: name the primary's port.")
        socket = self._socket(kind, n_queued, is_ipv6=is_ipv6 or ":" in host)
        socket.curve_serverkey = self._key.public
        socket.immediate = True  # do not queue messages for an unconnected peer
        monitor = socket.get_monitor_socket(_EVENTS)
        monitor.linger = 0
        try:
            socket.connect(tcp(address))
        except zmq.ZMQError as error:
            monitor.close()
            socket.close()
            raise ClusterError(
                f"{address} is not an address to connect to: {_reason(error)}. Write HOST:PORT."
            ) from error
        return socket, monitor

    def admit(self) -> None:
        """Answer one request of `gate`: whether the connection holds the cluster's key."""
        version, request, _, _, _, mechanism, *credentials = self.gate.recv_multipart()
        is_member = mechanism == b"CURVE" and credentials == [z85.decode(self._key.public)]
        code, text = (b"200", b"OK") if is_member else (b"400", b"this key does not belong to the cluster")
        self.gate.send_multipart([version, request, code, text, b"", b""])

    def close(self) -> None:
        """End the context. Waits for pending sends; every socket but `gate` must be closed before."""
        self.gate.close()
        self._context.term()

    def _socket(self, kind: int, n_queued: int, *, is_ipv6: bool) -> Socket:
        socket = self._context.socket(kind)
        socket.ipv6 = is_ipv6
        socket.curve_publickey = self._key.public
        socket.curve_secretkey = self._key.secret
        socket.maxmsgsize = self._max_message_bytes
        socket.sndhwm = socket.rcvhwm = n_queued
        socket.linger = _LINGER_MS
        socket.handshake_ivl = _HANDSHAKE_LIMIT_MS
        socket.reconnect_ivl = _RETRY_MS
        socket.reconnect_ivl_max = _RETRY_LIMIT_MS
        socket.connect_timeout = _HANDSHAKE_LIMIT_MS
        # Replace a broken connection sooner than TCP's default timeout of about 15 minutes. ZeroMQ's
        # heartbeats are not used: they abort the process when messages wait to be read (libzmq 4364).
        socket.tcp_maxrt = self._stale_ms
        socket.tcp_keepalive = 1
        socket.tcp_keepalive_idle = socket.tcp_keepalive_intvl = math.ceil(self._stale_ms / 4e3)
        socket.tcp_keepalive_cnt = 4
        return socket


def event(monitor: Socket) -> int:
    """Return the next event of a connection, one of _EVENTS."""
    return int(struct.unpack("=H", monitor.recv_multipart()[0][:2])[0])


def tcp(address: str) -> str:
    """Return `host:port` in ZeroMQ's notation. Raises ClusterError if it is invalid."""
    host, port = host_and_port(address)
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def host_and_port(address: str) -> tuple[str, int]:
    """Split `HOST:PORT`, or `[HOST]:PORT` for IPv6. Raises ClusterError if it is neither."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if is_bracketed else host
    is_number = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 1 << 16
    if not bare or not is_number or is_bracketed != (":" in bare):
        raise ClusterError(
            f"{address!r} is not an address: write HOST:PORT, as in 10.77.0.1:29500 or [fd00::1]:29500."
        )
    return bare, int(port)


def is_every_address(host: str) -> bool:
    """Return whether `host` means all addresses of a device, where it may listen but nobody can connect."""
    return host in _EVERY


def find_local_address(address: str) -> str:
    """Return this device's own address on the route to `HOST:PORT`, in brackets for IPv6; sends nothing."""
    host, port = host_and_port(address)
    try:
        family = sockets.AF_INET6 if needs_ipv6(address) else sockets.AF_INET
        with sockets.socket(family, sockets.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            own = str(probe.getsockname()[0])
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no name of a host"
        raise ClusterError(
            f"{address!r} cannot be reached: {reason}. Give the primary's HOST:PORT, and check the network."
        ) from error
    return f"[{own}]" if ":" in own else own


def needs_ipv6(address: str) -> bool:
    """Return whether the host of `HOST:PORT` has an IPv6 address alone; may wait for a name server.

    A name with both is connected to by IPv4, because not every network forwards IPv6. Raises ClusterError
    for an invalid address.
    """
    host, port = host_and_port(address)
    if ":" in host:
        return True
    try:
        families = {found[0] for found in sockets.getaddrinfo(host, port, type=sockets.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return False
    return families == {sockets.AF_INET6}


def _reason(error: zmq.ZMQError) -> str:
    return "unknown" if error.errno is None else zmq.strerror(error.errno)


class Waker:
    """Wakes a polling thread: call `wake` from any thread, poll `fileno`, call `drain` when awake."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._is_closed = False
        self._receiver, self._sender = sockets.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)

    def fileno(self) -> int:
        return self._receiver.fileno()

    def wake(self) -> None:
        with self._lock, suppress(BlockingIOError):  # the buffer is full: a wake-up is pending already
            if not self._is_closed:
                self._sender.send(b"!")

    def drain(self) -> None:
        with suppress(BlockingIOError):
            self._receiver.recv(4096)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._receiver.close()
            self._sender.close()
