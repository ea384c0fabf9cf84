"""Several models at one address: each request is dispatched to the application of its model."""

import asyncio
from contextlib import AsyncExitStack
from typing import final
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from pliant.errors import PliantError
from pliant.route.node_identity import MODEL_HEADER
from pliant.route.node_messages import ROUTE_HEADER
from pliant.serve.access.guard import error_response
from pliant.serve.http.body_reader import ARRIVED_S, BodyReader
from pliant.serve.http.limits import Limits
from pliant.serve.http.repository_paths import RepositoryPaths
from pliant.serve.protocol.early_terms import early_terms
from pliant.serve.protocol.inference import HEADER_LENGTH
from pliant.serve.repository.live_model import LiveModel
from pliant.serve.repository.model_repository import ModelRepository

_MODELS = "/v2/models/"
_MOST_FIELDS = 16
_INFER = "/infer"
_IDENTITY = MODEL_HEADER.lower().encode()
_Name = tuple[str, str | None]


@final
class ModelApps:
    """An ASGI application of the models in `repository`, and of the paths of `front` without a model.

    The model is named by the path (with its version), by `?model=`, or by the identity header of another
    node. A request that names none goes to the first model. A request to a path of an evicted model waits
    until the model is loaded again.
    """

    def __init__(
        self, repository: ModelRepository, front: RepositoryPaths, bodies: BodyReader, limits: Limits
    ) -> None:
        self._repository, self._front = repository, front
        self._bodies, self._limits = bodies, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._front.owns(scope):
            await self._front(scope, receive, send)
            return
        asked = self._model_of(scope) or self._first()
        is_live = asked is not None and self._repository.is_live(*asked)
        if asked is None or not (is_live or self._may_load(scope, *asked)):
            await self._front(scope, receive, send)
            return
        is_asked = scope["method"] == "POST" and scope["path"].endswith(_INFER)
        try:
            if is_asked and not is_live:
                await self._infer_when_loaded(scope, receive, send, asked)
                return
            async with self._repository.lease(*asked) as live:
                await live.app(_rename_model(scope, live), receive, send)
        except PliantError as error:  # errors of the model's own paths are handled there
            await self._front.failure(error)(scope, receive, send)
        except HTTPException as error:
            refused = error_response(error.status_code, error.detail, dict(error.headers or {}))
            await refused(scope, receive, send)
        except ClientDisconnect:
            return

    async def _infer_when_loaded(self, scope: Scope, receive: Receive, send: Send, asked: _Name) -> None:
        """Count the loading time against the deadline, which is in the body."""
        request, loop = Request(scope, receive), asyncio.get_running_loop()
        async with AsyncExitStack() as held:
            async with self._bodies.read(request, self._limits.body_bytes) as content:
                headers = request.headers
                terms = early_terms(content, headers.get(HEADER_LENGTH), headers.get(ROUTE_HEADER))
                start_s = loop.time()
                live = await held.enter_async_context(self._repository.lease(*asked, terms))
            again = {ARRIVED_S: start_s, **_without_encoding(scope)}
            await live.app(_rename_model(again, live), _replay(content, receive), send)

    def _may_load(self, scope: Scope, name: str, version: str | None) -> bool:
        """Whether a request may trigger the loading of an evicted model: paths of its own, except probes.

        Health checks, which need no token, and pings of other nodes load nothing, whatever model they name.
        """
        path: str = scope["path"]
        is_of_model = path.startswith(_MODELS) and not path.endswith("/ready")
        return is_of_model and self._repository.is_served(name, version) and self._front.admits(scope)

    def _model_of(self, scope: Scope) -> _Name | None:
        """The model that a request names, if this node knows it; None for the first model."""
        path: str = scope["path"]
        if path.startswith(_MODELS):
            name, _, rest = path[len(_MODELS) :].partition("/")
            version = rest.split("/")[1] if rest.startswith("versions/") else None
            asked: list[_Name] = [(name, version)]
        else:
            asked = [(name, None) for name in _named_models(scope["query_string"])]
        known = next((one for one in asked if one[0] in self._repository.names), None)
        return known or self._find_by_identity(_identities(scope))

    def _first(self) -> _Name | None:
        """The first loaded model."""
        return next(((one.key.name, one.key.version) for one in self._repository.live), None)

    def _find_by_identity(self, told: list[bytes]) -> _Name | None:
        """The loaded model with the same content as that of another node, under any name."""
        for live in self._repository.live:
            if (live.node.identity.model or "").encode() in told:
                return live.key.name, live.key.version
        return None


def _without_encoding(scope: Scope) -> Scope:
    """The scope without the headers of body encoding and length, after the body was read."""
    gone = (b"content-encoding", b"content-length", b"transfer-encoding")
    return {**scope, "headers": [one for one in scope["headers"] if one[0] not in gone]}


def _replay(content: bytes, receive: Receive) -> Receive:
    """Replay the body, then continue with the connection's messages."""
    left: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def replaying() -> Message:
        return left.pop() if left else await receive()

    return replaying


def _named_models(query: bytes) -> list[str]:
    """The models named by a query; none if it has more fields than any route accepts."""
    try:
        return parse_qs(query.decode("latin-1"), max_num_fields=_MOST_FIELDS).get("model", [])
    except ValueError:
        return []


def _identities(scope: Scope) -> list[bytes]:
    """The model identities in another node's headers."""
    return [value for name, value in scope["headers"] if name == _IDENTITY]


def _rename_model(scope: Scope, live: LiveModel) -> Scope:
    """Rewrite the model name in the path to this node's, if another node uses a different name."""
    path: str = scope["path"]
    name, _, rest = path.removeprefix(_MODELS).partition("/")
    if not path.startswith(_MODELS) or name == live.key.name:
        return scope
    if (live.node.identity.model or "").encode() not in _identities(scope):
        return scope
    return {**scope, "path": f"{_MODELS}{live.key.name}/{rest}"}
