"""A cluster on emulated devices: the primary in this process, each worker on a device."""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pliant.api.open_cluster import Cluster
from pliant.cluster.control.timeouts import ClusterTimeouts
from pliant.cluster.net.connect_members import PORT
from pliant.cluster.net.key import make_key
from pliant.cluster.session.cluster_session import ClusterSession
from pliant.ir.dilation import Dilation
from testbed.inside import inside
from testbed.network import Device, Network
from testbed.spec import DeviceSpec

_MAIN = "from pliant.cli import main; main()"
_PATIENCE_S = 120.0
_SILENCE_S = ClusterTimeouts().silence_s


@dataclass(frozen=True, slots=True)
class Bed:
    """A network, and the cluster whose primary is its first device and whose workers are the others.

    `folder` has the output of each worker in NAME.log; `words` are further options of `pliant worker` by
    name.
    """

    network: Network
    cluster: Cluster
    model: str
    folder: Path
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)
    silence_s: float = _SILENCE_S

    @property
    def session(self) -> ClusterSession:
        """The model on the cluster."""
        return self.cluster.open(self.model)

    @property
    def key(self) -> Path:
        return self.folder / "cluster.key"

    @property
    def primary(self) -> Device:
        return self.network[self.cluster.name]

    @property
    def workers(self) -> tuple[Device, ...]:
        return tuple(device for device in self.network if device is not self.primary)

    def start(self, name: str) -> "subprocess.Popen[bytes]":
        """Start or restart a worker on a device; it joins by itself."""
        words = self.words.get(name)
        return start_worker(
            self.network[name],
            self.primary.address,
            self.model,
            self.folder,
            words,
            silence_s=self.silence_s,
        )


def start_worker(
    device: Device,
    primary: str,
    model: str,
    folder: Path,
    words: Sequence[str] | None = None,
    *,
    silence_s: float = _SILENCE_S,
) -> "subprocess.Popen[bytes]":
    """Start `pliant worker` with one thread on `device`, which connects to the address `primary`.

    The key is `folder`/cluster.key, and its output goes to NAME.log there; `words` are further options, by
    default the device's speed. A primary that is silent for `silence_s` is considered lost.
    """
    asked = ["worker", "--join", f"{primary}:{PORT}", "--name", device.name, "--model", model]
    asked += ["--key", str(folder / "cluster.key"), "--threads", "1", "--silence", f"{silence_s}s"]
    asked += words if words is not None else ["--dilate-compute", str(device.spec.slower)]
    with (folder / f"{device.name}.log").open("ab") as log:
        return device.popen([sys.executable, "-c", _MAIN, *asked], stdout=log, stderr=log)


@contextmanager
def open_bed(
    specs: Sequence[DeviceSpec],
    model: str,
    folder: Path,
    *,
    words: Mapping[str, Sequence[str]] | None = None,
    **options: Any,
) -> Iterator[Bed]:
    """Start all devices of `specs`, with a worker for `model` on each but the first, joined to the first.

    `options` are passed to `Cluster`. The primary is this process: its memory limit is passed to the planner,
    not enforced. Each device has one compute thread, `slower` times slower unless `words`, options of `pliant
    worker` by device, override it. `folder` must be new and is kept. A `patience` in the options is the
    timeout for silence of all members. Raises BedError without a testbed, and ClusterError naming the workers
    that joined if not all did.
    """
    first, patience = specs[0], options.get("patience", ClusterTimeouts())
    make_key(folder / "cluster.key")
    with ExitStack() as ends:
        network = ends.enter_context(Network(specs))
        ends.enter_context(inside(network[first.name]))
        cluster = ends.enter_context(
            Cluster(
                f"{network[first.name].address}:{PORT}",
                key=folder / "cluster.key",
                name=first.name,
                threads=1,
                dilation=Dilation(first.slower),
                **({"memory": first.memory_bytes} | options),
            )
        )
        bed = Bed(network, cluster, model, folder, words or {}, patience.silence_s)
        for device in bed.workers:
            bed.start(device.name)
        cluster.wait(len(bed.workers), _PATIENCE_S)
        yield bed
