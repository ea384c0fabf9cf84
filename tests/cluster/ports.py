"""Ports for who must be told one before anybody listens there. Knows nothing of who will."""

import socket
from random import SystemRandom

_PORTS = range(20_000, 32_000)
"""Below those that systems give to whoever asks for any: one that was freed there is soon somebody else's."""


def unused_ports(n: int) -> list[int]:
    """So many different ports of loopback that nobody listens at."""
    found: list[int] = []
    for port in SystemRandom().sample(_PORTS, len(_PORTS)):  # not a seed's: two test runs must not agree
        if len(found) == n:
            break
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        found.append(port)
    return found
