"""A node's paths over HTTP: who may ask, how a body is read, what an error looks like. Knows no route."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pliant.errors import InputError, NodeError, PliantError
from pliant.serve.inference import BINARY, HEADER_LENGTH, JSON, shown_shape
from pliant.serve.metrics import TEXT
from pliant.serve.node import Call, Node
from pliant.serve.openapi import document
from pliant.serve.security import Tokens
from pliant.serve.tensors import DATATYPES

EXTENSIONS = ("binary_tensor_data", "pliant_route")
_HEALTH = "/v2/health/"
_Answer = Callable[[Request], Awaitable[Response]]


def make_app(node: Node, tokens: Tokens, version: str) -> ASGIApp:
    """The ASGI application of `node`; everything but its health asks for a token, where there are any."""
    paths = _Paths(node, version, bool(tokens))
    name = node.served.signature.name
    routes = [
        Route("/v2/health/live", paths.live, methods=["GET"]),
        Route("/v2/health/ready", paths.ready, methods=["GET"]),
        Route("/v2", paths.server, methods=["GET"]),
        Route("/metrics", paths.metrics, methods=["GET"]),
        Route("/openapi.json", paths.openapi, methods=["GET"]),
    ]
    for base in (f"/v2/models/{name}", f"/v2/models/{name}/versions/1"):
        routes += [
            Route(base, paths.model, methods=["GET"]),
            Route(f"{base}/ready", paths.ready, methods=["GET"]),
            Route(f"{base}/infer", paths.infer, methods=["POST"]),
        ]
    handlers: Any = {PliantError: _failed, HTTPException: _http, Exception: _broken}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return _Guard(app, node, tokens)


class _Guard:
    """Before everything else: a token, and a `Connection: close` from a node that is about to leave."""

    def __init__(self, app: ASGIApp, node: Node, tokens: Tokens) -> None:
        self._app, self._node, self._tokens = app, node, tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = self._leaving(send) if self._node.is_draining else send
        if self._tokens and not scope["path"].startswith(_HEALTH):
            given = [value for name, value in scope["headers"] if name == b"authorization"]
            if len(given) != 1 or not self._tokens.admit(given[0].decode("latin-1")):
                why = "a bearer token is asked for: `Authorization: Bearer TOKEN`."
                no = _error(401, why, {"www-authenticate": "Bearer", "connection": "close"})
                await no(scope, receive, sent)
                return
        await self._app(scope, receive, sent)

    def _leaving(self, send: Send) -> Send:
        async def closing(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        return closing


class _Paths:
    """One method a path."""

    def __init__(self, node: Node, version: str, has_tokens: bool) -> None:
        self._node, self._version = node, version
        self._openapi = _json(document(node.served.signature, version, has_tokens)).body

    async def live(self, request: Request) -> Response:
        return Response()

    async def ready(self, request: Request) -> Response:
        return Response(status_code=503 if self._node.is_draining else 200)

    async def server(self, request: Request) -> Response:
        return _json({"name": self._node.name, "version": self._version, "extensions": EXTENSIONS})

    async def model(self, request: Request) -> Response:
        model = self._node.served.signature
        sides = [
            [{"name": p.name, "datatype": DATATYPES[p.dtype], "shape": shown_shape(p)} for p in side]
            for side in (model.inputs, model.outputs)
        ]
        about = {"name": model.name, "versions": ["1"], "platform": model.platform}
        return _json({**about, "inputs": sides[0], "outputs": sides[1]})

    async def metrics(self, request: Request) -> Response:
        return Response(self._node.metrics.text(), headers={"content-type": TEXT})

    async def openapi(self, request: Request) -> Response:
        return Response(self._openapi, media_type=JSON)

    async def infer(self, request: Request) -> Response:
        call = Call(await _body(request, self._node), _header_bytes(request))
        answer = await self._node.infer(call)
        if answer.header_bytes is None:
            return Response(answer.content, media_type=JSON)
        headers = {HEADER_LENGTH: str(answer.header_bytes)}
        return Response(answer.content, media_type=BINARY, headers=headers)


def _header_bytes(request: Request) -> int | None:
    text = request.headers.get(HEADER_LENGTH)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise InputError(f"{HEADER_LENGTH} is {text[:40]!r}; give the number of bytes of the JSON part.")
    return int(text)


async def _body(request: Request, node: Node) -> bytes:
    """The whole body. Raises NodeError for one that is too long, too slow, or coded."""
    limits = node.limits
    coding = request.headers.get("content-encoding", "identity")
    if coding != "identity":
        raise NodeError(f"a body coded as {coding[:40]!r} is not read; send it plain.", status=415)
    said = request.headers.get("content-length", "0")
    too_long = NodeError(f"the body is longer than {limits.body_bytes} bytes.", status=413)
    if not said.isdigit() or int(said) > limits.body_bytes:
        raise too_long
    parts, n_bytes = [], 0
    try:
        async with asyncio.timeout(limits.body_s):
            async for part in request.stream():
                parts.append(part)
                n_bytes += len(part)
                if n_bytes > limits.body_bytes:
                    raise too_long
    except TimeoutError:
        raise NodeError(f"the body took longer than {limits.body_s:g} s.", status=408) from None
    return b"".join(parts)


async def _failed(request: Request, error: Exception) -> Response:
    status, headers = 500, {}
    if isinstance(error, InputError):
        status = 400
    if isinstance(error, NodeError):
        status = error.status
        if error.retry_after_s is not None:
            headers["retry-after"] = str(error.retry_after_s)
        if status in (408, 413):
            headers["connection"] = "close"  # the rest of the body is not waited for
    return _error(status, str(error), headers)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    why = {404: "there is nothing here.", 405: f"{request.method} is not answered here."}
    return _error(error.status_code, why.get(error.status_code, error.detail), dict(error.headers or {}))


async def _broken(request: Request, error: Exception) -> Response:
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)
    return _error(500, "the node failed; its log says how.", {})


def _error(status: int, why: str, headers: dict[str, str]) -> Response:
    return Response(msgspec.json.encode({"error": why}), status, headers, JSON)


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type=JSON)
