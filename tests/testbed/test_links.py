"""Links as members measure them, beside what the network was shaped to."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from pliant.cluster.lead.measure_links import DevicePair, links_of, measure_links
from pliant.cluster.net.comm_zmq import ZmqComm
from pliant.cluster.net.key import Key, make_key
from pliant.ir.link import Link
from testbed import Device, DeviceSpec, rate
from testbed.inside import inside
from tests.testbed.conftest import MakeNetwork


def _measured(devices: list[Device], key: Key) -> dict[DevicePair, Link]:
    """All pairs, by one thread a device, over the connections that inference uses."""
    names = [device.name for device in devices]
    addresses: dict[str, str] = {}
    here, done = Barrier(len(devices)), Barrier(len(devices))

    def member(device: Device) -> dict[DevicePair, Link]:
        with inside(device), ZmqComm(device.name, key, f"{device.address}:0") as comm:
            addresses[device.name] = comm.address
            here.wait(30)
            for name in names:
                if name != device.name:
                    comm.connect(name, addresses[name])
            found = dict(measure_links(comm, names, 1))
            done.wait(60)
            return found

    with ThreadPoolExecutor(len(devices)) as threads:
        parts = list(threads.map(member, devices))
    return {pair: link for part in parts for pair, link in part.items()}


def test_slow_and_late_links_are_told_from_others(network: MakeNetwork, tmp_path: Path) -> None:
    """Over real connections. How exact it is a busy machine cannot show: only what it may not turn round."""
    net = network(
        DeviceSpec("desk", bandwidth_Bps=rate("100Mbit")),
        DeviceSpec("wall", bandwidth_Bps=rate("4Mbit")),
        DeviceSpec("attic", bandwidth_Bps=rate("100Mbit"), delay_s=0.005),
    )
    key, wrong = make_key(tmp_path / "cluster.key"), ["not measured"]
    for _ in range(5):  # one stall in the half second of a pair may still turn it round
        found = _measured(list(net), key)
        assert len(found) == 6
        far = {pair: link.latency_s for pair, link in found.items() if "attic" in pair}
        near = {pair: link.latency_s for pair, link in found.items() if "attic" not in pair}
        slow = {pair: found[pair].bandwidth_Bps for pair in (("desk", "wall"), ("wall", "desk"))}
        assert min(slow.values()) > 0
        wrong = [f"{pair} seems late" for pair, latency_s in near.items() if latency_s >= 0.004]
        wrong += [f"{pair} seems near" for pair, latency_s in far.items() if not 0.004 <= latency_s < 0.05]
        if links_of(found).link("desk", "attic").latency_s < 0.004:
            wrong.append("the attic seems near")
        wrong += [f"{pair} seems fast" for pair, Bps in slow.items() if Bps >= 1.5 * rate("4Mbit")]
        if not wrong:
            break
    assert not wrong
