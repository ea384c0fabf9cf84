"""The HTTP paths of no loaded model: the repository, the node itself, and errors for unavailable models."""

from collections.abc import Sequence
from typing import TypeVar, final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from pliant.errors import InputError, NodeError, PliantError
from pliant.route.node_identity import NODE_HEADER
from pliant.serve.access.access import AccessControl
from pliant.serve.access.guard import Guard, error_response
from pliant.serve.access.roles import routes_without_rule
from pliant.serve.http.body_reader import BodyReader
from pliant.serve.http.content_coding import CODINGS
from pliant.serve.http.http_app import UNOBSERVED
from pliant.serve.http.metrics_route import METRICS_PATH, metrics_route
from pliant.serve.http.openapi import front_document
from pliant.serve.http.responses import answer_disconnect, internal_error, json_response, method_refusal
from pliant.serve.node.peers import PEERS_PATH
from pliant.serve.page.page_routes import PAGE_PATHS
from pliant.serve.protocol.descriptions import server_metadata
from pliant.serve.protocol.inference import JSON
from pliant.serve.repository.change_requests import change_status, version_asked
from pliant.serve.repository.front_node import FrontNode
from pliant.serve.repository.model_repository import ModelRepository
from pliant.serve.telemetry.observed_app import ObservedApp
from pliant.serve.telemetry.tracing import Tracer
from pliant.serve.upstream.broadcasts import TELL_PATH
from pliant.serve.upstream.request_explanation import EXPLAIN_PATH
from pliant.serve.upstream.upstreams import CURVE_PATH

REPOSITORY_PATH = "/v2/repository"
"""Path prefix for loading and unloading models; for operators."""
_LIMIT_BYTES = 1 << 16
_MODELS = "/v2/models/"
_MODEL = f"{_MODELS}{{name}}"
_STATISTICS = "stats"
_STATISTICS_PATH = f"{_MODELS}{_STATISTICS}"
"""Statistics of all models, unless a model has this name."""
NAMED_PATHS = (EXPLAIN_PATH, CURVE_PATH, TELL_PATH, PEERS_PATH)
"""Paths of the model that the query names, or of the first one."""
_METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
T = TypeVar("T")


class IndexRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The index request; `ready` restricts the list to loaded models."""

    ready: bool = False


class ChangeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The load or unload request; `parameters` may have `version` if a model has several."""

    parameters: dict[str, str | bool | int | float] = {}


@final
class RepositoryPaths:
    """The ASGI application of these paths."""

    def __init__(
        self,
        repository: ModelRepository,
        bodies: BodyReader,
        access: AccessControl,
        name: str,
        version: str,
        page: Sequence[Route],
        tracer: Tracer,
    ) -> None:
        self._repository, self._bodies, self._page = repository, bodies, page
        self._node, self._version = FrontNode(repository, name, version), version
        routes = [
            Route(f"{REPOSITORY_PATH}/index", self._index, methods=["POST"]),
            Route(f"{REPOSITORY_PATH}/models/{{name}}/load", self._load, methods=["POST"]),
            Route(f"{REPOSITORY_PATH}/models/{{name}}/unload", self._unload, methods=["POST"]),
            Route("/v2/health/live", self._live, methods=["GET"]),
            Route("/v2/health/ready", self._ready, methods=["GET"]),
            Route("/v2", self._server, methods=["GET"]),
            Route(_STATISTICS_PATH, self._statistics, methods=["GET"]),
            Route("/openapi.json", self._openapi, methods=["GET"]),
            metrics_route(lambda: self._node.metrics_by_model),
            *page,
        ]
        missing = routes_without_rule(
            (method, route.path) for route in routes for method in route.methods or () if method != "HEAD"
        )
        assert not missing, f"{', '.join(missing)}: say in serve/access/roles.py who may call this"
        about = front_document(version, bool(access.tokens))
        self._document = json_response(about).body
        for base in (f"{_MODEL}/versions/{{version}}", _MODEL):
            routes.append(Route(f"{base}/ready", self._model_ready, methods=["GET"]))
            routes.append(Route(f"{base}{{rest:path}}", self._model, methods=_METHODS))
        routes += [Route(path, self._named, methods=["GET", "POST"]) for path in NAMED_PATHS]
        handlers = {
            PliantError: self._failed,
            HTTPException: self._unanswered,
            ClientDisconnect: answer_disconnect,
            Exception: internal_error,
        }
        app = Starlette(routes=routes, exception_handlers=handlers)
        app.router.redirect_slashes = False
        guard = Guard(app, self._node, access, frozenset(route.path for route in routes))
        self._app = ObservedApp(guard, None, tracer, name, (*UNOBSERVED, *PAGE_PATHS))

    @property
    def front(self) -> FrontNode:
        """The node that answers calls for no model."""
        return self._node

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def owns(self, scope: Scope) -> bool:
        """Whether a request is handled here and not by a model: paths of all models and of the page."""
        path = scope["path"]
        return (
            path == METRICS_PATH
            or _is_of_repository(path)
            or (path == _STATISTICS_PATH and _STATISTICS not in self._repository.names)
            or (
                not path.startswith(_MODELS)
                and any(route.matches(scope)[0] is Match.FULL for route in self._page)
            )
        )

    def failure(self, error: PliantError) -> Response:
        """The error response, with the name of this node."""
        status = change_status(error)
        headers = {NODE_HEADER: self._node.name}
        if isinstance(error, NodeError) and error.retry_after_s is not None:
            headers["retry-after"] = str(error.retry_after_s)
        if status in (408, 413):
            headers["connection"] = "close"  # the rest of the body is not read
        if status == 415:
            headers["accept-encoding"] = CODINGS
        return error_response(status, str(error), headers)

    async def _index(self, request: Request) -> Response:
        asked = await self._read(request, IndexRequest)
        await self._repository.refresh()
        return json_response(self._repository.index(asked.ready))

    async def _load(self, request: Request) -> Response:
        name, version = request.path_params["name"], await self._version_asked(request)
        await self._repository.load(name, version)
        return json_response({"name": name, "load": True})

    async def _unload(self, request: Request) -> Response:
        name, version = request.path_params["name"], await self._version_asked(request)
        await self._repository.unload(name, version)
        return json_response({"name": name, "unload": True})

    async def _live(self, request: Request) -> Response:
        return json_response({"live": True})

    async def _ready(self, request: Request) -> Response:
        is_ready = not self._node.is_draining
        return json_response({"ready": is_ready}, 200 if is_ready else 503)

    async def _server(self, request: Request) -> Response:
        return json_response(server_metadata(self._node.name, self._version))

    async def _statistics(self, request: Request) -> Response:
        """Statistics of all loaded models; ModelApps serves the metadata of a loaded model of this name."""
        if _STATISTICS in self._repository.names:
            self._repository.wanted(_STATISTICS, None)
        return json_response({"model_stats": [one.protocol_statistics() for one in self._repository.nodes]})

    async def _openapi(self, request: Request) -> Response:
        return Response(self._document, media_type=JSON)

    async def _model_ready(self, request: Request) -> Response:
        """An evicted model counts as ready: requests load it again."""
        asked = request.path_params
        is_ready = self._repository.is_served(asked["name"], asked.get("version"))
        about = {"name": asked["name"], "ready": is_ready and not self._node.is_draining}
        return json_response(about, 200 if about["ready"] else 503)

    async def _model(self, request: Request) -> Response:
        """Raise NodeError with the reason why the model is unavailable."""
        asked = request.path_params
        self._repository.wanted(asked["name"], asked.get("version"))
        raise NodeError(f"{request.url.path[:80]} was not found.", status=404)

    async def _named(self, request: Request) -> Response:
        """Raise NodeError (404) with the reason why the model of the query is unavailable."""
        asked = request.query_params
        if (name := asked.get("model")) is None:
            raise HTTPException(404)
        try:
            slot = self._repository.wanted(name, asked.get("version"))
        except NodeError as error:
            raise NodeError(str(error), status=404) from error
        raise NodeError(f"{slot.key} is not loaded ({slot.reason}).", status=404)

    async def _version_asked(self, request: Request) -> str | None:
        return version_asked((await self._read(request, ChangeRequest)).parameters)

    async def _read(self, request: Request, kind: type[T]) -> T:
        async with self._bodies.read(request, _LIMIT_BYTES) as body:
            if not body.strip():
                return kind()
            try:
                return msgspec.json.decode(body, type=kind)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise InputError(f"the request cannot be read: {error}; send {{}} or nothing.") from error

    async def _failed(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, PliantError)
        return self.failure(error)

    async def _unanswered(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        known = [(name, self._repository.is_live(name)) for name in self._repository.names]
        names = ", ".join(f"{name!r}{'' if live else ' (not loaded)'}" for name, live in known) or "none"
        models = f"model{'s' * (len(known) > 1)} {names}"
        why = {
            404: f"{request.url.path[:80]!r} was not found: this node has the {models}.",
            405: method_refusal(request, error),
        }
        headers = dict(error.headers or {})
        return error_response(error.status_code, why.get(error.status_code, error.detail), headers)


def _is_of_repository(path: str) -> bool:
    return path == REPOSITORY_PATH or path.startswith(f"{REPOSITORY_PATH}/")
