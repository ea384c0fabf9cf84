"""Several models at one address: each request is dispatched to the application of its model."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import final
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from pliant.errors import PliantError
from pliant.route.node_identity import MODEL_HEADER, Identity
from pliant.route.node_messages import ROUTE_HEADER
from pliant.serve.access.access import AccessControl
from pliant.serve.access.guard import Guard, admit, error_response
from pliant.serve.access.roles import rule_for
from pliant.serve.answers.metrics import Metrics
from pliant.serve.http.body_reader import ARRIVED_S, IS_WHOLE, BodyReader
from pliant.serve.http.limits import Limits
from pliant.serve.http.repository_paths import NAMED_PATHS, RepositoryPaths
from pliant.serve.protocol.early_terms import early_terms
from pliant.serve.protocol.inference import HEADER_LENGTH
from pliant.serve.repository.live_model import LiveModel
from pliant.serve.repository.model_repository import ModelRepository
from pliant.serve.repository.model_slot import ModelSlot
from pliant.serve.telemetry.observed_app import OBSERVED, ObservedApp
from pliant.serve.telemetry.request_context import ANSWERING, ServedModel, set_model
from pliant.serve.telemetry.tracing import Tracer

_MODELS = "/v2/models/"
_MOST_FIELDS = 16
_INFER = "/infer"
_DOCUMENT = "/openapi.json"
_IDENTITY = MODEL_HEADER.lower().encode()
_Name = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class _KnownModel:
    """Stands in for the node of a model that is not loaded, whose metrics continue."""

    model: ServedModel
    identity: Identity
    metrics: Metrics
    is_draining: bool


@final
class ModelApps:
    """An ASGI application of the models in `repository`, and of the paths of `front` without a model.

    The model is named by the path (with its version), by `?model=` and `version=`, or by the identity header
    of another node. A request to a path of an evicted model waits until the model is loaded again. Requests
    for a model that is not known, or at a path without one, are not counted for a model, but those of
    `NAMED_PATHS` that name none go to the first model.
    """

    def __init__(
        self,
        repository: ModelRepository,
        front: RepositoryPaths,
        bodies: BodyReader,
        access: AccessControl,
        limits: Limits,
        tracer: Tracer,
    ) -> None:
        self._repository, self._front = repository, front
        self._bodies, self._access, self._limits, self._tracer = bodies, access, limits, tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._front.owns(scope):
            await self._front(scope, receive, send)
            return
        path, asked = scope["path"], self._model_of(scope)
        if asked is None and path in (*NAMED_PATHS, _DOCUMENT) and not _named_models(scope["query_string"]):
            asked = self._first()
            if path == _DOCUMENT:
                scope = {**scope, ANSWERING: self._front.front}
        if asked is not None and self._repository.is_live(*asked) and not _is_uploading(scope):
            async with self._repository.lease(*asked) as live:
                await live.app(_rename_model(scope, live), receive, send)
        elif asked is not None and self._may_load(scope, *asked):
            await self._answer_when_loaded(scope, receive, send, asked)
        else:
            known = None if asked is None else self._repository.newest(*asked)
            if known is not None:
                scope = {**scope, ANSWERING: self._stand_in(known)}
            await self._front(scope, receive, send)

    async def _answer_when_loaded(self, scope: Scope, receive: Receive, send: Send, asked: _Name) -> None:
        """Load an evicted model and pass the request to it, in one span."""
        slot = self._repository.wanted(*asked)
        app = partial(self._load_and_answer, slot, asked)
        model = ServedModel(slot.key.name, slot.key.version)
        await ObservedApp(app, model, self._tracer, self._front.front.name)(scope, receive, send)

    async def _load_and_answer(
        self, slot: ModelSlot, asked: _Name, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Load the model for a caller whom the guard admits.

        A body that is still being uploaded is read first: an unload or eviction does not wait for it.
        """
        refusal, receive, send = admit(self._access, scope, receive, send)
        if refusal is None:
            try:
                async with AsyncExitStack() as held:
                    read, receive, live = await self._load(scope, receive, asked, held)
                    scope[ANSWERING] = live.node
                    with set_model(live.node.model):
                        await live.app({**_rename_model(read, live), OBSERVED: True}, receive, send)
                return
            except PliantError as error:  # errors of the model's own paths are handled there
                refusal = self._front.failure(error)
            except HTTPException as error:
                refusal = error_response(error.status_code, error.detail, dict(error.headers or {}))
            except ClientDisconnect:
                refusal = Response(status_code=499)
        method, path, node = scope["method"], scope["path"], self._stand_in(slot)
        guard = Guard(refusal, node, self._access, frozenset({path} if rule_for(method, path).path else ()))
        await guard(scope, receive, send)

    def _stand_in(self, slot: ModelSlot) -> _KnownModel:
        identity = Identity() if slot.live is None else slot.live.node.identity
        return _KnownModel(slot.model, identity, slot.count(), self._front.front.is_draining)

    async def _load(
        self, scope: Scope, receive: Receive, asked: _Name, held: AsyncExitStack
    ) -> tuple[Scope, Receive, LiveModel]:
        """The model, held until `held` ends, and the request for it.

        Inference counts the loading time against its deadline, which is in the body.
        """
        if not _is_inference(scope):
            return scope, receive, await held.enter_async_context(self._repository.lease(*asked))
        request, loop = Request(scope, receive), asyncio.get_running_loop()
        async with self._bodies.read(request, self._limits.body_bytes) as content:
            n_json, route = request.headers.get(HEADER_LENGTH), request.headers.get(ROUTE_HEADER)
            is_live = self._repository.is_live(*asked)
            terms = None if is_live else early_terms(content, n_json, route, self._limits)
            start_s = loop.time()
            live = await held.enter_async_context(self._repository.lease(*asked, terms))
        read = {ARRIVED_S: start_s, **_without_encoding(scope), IS_WHOLE: True}
        return read, _replay(content, receive), live

    def _may_load(self, scope: Scope, name: str, version: str | None) -> bool:
        """Whether a request may trigger the loading of an evicted model: paths of its own, except probes.

        Health checks, which need no token, and pings of other nodes load nothing, whatever model they name.
        """
        path: str = scope["path"]
        is_of_model = path.startswith(_MODELS) and not path.endswith("/ready")
        return is_of_model and self._repository.is_served(name, version)

    def _model_of(self, scope: Scope) -> _Name | None:
        """The model that a request names, if this node knows it."""
        path: str = scope["path"]
        if path.startswith(_MODELS):
            name, _, rest = path[len(_MODELS) :].partition("/")
            version = rest.split("/")[1] if rest.startswith("versions/") else None
            asked: list[_Name] = [(name, version)]
        else:
            asked = _named_models(scope["query_string"])
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


def _is_inference(scope: Scope) -> bool:
    path: str = scope["path"]
    return scope["method"] == "POST" and path.startswith(_MODELS) and path.endswith(_INFER)


def _is_uploading(scope: Scope) -> bool:
    """Whether an inference's body had not arrived with its head."""
    return IS_WHOLE not in scope and _is_inference(scope)


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


def _named_models(query: bytes) -> list[_Name]:
    """The models named by a query, in its version; none if it has more fields than any route accepts."""
    try:
        fields = parse_qs(query.decode("latin-1"), max_num_fields=_MOST_FIELDS)
    except ValueError:
        return []
    version = next(iter(fields.get("version", ())), None)
    return [(name, version) for name in fields.get("model", [])]


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
