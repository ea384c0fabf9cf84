"""One end of a link between emulated devices, as a process: measures the link, or multiplies received rows.

Run as `hepti_peer.py JSON`; the end named in `asks` prints what it measured as JSON.
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pliant.cluster.lead.measure_links import measure_links
from pliant.cluster.net.comm import Comm, Tag
from pliant.cluster.net.comm_gloo import GlooComm
from pliant.cluster.net.comm_zmq import ZmqComm
from pliant.cluster.net.key import read_key

PORT = 29600
PATIENT_S = 60.0
LINGER_S = 0.5
"""The answering end stays open until its last answer has arrived, since a closed end counts as lost at
once.
"""


def main() -> None:
    said: dict[str, Any] = json.loads(sys.argv[1])
    with joined(said) as comm:
        if said["task"] == "links":
            start_s = time.process_time()
            found = dict(measure_links(comm, list(said["addresses"]), 1))
            rows = [[*pair, link.latency_s, link.bandwidth_Bps] for pair, link in found.items()]
            if rows:
                print(json.dumps({"links": rows, "cpu_s": time.process_time() - start_s}), flush=True)
            else:
                time.sleep(LINGER_S)
        else:
            from hepti_products import serve

            serve(comm, said)


@contextmanager
def joined(said: Mapping[str, Any]) -> Iterator[Comm]:
    """The end `name` of the engine that `said` names, connected to the other end."""
    name, addresses = said["name"], said["addresses"]
    comm: ZmqComm | GlooComm
    if said["engine"] == "zmq":
        comm = ZmqComm(name, read_key(Path(said["key"])), f"{addresses[name]}:{PORT}")
        for peer, address in addresses.items():
            if peer != name:
                comm.connect(peer, f"{address}:{PORT}")
    else:
        comm = GlooComm(name)
        comm.form(tuple(addresses), f"tcp://{next(iter(addresses.values()))}:{PORT + 1}")
    try:
        yield comm
    finally:
        comm.close()


def take(comm: Comm, src: str, number: int, into: np.ndarray) -> None:
    comm.receive(src, Tag(1, 0, number), into, PATIENT_S)


def give(comm: Comm, dst: str, number: int, array: np.ndarray) -> None:
    comm.send(dst, Tag(1, 0, number), array)


if __name__ == "__main__":
    main()
