"""What a client does and is told at the socket itself."""

import socket

import httpx

from pliant.serve.http.limits import Limits
from tests.serve.nodes import PATIENCE_S, Running

LIMITS = Limits(
    head_s=PATIENCE_S,
    stall_s=PATIENCE_S,
    body_s=PATIENCE_S,
    write_s=PATIENCE_S,
    head_bytes=2000,
    n_headers=20,
    n_connections=8,
)
"""A test of one wait shortens that one: a client of a busy machine is a slow client too."""
LIVE = b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n"


def connect(node: Running) -> socket.socket:
    host, _, port = node.address.partition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def until_closed(sock: socket.socket) -> bytes:
    """All that comes until the other side hangs up; fails where it does not."""
    parts = []
    try:
        while part := sock.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def said(node: Running, *parts: bytes) -> bytes:
    with connect(node) as sock:
        try:
            for part in parts:
                sock.sendall(part)
        except OSError:
            pass  # it has hung up already
        return until_closed(sock)


def answers(node: Running) -> bool:
    return node.post("a").status_code == 200


def answers_in_the_end(node: Running) -> bool:
    """Of a node that is impatient, or full until it has seen others leave."""
    try:
        return answers(node)
    except httpx.HTTPError:
        return False


def is_cut(sock: socket.socket) -> bool:
    """Whether the other side is gone, found by what it says to one more byte."""
    try:
        sock.send(b"x")
    except OSError:
        return True
    return False


def until_answered(sock: socket.socket) -> bytes:
    """What comes up to the end of the answer about the node's health."""
    found = b""
    while not found.endswith(b"}"):
        part = sock.recv(4096)
        assert part, "hung up on instead of answered"
        found += part
    return found
