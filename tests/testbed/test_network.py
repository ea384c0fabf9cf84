"""Shaping, cutting, delaying and counting what goes between devices."""

import math
import sys
from subprocess import PIPE

import pytest

from testbed import BedError, Device, DeviceSpec, rate
from tests.testbed.conftest import MakeNetwork, pair, said_by

# Takes messages, each with its length in front, and answers every one with a byte.
_TAKE = """
import socket
server = socket.create_server(("0.0.0.0", 5000))
print("up", flush=True)
peer, _ = server.accept()
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while head := peer.recv(8):
    left = int.from_bytes(head, "big")
    while left:
        left -= len(peer.recv(min(left, 1 << 20)))
    peer.sendall(b"k")
"""
# Sends messages of some size to an address and prints the seconds of the quickest: as many as asked, and then
# until one was quick enough, for half a minute at most. A busy machine makes them slower, never quicker.
_GIVE = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], 5000), timeout=30)
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
message = int(sys.argv[2]).to_bytes(8, "big") + bytes(int(sys.argv[2]))
times, until_s = [], time.perf_counter() + 30
while len(times) < int(sys.argv[3]) or min(times) > float(sys.argv[4]) and time.perf_counter() < until_s:
    start = time.perf_counter()
    peer.sendall(message)
    peer.recv(1)
    times.append(time.perf_counter() - start)
print(min(times))
"""
_REACHES = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 5000), timeout=float(sys.argv[2]))
    print("yes")
except OSError:
    print("no")
"""
_LISTEN = """
import socket
server = socket.create_server(("0.0.0.0", 5000))
print("up", flush=True)
while True:
    server.accept()
"""


def _bps(src: Device, dst: Device, n_bytes: int, least_bps: float, times: int = 3) -> float:
    """Bits per second of the quickest message; a busy machine gets more tries to reach the least."""
    return 8 * n_bytes / _seconds(src, dst, n_bytes, times, 8 * n_bytes / least_bps)


def _seconds(src: Device, dst: Device, n_bytes: int, times: int = 3, enough_s: float = math.inf) -> float:
    """The quickest of some messages from one device to another, there and acknowledged."""
    taker = dst.popen([sys.executable, "-c", _TAKE], stdout=PIPE)
    assert taker.stdout is not None
    with taker.stdout:
        assert taker.stdout.readline() == b"up\n"
        best_s = float(said_by(src, _GIVE, dst.address, n_bytes, times, enough_s))
    taker.wait(timeout=30)
    return best_s


def test_what_a_device_sends_and_receives_is_shaped_and_may_be_changed(network: MakeNetwork) -> None:
    """Figures 6 and 7 of Hepti stand on it. The bounds are wide: a busy machine passes them."""
    net = network(*pair(bandwidth_Bps=rate("200Mbit")))
    desk, wall = net["desk"], net["wall"]
    n_bytes = 2_000_000
    for src, dst in ((desk, wall), (wall, desk)):
        assert 150e6 < _bps(src, dst, n_bytes, 150e6) < 230e6
    net.set_bandwidth("desk", rate("50Mbit"))
    assert 35e6 < _bps(desk, wall, n_bytes, 35e6, 1) < 58e6
    net.set_bandwidth("desk", None)
    assert _bps(desk, wall, n_bytes, 300e6) > 300e6


def test_counters_hold_the_payload_and_its_headers(network: MakeNetwork) -> None:
    """Bytes counted by `comm` are checked against these: between the payload and 8 % more."""
    net = network(*pair(bandwidth_Bps=rate("400Mbit")))
    desk, wall = net["desk"], net["wall"]
    before = desk.counters, wall.counters
    n_bytes = 3_000_000
    _seconds(desk, wall, n_bytes, 1)
    sent, received = desk.counters.since(before[0]), wall.counters.since(before[1])
    assert n_bytes < sent.sent_bytes < 1.08 * n_bytes
    assert n_bytes < received.received_bytes < 1.08 * n_bytes
    assert sent.received_bytes < 0.1 * n_bytes


def test_a_cut_device_is_reached_again_once_restored(network: MakeNetwork) -> None:
    """Faults are injected with it; nobody is told, as with a real cable."""
    net = network(*pair())
    desk, wall = net["desk"], net["wall"]
    server = wall.popen([sys.executable, "-c", _LISTEN], stdout=PIPE)
    assert server.stdout is not None
    with server.stdout:
        assert server.stdout.readline() == b"up\n"
    assert said_by(desk, _REACHES, wall.address, 10) == "yes"
    net.cut("wall")
    assert said_by(desk, _REACHES, wall.address, 0.3) == "no"
    net.restore("wall")
    assert said_by(desk, _REACHES, wall.address, 10) == "yes"


def test_parted_devices_reach_all_but_each_other(network: MakeNetwork) -> None:
    """A link between two workers may fail while their primary sees both."""
    net = network(*pair(), DeviceSpec("attic"))
    desk, wall, attic = net["desk"], net["wall"], net["attic"]
    for device in (wall, attic):
        server = device.popen([sys.executable, "-c", _LISTEN], stdout=PIPE)
        assert server.stdout is not None
        with server.stdout:
            assert server.stdout.readline() == b"up\n"
    net.part("desk", "wall")
    assert said_by(desk, _REACHES, wall.address, 0.3) == "no"
    assert said_by(desk, _REACHES, attic.address, 10) == "yes"
    assert said_by(attic, _REACHES, wall.address, 10) == "yes"
    net.unite("desk", "wall")
    assert said_by(desk, _REACHES, wall.address, 10) == "yes"


def test_a_delay_is_paid_in_each_direction_and_may_be_changed(network: MakeNetwork) -> None:
    """Round trips of 1 to 100 ms without netem: never shorter than asked."""
    net = network(DeviceSpec("desk", delay_s=0.004), DeviceSpec("wall"))
    desk, wall = net["desk"], net["wall"]
    assert 0.008 <= _seconds(desk, wall, 8, 10, 0.030) < 0.030
    net.set_delay("desk", 0.030)
    assert 0.060 <= _seconds(wall, desk, 8, 10, 0.120) < 0.120


def test_a_delayed_device_is_shaped_as_well(network: MakeNetwork) -> None:
    """Delay and bandwidth are separate properties of one link."""
    net = network(*pair(delay_s=0.0005, bandwidth_Bps=rate("50Mbit")))
    n_bytes = 1_000_000
    assert 30e6 < _bps(net["desk"], net["wall"], n_bytes, 30e6) < 58e6


def test_a_delay_must_be_foreseen(network: MakeNetwork) -> None:
    """A device without a relay cannot get one while it runs."""
    net = network(*pair())
    with pytest.raises(BedError, match="made without a delay"):
        net.set_delay("desk", 0.01)


def test_devices_reach_each_other_and_nothing_else(network: MakeNetwork) -> None:
    """Networks of parallel runs use the same addresses, so they must never meet."""
    one, other = network(*pair()), network(*pair())
    server = one["wall"].popen([sys.executable, "-c", _LISTEN], stdout=PIPE)
    assert server.stdout is not None
    with server.stdout:
        assert server.stdout.readline() == b"up\n"
    assert one["wall"].address == other["wall"].address
    assert said_by(other["desk"], _REACHES, other["wall"].address, 0.3) == "no"
    assert said_by(one["desk"], _REACHES, one["wall"].address, 10) == "yes"


def test_names_must_differ_and_be_known() -> None:
    """A mistake shows before anything is made."""
    from testbed import Network

    with pytest.raises(ValueError, match="different names"):
        Network([DeviceSpec("desk"), DeviceSpec("desk")])
    with pytest.raises(KeyError, match="no device 'door'"):
        Network([DeviceSpec("desk")])["door"]
