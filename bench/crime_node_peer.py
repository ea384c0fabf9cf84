"""The peers of `crime_node.py`: the app without a router, and nodes that are never chosen.

Prints the address of each as a line, and serves until it is terminated.
"""

import argparse
import asyncio
import signal
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from pliant.api.open_endpoint import open_endpoint
from pliant.ir.curve import Curve
from pliant.route.choice.choose_endpoint import LOCAL
from pliant.route.node_identity import Identity
from pliant.route.node_messages import NodeTime
from pliant.run.session.session import Session
from pliant.serve.access.access import AccessControl
from pliant.serve.access.security import ListenAddress
from pliant.serve.answers.admission import Admission
from pliant.serve.answers.metrics import Metrics
from pliant.serve.http.connections.server import NodeServer, bind
from pliant.serve.http.http_app import make_app
from pliant.serve.http.limits import Limits
from pliant.serve.node.serving_node import InferCall, InferResponse
from pliant.serve.node.start_node import NodeOptions, serve
from pliant.serve.protocol.inference import read_request, signature
from pliant.serve.protocol.replies import write_reply
from pliant.serve.repository.front_node import FrontNode
from pliant.serve.telemetry.request_context import ServedModel

ANY = ListenAddress("127.0.0.1", 0)


class UnroutedNode:
    """Answers requests as `serve/node/serving_node.py`, but without a router: no choice, no curve."""

    name = "unrouted"
    upstreams = None
    is_draining = False

    def __init__(self, served: Session[Any]) -> None:
        self.served, self.limits, self.clock = served, Limits(), time.monotonic
        self.identity, self.signature = Identity(served.identity), signature(served)
        self._admission = Admission(64)
        self.metrics = Metrics()
        self.model = ServedModel(served.name, "1")

    async def infer(self, call: InferCall) -> InferResponse:
        start_s = self.clock()
        request = read_request(
            call.body, call.header_bytes, self.signature, self.limits, self.served.max_items
        )
        given = self.served.request(request.tensors)
        done = await self._admission.run(lambda: self.served.answer(given), 0.0)
        answer = write_reply(request, done.result.outputs, self.signature)
        self.metrics.requests.labels(LOCAL, "ok").inc()
        self.metrics.request_seconds.labels(LOCAL).observe(self.clock() - start_s)
        return InferResponse(
            answer, LOCAL, self.name, NodeTime(done.waited_s + done.spent_s, done.waited_s), given.length
        )


async def unrouted(model: str) -> None:
    served = open_endpoint(model, threads=1)
    node: Any = UnroutedNode(served)
    sock = bind(ANY)
    print(f"http://127.0.0.1:{sock.getsockname()[1]}", flush=True)
    await NodeServer(make_app(node, AccessControl(), "0"), Limits(), lambda: None, lambda: None, 0.0).serve(
        [sock]
    )


async def late(model: str, n: int) -> None:
    """Nodes that receive no requests, since their curves state 100 seconds."""
    served = open_endpoint(model, threads=1)
    stops: list[Callable[[], None]] = []

    def end() -> None:
        for stop in stops:
            stop()

    def on_start(url: str, front: FrontNode, stop: Callable[[], None]) -> None:
        stops.append(stop)
        # Each server replaces the signal handler at its start, so only the last one would be stopped.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
        print(url, flush=True)

    options = [
        NodeOptions(ANY, "0", name=f"late{i}", prior=Curve(((0, 100.0 + i),)), settle_s=0.0) for i in range(n)
    ]
    await asyncio.gather(*(serve(one, served, on_start) for one in options))  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--late", type=int, default=0, help="so many nodes; else the app without a router")
    options: SimpleNamespace = parser.parse_args(namespace=SimpleNamespace())
    asyncio.run(late(options.model, options.late) if options.late else unrouted(options.model))


if __name__ == "__main__":
    main()
