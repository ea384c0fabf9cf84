"""The HTTP paths of a node: routes, reading of bodies, error responses."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from pliant.errors import InputError, NodeError, PliantError
from pliant.route.choice.request_terms import Terms
from pliant.route.node_identity import (
    MODEL_HEADER,
    NODE_HEADER,
    PROTOCOL_HEADER,
    VERSION_HEADER,
    identity_of,
    mismatch,
)
from pliant.route.node_messages import (
    CURVE_HEADER,
    LIMIT_BYTES,
    ROUTE_HEADER,
    NodeTime,
    RouteMessage,
    decode_route,
    encode_advert,
)
from pliant.route.predecessors import Listener
from pliant.serve.access.access import AccessControl
from pliant.serve.access.guard import Guard, certificate_names, error_response, may_call
from pliant.serve.access.roles import routes_without_rule
from pliant.serve.http.body_reader import ARRIVED_S, BodyReader
from pliant.serve.http.content_coding import CODINGS
from pliant.serve.http.direct_paths import DirectPaths, Handler
from pliant.serve.http.limits import Limits
from pliant.serve.http.metrics_route import METRICS_PATH, metrics_route
from pliant.serve.http.openapi import document
from pliant.serve.http.raw_headers import header_of
from pliant.serve.http.responses import answer_disconnect as _gone
from pliant.serve.http.responses import internal_error as _broken
from pliant.serve.http.responses import json_response as _json
from pliant.serve.http.responses import method_refusal
from pliant.serve.node.infer_call import InferCall
from pliant.serve.node.peers import PEERS_PATH, change_peers, list_peers, read_changes
from pliant.serve.node.serving_node import ServingNode
from pliant.serve.page.event_stream import PageProcess
from pliant.serve.page.page_routes import page_routes
from pliant.serve.protocol.descriptions import model_config, model_metadata, server_metadata
from pliant.serve.protocol.inference import BINARY, HEADER_LENGTH, JSON, InferBody, header_bytes
from pliant.serve.protocol.statuses import http_status
from pliant.serve.repository.model_entry import version_age
from pliant.serve.telemetry.observed_app import ObservedApp
from pliant.serve.telemetry.tracing import Tracer, make_tracer
from pliant.serve.upstream.broadcasts import TELL_PATH
from pliant.serve.upstream.callback import Callbacks
from pliant.serve.upstream.request_explanation import EXPLAIN_PATH, EXPLAINED
from pliant.serve.upstream.upstreams import CURVE_PATH, MISMATCH, REQUEST_HEADER

UNOBSERVED = ("/v2/health/", METRICS_PATH, CURVE_PATH, TELL_PATH)
"""Paths requested every few seconds have no span and no log line."""
_ROUTE, _CURVE, _REQUEST = (name.lower().encode() for name in (ROUTE_HEADER, CURVE_HEADER, REQUEST_HEADER))
_HEADER_LENGTH = HEADER_LENGTH.encode()
_IDENTITY = [name.lower().encode() for name in (MODEL_HEADER, VERSION_HEADER, PROTOCOL_HEADER)]


def make_app(
    node: ServingNode,
    access: AccessControl,
    version: str,
    callbacks: Callbacks = Callbacks(),  # noqa: B008 - frozen
) -> ASGIApp:
    """The ASGI application of a single node; see `model_app`."""
    shown = PageProcess(node.name, version, lambda: (node,), lambda: node.is_draining)
    page = [*page_routes(shown), metrics_route(lambda: {(node.model.name, node.model.version): node.metrics})]
    tracer = make_tracer()
    return model_app(node, (node,), BodyReader(node.limits), access, version, callbacks, page, tracer)


def model_app(
    node: ServingNode,
    nodes: Sequence[ServingNode],
    bodies: BodyReader,
    access: AccessControl,
    version: str,
    callbacks: Callbacks,
    page: Sequence[Route],
    tracer: Tracer,
) -> ASGIApp:
    """The ASGI application of `node`, with access control by `access`.

    `nodes` are the nodes of all models at this address, including this one; the routes of `page`, with that
    of the metrics, cover all of them. `callbacks` are the addresses at which other nodes can be notified of
    changes. `tracer` creates the spans.
    """
    paths = _Paths(node, nodes, bodies, version, access, callbacks)
    name = node.served.name
    bases = (f"/v2/models/{name}", f"/v2/models/{name}/versions/{node.model.version}")
    routes = [
        *(Route(f"{base}/infer", paths.infer, methods=["POST"]) for base in bases),
        Route("/v2/health/live", paths.live, methods=["GET"]),
        Route("/v2/health/ready", paths.ready, methods=["GET"]),
        Route("/v2", paths.server, methods=["GET"]),
        Route("/openapi.json", paths.openapi, methods=["GET"]),
        Route(CURVE_PATH, paths.curve, methods=["GET"]),
        Route(TELL_PATH, paths.tell, methods=["POST"]),
        Route(EXPLAIN_PATH, paths.explain, methods=["GET"]),
        Route(PEERS_PATH, paths.peers, methods=["GET", "POST"]),
        *page,
    ]
    for base in bases:
        routes += [
            Route(base, paths.model, methods=["GET"]),
            Route(f"{base}/ready", paths.model_ready, methods=["GET"]),
            Route(f"{base}/config", paths.config, methods=["GET"]),
            Route(f"{base}/stats", paths.statistics, methods=["GET"]),
        ]
    handlers: dict[Any, Handler] = {
        PliantError: paths.failed,
        HTTPException: paths.unanswered,
        ClientDisconnect: _gone,
    }
    app = Starlette(routes=routes, exception_handlers={**handlers, Exception: _broken})
    app.router.redirect_slashes = False
    missing = routes_without_rule(
        (method, route.path) for route in routes for method in route.methods or () if method != "HEAD"
    )
    assert not missing, f"{', '.join(missing)}: say in serve/access/roles.py who may call this"
    infers = frozenset(f"{base}/infer" for base in bases)
    direct = DirectPaths(app, infers, paths.infer, handlers, _broken)
    guarded = Guard(direct, node, access, frozenset(route.path for route in routes))
    return ObservedApp(guarded, node.model, tracer, node.name, UNOBSERVED)


class _Paths:
    """One method for each path."""

    def __init__(
        self,
        node: ServingNode,
        nodes: Sequence[ServingNode],
        bodies: BodyReader,
        version: str,
        access: AccessControl,
        callbacks: Callbacks,
    ) -> None:
        self._node, self._version, self._access, self._callbacks = node, version, access, callbacks
        self._nodes, self._bodies = nodes, bodies
        node.metrics.body_bytes.set_function(lambda: bodies.n_bytes)
        served = node.served
        about = document(
            node.signature,
            node.model.version,
            served.max_length,
            served.best,
            node.counts_joules,
            version,
            bool(access.tokens),
        )
        self._openapi = _json(about).body

    async def live(self, request: Request) -> Response:
        return _json({"live": True})

    async def unanswered(self, request: Request, error: Exception) -> Response:
        """The error response for an unknown path or method."""
        assert isinstance(error, HTTPException)
        names = list(dict.fromkeys(repr(one.served.name) for one in self._nodes))
        models = f"model{'s' * (len(names) > 1)} {', '.join(names)}"
        served = f"this node serves the {models}, and /openapi.json lists its paths."
        why = {404: f"{request.url.path[:80]!r} was not found: {served}", 405: method_refusal(request, error)}
        return error_response(
            error.status_code, why.get(error.status_code, error.detail), dict(error.headers or {})
        )

    async def ready(self, request: Request) -> Response:
        is_ready = not self._node.is_draining
        return _json({"ready": is_ready}, 200 if is_ready else 503)

    async def model_ready(self, request: Request) -> Response:
        is_ready = not self._node.is_draining
        about = {"name": self._node.served.name, "ready": is_ready}
        return _json(about, 200 if is_ready else 503)

    async def server(self, request: Request) -> Response:
        return _json(server_metadata(self._node.name, self._version))

    async def model(self, request: Request) -> Response:
        versions = [one.model.version for one in self._versions()]
        return _json(model_metadata(self._node.signature, versions))

    async def config(self, request: Request) -> Response:
        served = self._node.served
        return _json(model_config(self._node.signature, served.max_length, served.identity))

    async def statistics(self, request: Request) -> Response:
        """Statistics of the version in the path, or else of all loaded versions."""
        path = f"/v2/models/{self._node.model.name}/stats"
        nodes = self._versions() if request.url.path == path else [self._node]
        return _json({"model_stats": [one.protocol_statistics() for one in nodes]})

    async def openapi(self, request: Request) -> Response:
        return Response(self._openapi, media_type=JSON)

    async def infer(self, request: Request) -> Response:
        node, start_s = self._node, self._node.clock()
        route = self._route(request)
        spent: NodeTime | None = None
        async with self._bodies.read(request, node.limits.body_bytes) as content:
            explains = partial(may_call, self._access, request.scope, "GET", EXPLAIN_PATH)
            call = _read_call(request, content, route, explains)
            try:
                answer = await node.infer(call)
                _check_size(answer.body, node.limits)
            except PliantError as error:
                response = await self.failed(request, error)
            else:
                response = _infer_response(answer.body, answer.node)
                here_s = node.clock() - start_s  # a cached response was computed earlier
                spent = NodeTime(min(answer.spent.seconds, here_s), min(answer.spent.waited_s, here_s))
        if route is not None:
            told = encode_advert(node.dispatcher.make_advert(route.sender), spent)
            response.raw_headers.append((_CURVE, told.encode()))
        return response

    async def curve(self, request: Request) -> Response:
        """Answer a ping: a small, immediate response."""
        start_s = self._node.clock()
        self._check_model(request)
        route = self._route(request)
        told = self._node.dispatcher.make_advert(None if route is None else route.sender)
        return Response(encode_advert(told, NodeTime(self._node.clock() - start_s)), media_type=JSON)

    async def tell(self, request: Request) -> Response:
        if self._node.upstreams is None:
            raise NodeError("this node has no upstreams.", status=404)
        if PROTOCOL_HEADER in request.headers:  # broadcasts of version 2 lack it
            self._check_identity(request, "a broadcast")
        async with self._bodies.read(request, LIMIT_BYTES) as body:
            self._node.upstreams.receive_broadcast(body)
        return _json({})

    async def peers(self, request: Request) -> Response:
        self._check_model(request)
        if request.method != "POST":
            return _json(list_peers(self._node))
        async with self._bodies.read(request, LIMIT_BYTES) as body:
            return _json(change_peers(self._node, read_changes(body)))

    async def explain(self, request: Request) -> Response:
        self._check_model(request)
        asked, most = request.query_params, self._node.served.max_length
        text = asked.get("length", "")
        is_number = text.isascii() and text.isdigit() and len(text) < 12
        if not is_number or int(text) > most:
            raise InputError(f"length is {text[:40]!r}; give 0 to {most}, as in {EXPLAIN_PATH}?length=40.")
        names = [name for name, _ in asked.multi_items()]
        if len(set(names)) < len(names) or not set(names) <= set(EXPLAINED):
            raise InputError(f"{EXPLAIN_PATH} takes each of {', '.join(EXPLAINED)} once.")
        terms = Terms(_number(asked, "deadline_s"), _number(asked, "accuracy_floor"))
        await self._node.dispatcher.look()
        return _json(self._node.explain(int(text), terms, asked.get("objective")))

    async def failed(self, request: Request, error: Exception) -> Response:
        """The error response of a PliantError, with the name of this node."""
        assert isinstance(error, PliantError)
        status, headers = http_status(error), {NODE_HEADER: self._node.name}
        if isinstance(error, NodeError):
            if error.retry_after_s is not None:
                headers["retry-after"] = str(error.retry_after_s)
            if status in (408, 413):
                headers["connection"] = "close"  # the rest of the body is not read
            if status == 415:
                headers["accept-encoding"] = CODINGS
        return error_response(status, str(error), headers)

    def _versions(self) -> list[ServingNode]:
        """The nodes of the model's loaded versions, oldest first."""
        found = [one for one in self._nodes if one.model.name == self._node.model.name]
        return sorted(found, key=lambda one: version_age(one.model.version))

    def _route(self, request: Request) -> RouteMessage | None:
        """Read the route header of another node, and register that node for change notifications."""
        text = header_of(request.scope, _ROUTE)
        if text is None:
            return None
        route = decode_route(text)
        self._access.check_sender(route.sender, certificate_names(request.scope))
        self._check_identity(request, route.sender or "the sender")
        address, listener = None, None
        if route.address is not None and request.client is not None:
            address = self._callbacks.url(route.address, request.client.host)
        if address is not None:
            shown = header_of(request.scope, b"authorization")
            listener = Listener(address, self._access.peer_token(shown))
        self._node.heard_of(route, listener)
        return route

    def _check_model(self, request: Request) -> None:
        """Raise NodeError if the request is for another model."""
        asked, names = request.query_params.get("model"), [one.served.name for one in self._nodes]
        if asked is not None and asked not in names:
            raise NodeError(f"this node serves {', '.join(names)}, not {asked[:80]}.", status=404)
        version = request.query_params.get("version")
        if version is not None and version != self._node.model.version:
            here = f"{self._node.model.name} version {self._node.model.version}"
            raise NodeError(f"this node serves {here}, not version {version[:80]}.", status=404)

    def _check_identity(self, request: Request, sender: str) -> None:
        said = (header_of(request.scope, name) for name in _IDENTITY)
        reason = mismatch(self._node.identity, identity_of(*said))
        if reason is not None:
            raise NodeError(f"{sender} does not fit {self._node.name}: {reason}.", status=MISMATCH)


def _number(asked: QueryParams, name: str) -> float | None:
    text = asked.get(name)
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{name} is {text[:40]!r}; give a number.") from None


def _read_call(
    request: Request, content: bytes, route: RouteMessage | None, may_explain: Callable[[], bool]
) -> InferCall:
    """Build the call. Raises InputError for invalid headers."""
    client = request.client.host if request.client else ""
    scope = request.scope
    n_json, id = header_bytes(header_of(scope, _HEADER_LENGTH)), header_of(scope, _REQUEST)
    now_s = asyncio.get_running_loop().time()
    waited_s = max(now_s - scope.get(ARRIVED_S, now_s), 0.0)
    return InferCall(content, n_json, route, id, client, waited_s, may_explain)


def _check_size(answer: InferBody, limits: Limits) -> None:
    """Raise NodeError (422) if a response exceeds the buffer limit of one client."""
    if len(answer.content) > limits.client_buffer_bytes:
        raise NodeError(
            f"the answer has {len(answer.content)} bytes; at most {limits.client_buffer_bytes} are kept for "
            "one client. Ask for fewer outputs, or for a smaller batch.",
            status=422,
        )


def _infer_response(answer: InferBody, node: str) -> Response:
    headers = {NODE_HEADER: node}
    if answer.header_bytes is None:
        return Response(answer.content, media_type=JSON, headers=headers)
    headers[HEADER_LENGTH] = str(answer.header_bytes)
    return Response(answer.content, media_type=BINARY, headers=headers)
