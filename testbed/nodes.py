"""Nodes that answer requests, each a process on its emulated device."""

import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from testbed.commands import BedError
from testbed.inside import inside
from testbed.network import Network
from testbed.spec import DeviceSpec

PORT = 8080
_MAIN = "from pliant.cli import main; main()"
_PATIENCE_S = 120.0
_EXECUTED = re.compile(r"^\S+ \S+ (\S+): length (\d+), answered here in (\S+) s(?: \[.*\])?$")


@dataclass(frozen=True, slots=True)
class Execution:
    """A request that a node executed: its id, its input's length, and its time."""

    id: str
    length: int
    seconds: float


@dataclass(frozen=True, slots=True)
class NodeBed:
    """A network with a node on each device; `upstreams` are names of devices, by name.

    `folder` has the output of each node, over all restarts, in NAME.log.
    """

    network: Network
    model: str
    upstreams: Mapping[str, Sequence[str]]
    folder: Path

    @property
    def token(self) -> str:
        return (self.folder / "token").read_text().strip()

    def url(self, name: str) -> str:
        """The URL of a node."""
        return f"http://{self.network[name].address}:{PORT}"

    def start(self, name: str) -> "subprocess.Popen[bytes]":
        """Start or restart a node; call `wait` for its first answer."""
        device = self.network[name]
        words = ["node", self.model, "--listen", f"{device.address}:{PORT}", "--name", name, "--verbose"]
        words += ["--peer-token-file", str(self.folder / "token"), "--threads", "1"]
        words += ["--dilate", str(device.spec.slower)]
        for upstream in self.upstreams.get(name, ()):
            words += ["--upstream", self.url(upstream)]
        with (self.folder / f"{name}.log").open("ab") as log:
            return device.popen([sys.executable, "-c", _MAIN, *words], stdout=log, stderr=log)

    def wait(self, name: str, patience_s: float = _PATIENCE_S) -> None:
        """Wait until a node answers. Raises BedError with its last output on a timeout."""
        deadline_s = time.monotonic() + patience_s
        with inside(self.network[name]), httpx.Client(trust_env=False) as client:
            while time.monotonic() < deadline_s:
                try:
                    if client.get(f"{self.url(name)}/v2/health/ready").status_code == 200:
                        return
                except httpx.HTTPError:
                    time.sleep(0.05)
        said = (self.folder / f"{name}.log").read_text(errors="replace")
        raise BedError(f"{name} does not answer after {patience_s:g} s: {said[-500:]}")

    def executed(self, name: str) -> list[Execution]:
        """The requests that a node executed, over all restarts, in order."""
        found = []
        for line in (self.folder / f"{name}.log").read_text(errors="replace").splitlines():
            match = _EXECUTED.match(line)
            if match is not None:
                found.append(Execution(match[1], int(match[2]), float(match[3])))
        return found


@contextmanager
def open_nodes(
    specs: Sequence[DeviceSpec], upstreams: Mapping[str, Sequence[str]], model: str, folder: Path
) -> Iterator[NodeBed]:
    """Start a node for `model` on each device of `specs`, with one thread, `slower` times slower.

    `folder` must be new and is kept. Raises BedError without a testbed, or if a node does not start.
    """
    token = folder / "token"
    token.touch(0o600)
    token.write_text(f"{secrets.token_hex(16)}\n")
    with Network(specs) as network:
        bed = NodeBed(network, model, upstreams, folder)
        for spec in specs:
            bed.start(spec.name)
        for spec in specs:
            bed.wait(spec.name)
        yield bed
