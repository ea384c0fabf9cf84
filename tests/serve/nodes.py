"""Nodes for tests: on a free port of loopback, in threads of this process."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import httpx

from pliant.ir.curve import Curve
from pliant.ir.endpoint import ServiceLevel
from pliant.route.router_settings import RouterSettings
from pliant.run.process_memory import MemoryBudget
from pliant.run.session.session import Session
from pliant.run.submodel.elastic_session import ElasticSession
from pliant.serve.access.security import ListenAddress, bearer
from pliant.serve.http.connections.server import NodeServer
from pliant.serve.node.node_controls import NodeControls
from pliant.serve.node.reloads import Reloads
from pliant.serve.node.serving_node import ServingNode
from pliant.serve.node.start_node import NodeOptions, OnStart, serve, serve_models
from pliant.serve.repository.front_node import FrontNode
from pliant.serve.repository.model_entry import ModelEntry
from pliant.serve.repository.model_repository import FindModels, ModelRepository

ANY_PORT = ListenAddress("127.0.0.1", 0)
PATIENCE_S = 60.0


@dataclass(slots=True)
class Running:
    """A node that answers at `url`."""

    url: str = ""
    node: ServingNode | None = None
    """That of its first model, if it had one from the start."""
    grpc: ListenAddress | None = None
    thread: threading.Thread | None = None
    loop: asyncio.AbstractEventLoop | None = None
    server: NodeServer | None = None
    repository: ModelRepository | None = None
    reloads: Reloads | None = None
    controls: NodeControls | None = None
    started: threading.Event = field(default_factory=threading.Event)
    operator: dict[str, str] = field(default_factory=dict)
    """The headers of its operator, where it has one."""

    @property
    def address(self) -> str:
        return self.url.partition("://")[2]

    def stop(self) -> None:
        """As SIGTERM; returns at once."""
        self.do("stop")

    def interrupt(self) -> None:
        """As Ctrl-C; returns at once."""
        self.do("interrupt")

    def do(self, method: Literal["stop", "interrupt"]) -> None:
        """Call that of the server on its event loop, if it still runs."""
        assert self.loop is not None
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(getattr(self.server, method))

    @property
    def n_connections(self) -> int:
        """How many the node keeps, in a TLS handshake or after it."""
        assert self.server is not None
        return len(self.server.server_state.connections)

    def join(self) -> None:
        assert self.thread is not None
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive(), "the node did not end"

    def post(self, text: str, **more: Any) -> httpx.Response:
        """A text to the model `upper`."""
        return httpx.post(
            f"{self.url}/v2/models/upper/infer", content=asking(text), timeout=PATIENCE_S, **more
        )


@contextmanager
def reserved() -> Iterator[ListenAddress]:
    """Where nobody listens until a node does: a socket that only has the port keeps all others from it."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((ANY_PORT.host, 0))
        yield ListenAddress(ANY_PORT.host, sock.getsockname()[1])


def asking(text: str, **more: Any) -> bytes:
    """A request in JSON for the model `upper`."""
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}
    return json.dumps({"inputs": [tensor], **more}).encode()


def fixed(*points: tuple[int, float], **changes: Any) -> dict[str, Any]:
    """Options of a node that believes this of itself whatever it measures: tests say nothing about time."""
    settings: dict[str, Any] = {
        "is_robust": False,
        "refit_every": 10**9,
        "retry_s": 0.2,
        "aside_limit_s": 1e5,
        "aside_s": 1e4,
    }
    return {"prior": Curve(points), "routing": RouterSettings(1000, **settings | changes)}


@contextmanager
def running(
    served: Session[Any],
    beside: Sequence[Session[Any]] = (),
    memory: MemoryBudget | None = None,
    *,
    cluster: Session[Any] | None = None,
    **options: Any,
) -> Iterator[Running]:
    """A node that serves until the context ends; `beside` are other models, which share `memory`."""
    prior = options.get("prior")
    is_fixed = prior is not None and options["routing"].refit_every >= 10**9
    if is_fixed and type(served).levels is Session.levels:
        levels = (ServiceLevel(prior),)
        served.levels = lambda: levels  # type: ignore[method-assign]
    elif is_fixed and isinstance(served, ElasticSession):
        as_accurate = tuple(replace(level, curve=prior, bound=None) for level in served.levels())
        served.levels = lambda: as_accurate  # type: ignore[method-assign]
    with _started(
        lambda told, on_start: serve(told, served, on_start, cluster, beside, memory), options
    ) as run:
        yield run


@contextmanager
def running_models(
    entries: Sequence[ModelEntry],
    memory: MemoryBudget | None = None,
    find: FindModels = lambda: (),
    **options: Any,
) -> Iterator[Running]:
    """A node that loads and unloads the models of `entries`, which share `memory`, until the context ends;
    and those that `find` finds."""
    found: list[NodeControls] = []
    with _started(
        lambda told, on_start: serve_models(told, entries, on_start, memory, found.append, find),
        options,
    ) as run:
        (run.controls,) = found
        run.repository, run.reloads = run.controls.repository, run.controls.reloads
        yield run


Serve = Callable[[NodeOptions, OnStart], Coroutine[Any, Any, None]]


@contextmanager
def _started(serves: Serve, options: dict[str, Any]) -> Iterator[Running]:
    run, failed = Running(), []
    run.operator = bearer(next(iter(options.get("operator_tokens", ())), None))
    told = NodeOptions(**{"listen": ANY_PORT, "version": "0", "settle_s": 0.0, **options})

    def on_start(url: str, front: FrontNode, stop: Callable[[], None]) -> None:
        run.url, run.node, run.server = url, front.node, stop.__self__  # type: ignore[attr-defined]
        run.grpc = front.grpc
        run.loop = asyncio.get_running_loop()
        run.started.set()

    def work() -> None:
        try:
            asyncio.run(serves(told, on_start))
        except BaseException as error:  # noqa: BLE001 - raised again where the node was asked for
            failed.append(error)
        finally:
            run.started.set()

    run.thread = threading.Thread(target=work, daemon=True)
    run.thread.start()
    assert run.started.wait(PATIENCE_S)
    if failed:
        raise failed[0]
    try:
        yield run
    finally:
        run.stop()
        run.join()
    if failed:
        raise failed[0]
