"""The links between two emulated devices, measured by pliant in separate processes."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from hepti_beds import Network
from pliant.cluster.lead.measure_links import links_of
from pliant.cluster.net.key import make_key
from pliant.ir.capability import Links
from pliant.ir.link import Link

PEER = Path(__file__).with_name("hepti_peer.py")
Engine = Literal["zmq", "gloo"]


def measured(network: Network, folder: Path, engine: Engine = "zmq") -> tuple[Links, list[list[Any]]]:
    """The network as passed to the planner, and (source, destination, latency, bytes a second)."""
    if not (folder / "links.key").exists():
        make_key(folder / "links.key")
    addresses = {device.name: device.address for device in network}
    ends = [start(network, name, addresses, folder, engine, "links") for name in addresses]
    found = [end.communicate(timeout=120)[0] for end in ends]
    said = [json.loads(text)["links"] for text in found if text.strip()]
    assert len(said) == 1, "one end of a pair measures it"
    ways = said[0]
    return links_of({(src, dst): Link(latency_s, Bps) for src, dst, latency_s, Bps in ways}), ways


def start(
    network: Network, name: str, addresses: Mapping[str, str], folder: Path, engine: Engine, task: str,
    **more: object,
) -> "subprocess.Popen[bytes]":  # fmt: skip
    """Start one end on its device."""
    said = {"name": name, "addresses": dict(addresses), "engine": engine, "task": task, **more}
    said["key"] = str(folder / "links.key")
    command = [sys.executable, PEER, json.dumps(said)]
    environment = dict(os.environ) | {"GLOO_SOCKET_IFNAME": "eth0"}
    return network[name].popen(command, env=environment, stdout=subprocess.PIPE)
