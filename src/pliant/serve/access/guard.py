"""HTTP middleware that checks access and counts responses."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol, final

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pliant.route.node_identity import Identity
from pliant.route.node_messages import ROUTE_HEADER
from pliant.serve.access.access import AccessControl, AccessGrant, AccessRequest
from pliant.serve.access.roles import PEERS, rule_for
from pliant.serve.answers.metrics import Metrics
from pliant.serve.openai.openai_errors import OPENAI_PATHS, openai_error
from pliant.serve.protocol.inference import JSON
from pliant.serve.telemetry.request_context import ANSWERING

_ROUTE = ROUTE_HEADER.lower().encode()
_FIRST = (b"host", b"origin")
"""Headers of which only the first value is used."""
_ADMITTED = "pliant.admitted"
"""Key in the scope of a call whose access was checked; it is neither checked nor counted again."""


class GuardedNode(Protocol):
    """The interface of a node that the guard uses."""

    @property
    def identity(self) -> Identity: ...

    @property
    def metrics(self) -> Metrics: ...

    @property
    def is_draining(self) -> bool: ...


@final
class Guard:
    """Refuses calls that `access` does not allow, and adds `Connection: close` while the node drains.

    Every response is counted by its status, in the metrics of the model that answered. Responses to other
    nodes, including errors, carry this node's identity. `paths` are the path labels of the metrics.
    """

    def __init__(self, app: ASGIApp, node: GuardedNode, access: AccessControl, paths: frozenset[str]) -> None:
        self._app, self._node, self._access, self._paths = app, node, access, paths
        self._identity = [(n.lower().encode(), v.encode()) for n, v in node.identity.headers().items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = None
        if _ADMITTED not in scope:
            refusal, receive, send = admit(self._access, scope, receive, send)
        request: AccessRequest = scope[_ADMITTED]
        if refusal is not None:
            await refusal(scope, receive, self._add_headers(scope, request.path, send, ()))
            return
        identity = self._identity if request.of_node else ()
        try:
            await self._app(scope, receive, self._add_headers(scope, request.path, send, identity))
        except asyncio.CancelledError:  # the client disconnected
            self._count(scope, self._label(scope, request.path), 499)
            raise

    def _add_headers(
        self, scope: Scope, path: str, send: Send, identity: Sequence[tuple[bytes, bytes]]
    ) -> Send:
        """Wrap `send` to add the headers of every response and count its status."""
        label = self._label(scope, path)

        def sending(message: Any) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                self._count(scope, label, message["status"])
                close = [(b"connection", b"close")] if self._node.is_draining else []
                message = {**message, "headers": [*message["headers"], *identity, *close]}
            return send(message)

        return sending

    def _count(self, scope: Scope, label: str, status: int) -> None:
        metrics: Metrics = scope.get(ANSWERING, self._node).metrics
        metrics.child(metrics.responses, label, status).inc()

    def _label(self, scope: Scope, path: str) -> str:
        """The path, if it is known or one of a known model; others would add labels without bound."""
        is_of_model = ANSWERING in scope and bool(rule_for(scope["method"], path).path)
        return path if path in self._paths or is_of_model else "other"


def admit(
    access: AccessControl, scope: Scope, receive: Receive, send: Send
) -> tuple[Response | None, Receive, Send]:
    """Check and count a call, which its guard then does not: the refusal, and channels that count bytes."""
    request = scope[_ADMITTED] = _access_request(scope)
    if not request.path.isprintable():  # route patterns also match a path that ends with a line break
        return error_response(404, "there is no such path.", {"connection": "close"}), receive, send
    found = access.admit(request)
    if not isinstance(found, AccessGrant):
        form = openai_error if request.path.startswith(OPENAI_PATHS) else error_response
        return form(found.status, found.why, found.headers), receive, send
    if found.client is None or not access.counts_bytes:
        return None, receive, send
    return None, _count_received(access, receive, found), _count_sent(access, send, found)


def may_call(access: AccessControl, scope: Scope, method: str, path: str) -> bool:
    """Whether the caller of an admitted call may also call `method` of `path`."""
    return access.allows(scope[_ADMITTED], method, path)


def _count_received(access: AccessControl, receive: Receive, admitted: AccessGrant) -> Receive:
    """Wrap `receive` to count the received bytes."""

    async def receiving() -> Any:
        message = await receive()
        access.spend(admitted, len(message.get("body", b"")))
        return message

    return receiving


def _count_sent(access: AccessControl, send: Send, admitted: AccessGrant) -> Send:
    """Wrap `send` to count the sent bytes."""

    def counting(message: Any) -> Awaitable[None]:
        access.spend(admitted, len(message.get("body", b"")))
        return send(message)

    return counting


def error_response(status: int, why: str, headers: Mapping[str, str]) -> Response:
    """An error response: JSON with the reason."""
    return Response(msgspec.json.encode({"error": why}), status, dict(headers), JSON)


def _access_request(scope: Scope) -> AccessRequest:
    path, method = scope["path"], scope["method"]
    of_node = rule_for(method, path).roles == PEERS
    authorizations: list[str] = []
    first: dict[bytes, str] = {}
    for name, value in scope["headers"]:
        if name == b"authorization":
            authorizations.append(value.decode("latin-1"))
        elif name == _ROUTE:
            of_node = True
        elif name in _FIRST:
            first.setdefault(name, value.decode("latin-1"))
    address = scope["client"][0] if scope.get("client") else ""
    host, origin = first.get(b"host", ""), first.get(b"origin")
    names = certificate_names(scope)
    return AccessRequest(method, path, authorizations, of_node, names, address, host, origin)


def certificate_names(scope: Scope) -> tuple[str, ...]:
    """The names in the client certificate; empty without one."""
    tls: Mapping[str, tuple[str, ...]] = scope.get("extensions", {}).get("tls", {})
    return tls.get("client_cert_names", ())
