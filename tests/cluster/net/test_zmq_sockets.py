"""What every ZeroMQ socket of a cluster has in common."""

import socket
import subprocess
import sys

import pytest

from pliant.cluster.net.comm_zmq import ZmqComm
from pliant.cluster.net.key import new_key
from pliant.cluster.net.zmq_sockets import SecureContext, Waker, needs_ipv6, tcp, zmq
from pliant.errors import ClusterError

_WITHOUT = """
import sys
sys.modules["zmq"] = None
from pliant.errors import ClusterError
try:
    import pliant.cluster.net.comm_zmq
except ClusterError as error:
    print(error)
"""


def test_without_pyzmq_the_extra_is_named() -> None:
    """It is no dependency of one device that runs alone."""
    done = subprocess.run([sys.executable, "-c", _WITHOUT], capture_output=True, text=True, check=True)
    assert "pip install 'pliant[cluster]'" in done.stdout


@pytest.mark.parametrize(
    "address", ["10.77.0.1:29500", "tcp://10.77.0.1:29500", "kitchen.local:1", "[::1]:5"]
)
def test_an_address_is_host_and_port(address: str) -> None:
    """As users write it, and as sockets report it."""
    assert tcp(address) == f"tcp://{address.removeprefix('tcp://')}"


@pytest.mark.parametrize(
    "address",
    ["", ":", "10.77.0.1", ":29500", "x:", "x:y", "x:65536", "x:-1", "x:２", "::1:5", "[::1]", "[x]:5"],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    """The message shows how one looks."""
    with pytest.raises(ClusterError, match="write HOST:PORT"):
        tcp(address)


def test_an_alarm_may_ring_often_and_after_its_end() -> None:
    """Threads that send do not know whether the one that polls has gone."""
    waker = Waker()
    for _ in range(100_000):
        waker.wake()
    waker.drain()
    waker.close()
    waker.wake()


@pytest.mark.parametrize("address", ["0.0.0.0:0", "*:0"])
def test_a_listener_at_every_address_tells_each_member_the_one_on_its_route(address: str) -> None:
    """Nobody can connect to 0.0.0.0 of another device."""
    with ZmqComm("a", new_key(), address) as comm:
        port = comm.address.rpartition(":")[2]
        assert comm.address_for("tcp://127.0.0.1:1234") == f"tcp://127.0.0.1:{port}"
        assert comm.address_for("tcp://127.9.9.9:1234") == f"tcp://127.0.0.1:{port}"
        assert comm.address_for("nowhere") == comm.address


def test_a_listener_at_one_address_tells_that_one() -> None:
    """Also where the route to the other starts at another of its addresses."""
    with ZmqComm("a", new_key(), "127.0.0.1:0") as comm:
        assert comm.address_for("tcp://10.0.0.2:1") == comm.address


def test_nobody_listens_at_port_0() -> None:
    """It means any free port to a listener; a worker would knock for ever."""
    wire = SecureContext(new_key(), 1024, stale_s=1.0)
    with pytest.raises(ClusterError, match="port 0"):
        wire.connect(zmq.DEALER, "127.0.0.1:0", 1)
    wire.close()


@pytest.mark.parametrize(
    ("families", "is_ipv6"),
    [
        ((socket.AF_INET6,), True),
        ((socket.AF_INET6, socket.AF_INET), False),
        ((socket.AF_INET,), False),
        ((), False),
    ],
)
def test_a_name_with_an_ipv6_address_alone_is_connected_to_by_it(
    monkeypatch: pytest.MonkeyPatch, families: tuple[socket.AddressFamily, ...], is_ipv6: bool
) -> None:
    """Its workers looked for an IPv4 address for ever; of two addresses, IPv4 is reached on any network."""

    def resolve(host: str, port: int, **options: int) -> list[tuple[socket.AddressFamily]]:
        if not families:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(family,) for family in families]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert needs_ipv6("kitchen.local:29500") == is_ipv6
    assert needs_ipv6("[fd00::1]:29500")
    wire = SecureContext(new_key(), 1024, stale_s=1.0)
    opened, monitor = wire.connect(zmq.DEALER, "kitchen.local:29500", 1, is_ipv6=is_ipv6)
    assert opened.ipv6 == is_ipv6
    opened.disable_monitor()
    monitor.close()
    opened.close(0)
    wire.close()
