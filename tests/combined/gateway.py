"""A node as a process of its own: `python -m tests.combined.gateway STORE PORT CACHE`; it prints its address.

Its device is that of the tests on paper, so that it plans as sessions of the test do.
"""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

from pliant.api.open_endpoint import open_endpoint
from pliant.serve.access.security import ListenAddress
from pliant.serve.node.start_node import NodeOptions, serve
from tests.run.conftest import paper_profile
from tests.serve.nodes import ANY_PORT

NAME = "gateway"
ROOT = Path(__file__).parents[2]


@final
class GatewayProcess:
    """Starts the node at a port that is kept for it; `kill` is SIGKILL, and it may be started again."""

    def __init__(self, store: Path, at: ListenAddress, cache: Path) -> None:
        self.url = f"http://{at}"
        self._command = [sys.executable, "-m", "tests.combined.gateway", str(store), str(at.port), str(cache)]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Return once it answers."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == self.url, "the gateway did not start"

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def main() -> None:
    store, port, cache = sys.argv[1:]
    served = open_endpoint(store, threads=1, profile=paper_profile(), cache=Path(cache))

    def on_start(url: str, node: Any, stop: Callable[[], None]) -> None:
        print(url, flush=True)

    options = NodeOptions(ListenAddress(ANY_PORT.host, int(port)), name=NAME, settle_s=0.0, queue=24)
    asyncio.run(serve(options, served, on_start))


if __name__ == "__main__":
    main()
