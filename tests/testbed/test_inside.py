"""A process that steps into a device and out again."""

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from testbed import BedError
from testbed.inside import inside
from tests.testbed.conftest import MakeNetwork, pair, said_by

_CALL = """
import socket, sys
print(socket.create_connection((sys.argv[1], 5000), timeout=10).recv(9).decode())
"""


def test_what_is_opened_inside_is_reached_from_the_network(network: MakeNetwork) -> None:
    """A cluster's primary is the test's own process; its threads are on the device too."""
    net = network(*pair())
    outside = Path("/proc/thread-self/ns/net").readlink()
    with inside(net["desk"]), socket.create_server((net["desk"].address, 5000)) as server:
        assert Path("/proc/thread-self/ns/net").readlink() != outside
        with ThreadPoolExecutor(1) as threads:
            there = threads.submit(Path("/proc/thread-self/ns/net").readlink)
            assert there.result() == Path("/proc/thread-self/ns/net").readlink()
            answer = threads.submit(said_by, net["wall"], _CALL, net["desk"].address)
            peer, _ = server.accept()
            with peer:
                peer.sendall(b"here I am")
            assert answer.result() == "here I am"
    assert Path("/proc/thread-self/ns/net").readlink() == outside


def test_an_error_inside_leads_out(network: MakeNetwork) -> None:
    """Whatever comes after must not run on a device by mistake."""
    net = network(*pair())
    outside = Path("/proc/thread-self/ns/net").readlink()
    with pytest.raises(BedError, match="without a delay"), inside(net["desk"]):
        net.set_delay("desk", 0.1)
    assert Path("/proc/thread-self/ns/net").readlink() == outside
