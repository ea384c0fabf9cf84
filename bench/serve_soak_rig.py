"""The two nodes of `serve_soak.py`, and the events of each cycle."""

import http.client
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final
from urllib.parse import urlsplit

import psutil

MODELS = ("imdb-lstm", "sst2")
COMES_AND_GOES = "sst2"
N_CLIENTS = 64
DILATION = "4"
PATIENCE_S = 120.0
"""The timeout after which a client counts its request as lost."""
PLIANT = [sys.executable, "-c", "from pliant.cli.app import app; app()"]


@final
class Process:
    """A node that can be stopped, killed, and restarted at the same address."""

    def __init__(self, *words: str) -> None:
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        told = ("--listen", f"127.0.0.1:{port}", "--json", "--settle", "1ms", "--threads", "1")
        self._command = [*PLIANT, "node", *words, *told]
        self._run: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the node, and wait until it answers."""
        self._run = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._run.stdout is not None
        assert "serves" in self._run.stdout.readline(), "the node did not start"

    def signal(self, number: int) -> None:
        assert self._run is not None
        self._run.send_signal(number)
        if number == signal.SIGKILL:
            self._run.wait()

    def end(self) -> int | None:
        """Terminate the node as an operator does; returns its exit status."""
        if self._run is None or self._run.poll() is not None:
            return None
        self._run.send_signal(signal.SIGCONT)
        self._run.terminate()
        try:
            return self._run.wait(PATIENCE_S)
        finally:
            self._run.kill()

    @property
    def resident_bytes(self) -> int:
        assert self._run is not None
        return int(psutil.Process(self._run.pid).memory_info().rss)


def _free_port() -> int:
    """A free port, chosen in advance because a node is restarted there."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Step:
    """An event at a fraction of each cycle."""

    at: float
    name: str
    act: Callable[[], None]


def steps(node: Process, upstream: Process, token: str) -> list[Step]:
    def repository(what: str) -> None:
        connection = http.client.HTTPConnection(urlsplit(node.url).netloc, timeout=PATIENCE_S)
        path = f"/v2/repository/models/{COMES_AND_GOES}/{what}"
        connection.request("POST", path, b"{}", {"authorization": f"Bearer {token}"})
        response = connection.getresponse()
        said = response.read()
        connection.close()
        if response.status != 200:
            raise SystemExit(f"{what} of {COMES_AND_GOES}: {response.status} {said!r:.300}")

    return [
        Step(0.10, "upstream frozen", lambda: upstream.signal(signal.SIGSTOP)),
        Step(0.25, "upstream goes on", lambda: upstream.signal(signal.SIGCONT)),
        Step(0.35, "model unloaded", lambda: repository("unload")),
        Step(0.50, "upstream killed", lambda: upstream.signal(signal.SIGKILL)),
        Step(0.60, "model loaded", lambda: repository("load")),
        Step(0.75, "upstream started", upstream.start),
    ]


@contextmanager
def nodes(folder: Path, token: str) -> Iterator[tuple[Process, Process]]:
    file = folder / "operators"
    file.touch(mode=0o600)
    file.write_text(token + "\n")
    upstream = Process(MODELS[0])
    words = ("--upstream", upstream.url, "--dilate", DILATION, "--queue", str(2 * N_CLIENTS))
    node = Process(*MODELS, *words, "--operator-token-file", str(file))
    try:
        upstream.start()
        node.start()
        yield node, upstream
    finally:
        with suppress(subprocess.TimeoutExpired):
            node.end()
        with suppress(subprocess.TimeoutExpired):
            upstream.end()
