"""A node from its options: opened, served, drained. Knows how the parts fit, and none of what they do."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from pliant.errors import NodeError

try:
    from pliant.serve.app import make_app
    from pliant.serve.node import Node
    from pliant.serve.server import NodeServer, bind
except ImportError as error:  # pragma: no cover - the tests need them
    raise NodeError(f"a node needs {error.name}: pip install 'pliant[node]'.") from error
from pliant.serve.limits import Limits
from pliant.serve.security import Address, Tls, Tokens, check_exposure
from pliant.serve.served import Served


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """What a node is told; `settle_s` is how long it still answers once it has said that it leaves."""

    listen: Address
    version: str
    name: str | None = None
    tokens: tuple[str, ...] = ()
    tls: Tls = field(default_factory=Tls)
    is_insecure: bool = False
    queue: int = 64
    dilation: float = 1.0
    settle_s: float = 0.5
    limits: Limits = field(default_factory=Limits)


class OnStart(Protocol):
    """Told once the node answers: where, and how it is stopped from this event loop."""

    def __call__(self, url: str, node: Node, stop: Callable[[], None]) -> None: ...


async def serve(options: NodeOptions, served: Served, on_start: OnStart) -> None:
    """Serve until SIGTERM, SIGINT or `stop`. `served` is closed at the end. Raises NodeError."""
    tokens = Tokens(options.tokens)
    try:
        check_exposure(options.listen, tokens, options.is_insecure)
        tls = options.tls.server()
        sock = bind(options.listen)
    except BaseException:
        served.close()
        raise
    listen = Address(options.listen.host, sock.getsockname()[1])
    node = Node(
        options.name or f"{listen}",
        served,
        queue=options.queue,
        dilation=options.dilation,
        limits=options.limits,
    )
    app = make_app(node, tokens, options.version)
    server = NodeServer(app, options.limits, tls, node.drain, options.settle_s)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # what clients do wrong is counted, not logged
    loop = asyncio.get_running_loop()
    url = f"{'http' if tls is None else 'https'}://{listen}"
    started = loop.create_task(_when_started(server, lambda: on_start(url, node, server.stop)))
    try:
        await server.serve([sock])
    finally:
        started.cancel()
        await node.close()
        sock.close()


async def _when_started(server: NodeServer, then: Callable[[], None]) -> None:
    while not server.started:
        await asyncio.sleep(0.01)
    then()
