"""A socket of somebody who holds the cluster's key and may send what no member sends."""

from collections.abc import Iterator
from contextlib import contextmanager

import zmq

from pliant.cluster.net.key import Key
from pliant.cluster.net.zmq_sockets import Socket, tcp


@contextmanager
def stranger(key: Key, address: str | None, kind: int = zmq.DEALER) -> Iterator[Socket]:
    """Connected to `address`, without a library of ours between; what is not taken by the end is dropped."""
    with _keyed(key, kind) as socket:
        socket.curve_serverkey = key.public
        socket.connect(tcp(address or ""))
        yield socket


@contextmanager
def listener(key: Key) -> Iterator[tuple[Socket, str]]:
    """The same, bound to a free port of loopback, and its address."""
    with _keyed(key, zmq.ROUTER) as socket:
        socket.curve_server = True
        socket.bind("tcp://127.0.0.1:*")
        yield socket, str(socket.getsockopt_string(zmq.LAST_ENDPOINT))


@contextmanager
def _keyed(key: Key, kind: int) -> Iterator[Socket]:
    socket: Socket = zmq.Context.instance().socket(kind)
    socket.linger, socket.rcvtimeo = 2_000, 60_000
    socket.curve_publickey, socket.curve_secretkey = key.public, key.secret
    try:
        yield socket
    finally:
        socket.close()
