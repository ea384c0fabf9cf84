"""A socket of somebody who holds the cluster's key and may send what no member sends."""

from collections.abc import Iterator
from contextlib import contextmanager

import zmq

from pliant.cluster.net.key import Key
from pliant.cluster.net.zmq_sockets import Socket, tcp


@contextmanager
def stranger(key: Key, address: str | None, kind: int = zmq.DEALER) -> Iterator[Socket]:
    """Connected to `address`, without a library of ours between; what is not taken by the end is dropped."""
    socket: Socket = zmq.Context.instance().socket(kind)
    socket.linger, socket.rcvtimeo = 2_000, 60_000
    socket.curve_serverkey = socket.curve_publickey = key.public
    socket.curve_secretkey = key.secret
    try:
        socket.connect(tcp(address or ""))
        yield socket
    finally:
        socket.close()
