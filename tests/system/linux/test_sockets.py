"""What Linux's sockets do beyond Python's."""

import socket
from contextlib import closing

import pytest

from pliant.system import own_sockets, received_bytes, refuse_connections


def test_a_listening_socket_refuses_connections_and_stays_open() -> None:
    """A node that ends accepts what had connected, and nothing more."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        if not refuse_connections(listening):
            pytest.skip("this system cannot refuse connections apart")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(listening.getsockname(), timeout=30.0)


def test_a_socket_that_cannot_refuse_says_so() -> None:
    """Older systems, and sandboxes that forbid it: closing the socket refuses connections there."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        pass
    assert not refuse_connections(listening)


def test_sockets_of_this_process_are_found_and_their_bytes_counted() -> None:
    """The gRPC library tells nothing of its connections."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        with (
            socket.create_connection(listening.getsockname()) as client,
            closing(listening.accept()[0]) as server,
        ):
            found = dict(own_sockets()).values()
            assert {listening.fileno(), client.fileno(), server.fileno()} <= set(found)
            client.sendall(b"hello")
            assert server.recv(5, socket.MSG_WAITALL) == b"hello"
            assert received_bytes(server) in (5, 0)  # 0: a kernel that does not count them
            assert received_bytes(client) == 0
        assert received_bytes(listening) == 0
