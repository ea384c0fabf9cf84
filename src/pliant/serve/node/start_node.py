"""Start a node from its options: open its models, serve, drain."""

import asyncio
import logging
import platform
import re
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

from pliant.errors import NodeError

try:
    from pliant.serve.http.connections.server import NodeServer, bind
    from pliant.serve.http.content_coding import ResponseCompression
    from pliant.serve.http.http_app import model_app
    from pliant.serve.http.model_apps import ModelApps
    from pliant.serve.http.repository_paths import RepositoryPaths
    from pliant.serve.node.serving_node import ServingNode
    from pliant.serve.openai.embeddings import embeddings_route
    from pliant.serve.page.event_stream import PageProcess
    from pliant.serve.page.page_routes import page_routes
    from pliant.serve.repository.front_node import FrontNode
    from pliant.serve.repository.live_model import ConnectedModel, Withdraw
    from pliant.serve.repository.model_loader import ModelLoader
    from pliant.serve.repository.model_repository import FindModels, ModelRepository
    from pliant.serve.upstream.client import Client, checked_url
    from pliant.serve.upstream.request_explanation import request_explanation as request_explanation
    from pliant.serve.upstream.upstreams import Upstreams
except ModuleNotFoundError as error:  # pragma: no cover - the tests need them
    raise NodeError(f"a node needs {error.name}: pip install 'pliant[node]'.") from error
from pliant.ir.curve import Curve
from pliant.route.choice.energy import RadioModel
from pliant.route.choice.objective import TIME, Objective
from pliant.route.choice.request_terms import Terms
from pliant.route.router import Router
from pliant.route.router_settings import RouterSettings
from pliant.run.process_memory import MemoryBudget
from pliant.run.session.session import Session
from pliant.serve.access.access import AccessControl
from pliant.serve.access.credentials import Credentials, TokenFiles
from pliant.serve.access.rates import ClientRates
from pliant.serve.access.security import (
    AccessTokens,
    ListenAddress,
    Tls,
    check_discovery,
    check_exposure,
    warn_unencrypted,
)
from pliant.serve.answers.admission import Admission
from pliant.serve.answers.answer_energy import AnswerEnergy
from pliant.serve.answers.metrics import Metrics
from pliant.serve.http.body_reader import BodyReader
from pliant.serve.http.limits import Limits
from pliant.serve.node.node_controls import NodeConfig, NodeControls, plan_for_floor
from pliant.serve.page.answer_feed import AnswerFeed
from pliant.serve.repository.model_entry import (
    FIRST_VERSION,
    ModelEndpoints,
    ModelEntry,
    ModelKey,
    OpenModel,
    session_entry,
)
from pliant.serve.telemetry.service_manager import service_manager
from pliant.serve.telemetry.tracing import Tracer, make_tracer
from pliant.serve.upstream.callback import Callbacks
from pliant.settings import child_environment

LENGTHS = (1, 64, 8, 512, 32, 4, 128, 16, 256)
"""Lengths of the samples for the first curve; if time is short, only the first ones are used."""

_CHANGING = ("terms", "objective", "upstreams", "queue", "rates")
"""Options that may change while the node runs, as fields of `NodeConfig`."""


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Options of a node.

    `address` is the URL at which other nodes call it, by default its listening address; `grpc` is the address
    of the gRPC server, if any.
    `settle_s` is how long it still accepts requests after SIGTERM while it reports not ready. `learn_s` is
    the time to measure samples before it starts; `prior` is a curve known without that.

    `tokens` are those of clients, `peer_tokens` those of other nodes, of which the first is sent to
    upstreams, and `operator_tokens` those of operators, who may change upstreams; `token_files` are reloaded
    when they change. `rates` limit each client, and `callbacks` are the allowed callback addresses of
    downstream nodes.

    `compute_workers` run batches concurrently, at most as many as the model allows; None is its default.
    `terms` are the defaults of requests that start here. With `is_announced`, nodes can discover this one by
    multicast DNS; with `discovers`, announced nodes become upstreams. `page_texts` shows texts to all viewers
    of the page. `objective` is the routing objective of requests that start here; joules count by `energy`
    and `radio` (eq. 8 and 9). `tracer` creates spans, by default those of OpenTelemetry.
    """

    listen: ListenAddress = field(default_factory=lambda: ListenAddress("127.0.0.1", 0))
    version: str | None = None
    name: str | None = None
    upstreams: tuple[str, ...] = ()
    is_announced: bool = False
    discovers: bool = False
    address: str | None = None
    tokens: tuple[str, ...] = field(default=(), repr=False)
    peer_tokens: tuple[str, ...] = field(default=(), repr=False)
    operator_tokens: tuple[str, ...] = field(default=(), repr=False)
    callbacks: Callbacks = field(default_factory=Callbacks)
    grpc: ListenAddress | None = None
    tls: Tls = field(default_factory=Tls)
    token_files: TokenFiles = field(default_factory=TokenFiles)
    is_insecure: bool = False
    rates: ClientRates = field(default_factory=ClientRates)
    queue: int = 64
    compute_workers: int | None = None
    page_texts: bool = False
    settle_s: float = 5.0
    limits: Limits = field(default_factory=Limits)
    learn_s: float = 0.0
    prior: Curve | None = None
    routing: RouterSettings | None = None
    terms: Terms = field(default_factory=Terms)
    objective: Objective = TIME
    energy: AnswerEnergy = field(default_factory=AnswerEnergy)
    radio: RadioModel | None = None
    tracer: Tracer | None = None

    def __post_init__(self) -> None:
        for url in self.upstreams if self.address is None else (*self.upstreams, self.address):
            checked_url(url)


class OnStart(Protocol):
    """Called once the node serves: URL, front node, and a function to stop it from this event loop."""

    def __call__(self, url: str, front: FrontNode, stop: Callable[[], None]) -> None: ...


async def serve(
    options: NodeOptions,
    served: Session[Any],
    on_start: OnStart,
    cluster: Session[Any] | None = None,
    beside: Sequence[Session[Any]] = (),
    memory: MemoryBudget | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or `stop`; sessions are closed at the end. Raises NodeError.

    `cluster` is a session of the same model on several devices, used in addition to `served`. Sessions of
    other models, `beside`, are served at the same address and take turns; `memory` is their shared budget.
    """
    every = (served, *beside)
    entries = [session_entry(one, cluster if one is served else None) for one in every]
    try:
        await serve_models(options, entries, on_start, memory)
    finally:
        for one in every if cluster is None else (*every, cluster):
            one.close()


async def serve_models(
    options: NodeOptions,
    entries: Sequence[ModelEntry],
    on_start: OnStart,
    memory: MemoryBudget | None = None,
    on_controls: Callable[[NodeControls], None] = lambda controls: None,
    find: FindModels = lambda: (),
) -> None:
    """Serve the models of `entries`, which share `memory`, until SIGTERM, SIGINT or `stop`.

    Operators can load and unload them at run time, and those that `find` returns. `on_controls` is called
    with the node's controls once the models are loaded. Raises PliantError if an initial model cannot be
    loaded, and NodeError.
    """
    tokens = AccessTokens(options.tokens, options.peer_tokens, options.operator_tokens)
    for at in (options.listen, options.grpc):
        if at is not None:
            check_exposure(at, tokens, options.is_insecure)
            warn_unencrypted(at, tokens, options.tls)
    if options.discovers:
        check_discovery(options.listen, options.peer_tokens, options.is_insecure)
    credentials = Credentials(tokens, options.token_files, options.tls)
    sock = bind(options.listen)
    listen = ListenAddress(options.listen.host, sock.getsockname()[1])
    url = f"{'http' if credentials.server_tls is None else 'https'}://{listen}"
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as open_:
        open_.callback(sock.close)
        options = replace(options, name=options.name or _name_at(listen.port), address=options.address or url)
        admission = Admission(options.queue, n_workers=options.compute_workers)
        open_.callback(admission.close)
        bodies, learn_s = BodyReader(options.limits), options.learn_s / max(len(entries), 1)
        access = AccessControl(
            tokens,
            options.rates,
            asks_certificate=options.tls.client_ca is not None,
            is_local=options.listen.is_loopback and not options.is_insecure,
        )
        credentials.on_change.append(lambda: access.replace_tokens(credentials.tokens))

        async def connect(entry: ModelEntry, opened: OpenModel, stack: AsyncExitStack) -> ConnectedModel:
            changed = {name: getattr(controls.config, name) for name in _CHANGING}
            now = replace(options, learn_s=learn_s, **changed)
            own = with_endpoints(now, entry.endpoints)
            shared = admission, memory, credentials, repository.metrics_of(entry.key)
            node, withdraw = await _connect_model(own, entry.key, opened, shared, stack)
            app = model_app(node, repository.nodes, bodies, access, version, options.callbacks, page, tracer)
            return ConnectedModel(node, app, withdraw)

        version = options.version or ""
        tracer = options.tracer or make_tracer()
        embeddings = embeddings_route(
            lambda: repository.nodes, lambda name, terms: repository.lease(name, None, terms), bodies
        )
        shown = PageProcess(
            options.name or "", version, lambda: repository.nodes, lambda: repository.is_draining
        )
        page = [*page_routes(shown), embeddings]
        repository = ModelRepository(entries, ModelLoader(connect, memory), find)
        config = NodeConfig(
            entries=tuple(entries),
            memory_bytes=None if memory is None else memory.total_bytes,
            **{name: getattr(options, name) for name in _CHANGING},
        )
        controls = NodeControls(repository, access, admission, credentials, config, options.discovers)
        open_.enter_context(controls.reloads.on_hangup())
        open_.push_async_callback(repository.close)
        await repository.start()
        paths = RepositoryPaths(repository, bodies, access, options.name or "", version, page, tracer)
        app = ResponseCompression(ModelApps(repository, paths, bodies, access, options.limits, tracer))

        manager = service_manager(child_environment())

        def drain() -> None:
            manager.notify("STOPPING=1")
            repository.drain()
            for live in repository.live:
                open_.push_async_callback(asyncio.wait, [loop.create_task(live.withdraw())])

        def refused(status: int) -> None:
            paths.front.metrics.count_refusal(status)

        server = NodeServer(
            app, options.limits, lambda: credentials.server_tls, drain, options.settle_s, refused
        )
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # client errors are counted instead
        on_controls(controls)
        controls.reloads.add(credentials.reload)  # last, as the files may be others by then

        def say_ready() -> None:
            on_start(url, paths.front, server.stop)
            manager.notify("READY=1", f"STATUS=serves at {url}")

        started = _when_started(server, say_ready)
        for work in (started, manager.keep_alive(), credentials.watch()):
            open_.push_async_callback(cancel_and_wait, loop.create_task(work))
        if options.grpc is not None:
            try:
                from pliant.serve.grpc.grpc_server import serve_grpc
                from pliant.serve.grpc.grpc_service import GrpcService
            except ImportError as error:  # pragma: no cover - the tests need it
                raise NodeError(f"gRPC needs {error.name}: pip install 'pliant[grpc]'.") from error

            service = GrpcService(repository, paths.front, access, options.limits, tracer)
            paths.front.grpc = await open_.enter_async_context(
                serve_grpc(options.grpc, service, lambda: credentials.key_pair, options.limits)
            )
        await server.serve([sock])


def with_endpoints(options: NodeOptions, own: ModelEndpoints) -> NodeOptions:
    """The options of one model's node, with its own overrides."""
    given = {f.name: getattr(own, f.name) for f in fields(own)}
    given["terms"] = own.terms.with_defaults(options.terms)
    return replace(options, **{name: value for name, value in given.items() if value is not None})


async def _connect_model(
    options: NodeOptions,
    key: ModelKey,
    opened: OpenModel,
    shared: tuple[Admission, MemoryBudget | None, Credentials, Metrics | None],
    stack: AsyncExitStack,
) -> tuple[ServingNode, Withdraw]:
    """Create the node of an opened model on the running loop; `stack` closes it. Raises NodeError."""
    stack.push_async_callback(asyncio.to_thread, opened.close)
    for session in (opened.local, opened.cluster):
        if session is not None:
            stack.push_async_callback(asyncio.to_thread, session.close)
    alone = opened.cluster is None and not options.upstreams and not options.discovers
    floor = (options.terms.accuracy_floor or 0.0) if alone else 0.0
    await asyncio.to_thread(plan_for_floor, floor, opened.local)
    options = replace(options, energy=opened.energy or options.energy)
    await asyncio.to_thread(opened.local.divide_threads, options.compute_workers)
    admission, memory, credentials, metrics = shared
    node = make_node(options, opened.local, opened.cluster, admission, memory, key.version, metrics)
    stack.push_async_callback(asyncio.to_thread, node.close)
    if options.learn_s:  # before upstreams are connected and notified
        await asyncio.to_thread(node.local.learn, LENGTHS, options.learn_s)
    upstreams = await connect_node(node, options, stack, credentials)
    stack.push_async_callback(cancel_and_wait, asyncio.get_running_loop().create_task(upstreams.run()))
    announced = await stack.enter_async_context(AsyncExitStack())
    if options.is_announced:
        from pliant.serve.node.node_discovery import announce  # needs zeroconf

        await announce(node, options.address or "", credentials, announced)
    return node, announced.aclose


def make_node(
    options: NodeOptions,
    served: Session[Any],
    cluster: Session[Any] | None = None,
    admission: Admission | None = None,
    memory: MemoryBudget | None = None,
    model_version: str = FIRST_VERSION,
    metrics: Metrics | None = None,
) -> ServingNode:
    """Create the node without connections: its router and local endpoints."""
    settings = options.routing or RouterSettings(
        served.max_length, degree=served.degree, power=options.energy.power, radio=options.radio
    )
    if options.prior is not None:
        served.expect(options.prior)
    return ServingNode(
        served,
        Router(options.name or _name_at(0), settings, started=time.time_ns() // 10**6),
        options.queue,
        options.limits,
        terms=options.terms,
        objective=options.objective,
        version=options.version,
        cluster=cluster,
        energy=options.energy,
        admission=admission,
        memory=memory,
        feed=AnswerFeed(keeps_texts=options.page_texts),
        model_version=model_version,
        metrics=metrics,
    )


async def connect_node(
    node: ServingNode, options: NodeOptions, stack: AsyncExitStack, credentials: Credentials | None = None
) -> Upstreams:
    """Connect the node to its upstreams on the running loop; `stack` closes the connections.

    It follows changes of `credentials`; without them, it uses those in the options.
    """
    if credentials is None:
        credentials = Credentials(AccessTokens(peers=options.peer_tokens), TokenFiles(), options.tls)
    client = await stack.enter_async_context(Client(credentials.client_tls, options.limits))
    node.dispatcher.upstreams = upstreams = Upstreams(
        node.router,
        client,
        options.upstreams,
        node.served.name,
        options.address,
        credentials.tokens.upstream_token,
        node.probe,
        node.metrics,
        options.limits,
        options.queue,
        identity=node.identity,
    )

    def changed() -> None:
        client.renew(credentials.client_tls)
        upstreams.replace_token(credentials.tokens.upstream_token)

    credentials.on_change.append(changed)
    stack.callback(credentials.on_change.remove, changed)
    if options.discovers:
        is_loopback = check_discovery(options.listen, options.peer_tokens, options.is_insecure)
        from pliant.serve.node.node_discovery import discover  # needs zeroconf

        await discover(node, options.address or "", credentials, is_loopback, stack)
    return upstreams


async def cancel_and_wait(task: asyncio.Task[None]) -> None:
    """Cancel `task` and wait for its end, since it may still use resources that are closed next."""
    task.cancel()
    await asyncio.wait({task})


def _name_at(port: int) -> str:
    host = re.sub(r"[^A-Za-z0-9.-]", "-", f"{platform.node() or 'node'}").lstrip("-.")[:48]
    return f"{host}:{port}" if port else host


async def _when_started(server: NodeServer, then: Callable[[], None]) -> None:
    while not server.started:
        await asyncio.sleep(0.01)
    then()
