"""Several models at one address: each request goes to the application of the model that it names."""

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
from pliant.serve.http.bodies import Bodies
from pliant.serve.http.http_app import WAITED
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
    """An ASGI application of the models of `repository`, and of the paths of `front` without a model.

    A path names the model and its version, or `?model=`, or what another node says with a message to this
    one. A request that names none of them is the first one's. One for a model that was evicted waits until it
    is loaded again.
    """

    def __init__(
        self, repository: ModelRepository, front: RepositoryPaths, bodies: Bodies, limits: Limits
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
                await live.app(_renamed(scope, live), receive, send)
        except PliantError as error:  # the model's own paths answer with theirs
            await self._front.failure(error)(scope, receive, send)
        except HTTPException as error:
            refused = error_response(error.status_code, error.detail, dict(error.headers or {}))
            await refused(scope, receive, send)
        except ClientDisconnect:
            return

    async def _infer_when_loaded(self, scope: Scope, receive: Receive, send: Send, asked: _Name) -> None:
        """The wait for a model that was evicted counts against the deadline, which stands in the body."""
        request, loop = Request(scope, receive), asyncio.get_running_loop()
        async with AsyncExitStack() as held:
            async with self._bodies.read(request, self._limits.body_bytes) as content:
                headers = request.headers
                terms = early_terms(content, headers.get(HEADER_LENGTH), headers.get(ROUTE_HEADER))
                start_s = loop.time()
                live = await held.enter_async_context(self._repository.lease(*asked, terms))
            again = {**_decoded(scope), WAITED: loop.time() - start_s}
            await live.app(_renamed(again, live), _replayed(content, receive), send)

    def _may_load(self, scope: Scope, name: str, version: str | None) -> bool:
        """Whether a request is for the own paths of a model that was evicted, and has it loaded again."""
        is_probe = scope["path"].endswith("/ready")
        is_served = not is_probe and self._repository.is_served(name, version)
        return is_served and self._front.admits(scope)

    def _model_of(self, scope: Scope) -> _Name | None:
        """The model that a request names, where this node knows it; None for the first one."""
        path: str = scope["path"]
        if path.startswith(_MODELS):
            name, _, rest = path[len(_MODELS) :].partition("/")
            version = rest.split("/")[1] if rest.startswith("versions/") else None
            asked: list[_Name] = [(name, version)]
        else:
            asked = [(name, None) for name in _named(scope["query_string"])]
        known = next((one for one in asked if one[0] in self._repository.names), None)
        return known or self._of_identity(_identities(scope))

    def _first(self) -> _Name | None:
        """The first model that is loaded."""
        return next(((one.key.name, one.key.version) for one in self._repository.live), None)

    def _of_identity(self, told: list[bytes]) -> _Name | None:
        """The model that another node has by its content, whatever it is called there."""
        for live in self._repository.live:
            if (live.node.identity.model or "").encode() in told:
                return live.key.name, live.key.version
        return None


def _decoded(scope: Scope) -> Scope:
    """Of a request whose body was read, and is no longer compressed or in pieces."""
    gone = (b"content-encoding", b"content-length", b"transfer-encoding")
    return {**scope, "headers": [one for one in scope["headers"] if one[0] not in gone]}


def _replayed(content: bytes, receive: Receive) -> Receive:
    """The body once more, and then what comes of the connection."""
    left: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def replaying() -> Message:
        return left.pop() if left else await receive()

    return replaying


def _named(query: bytes) -> list[str]:
    """The models that a query names: none where it has more fields than any route takes."""
    try:
        return parse_qs(query.decode("latin-1"), max_num_fields=_MOST_FIELDS).get("model", [])
    except ValueError:
        return []


def _identities(scope: Scope) -> list[bytes]:
    """What another node says that its model is."""
    return [value for name, value in scope["headers"] if name == _IDENTITY]


def _renamed(scope: Scope, live: LiveModel) -> Scope:
    """With this node's name of the model in its path, where another node has another name for it."""
    path: str = scope["path"]
    name, _, rest = path.removeprefix(_MODELS).partition("/")
    if not path.startswith(_MODELS) or name == live.key.name:
        return scope
    if (live.node.identity.model or "").encode() not in _identities(scope):
        return scope
    return {**scope, "path": f"{_MODELS}{live.key.name}/{rest}"}
