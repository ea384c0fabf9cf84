"""Before everything else over HTTP: may the call be made, and is its answer counted."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, final

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pliant.route.node_messages import ROUTE_HEADER
from pliant.serve.access.access import Access, CallerShown
from pliant.serve.access.roles import PEERS, rule_for
from pliant.serve.node.serving_node import Node
from pliant.serve.protocol.inference import JSON

_ROUTE = ROUTE_HEADER.lower().encode()


@final
class Guard:
    """Refuses what `access` does not allow, and adds `Connection: close` where the node is about to leave.

    Every answer is counted by its status; those to other nodes, errors too, carry this node's identity.
    `paths` are those that the metrics name.
    """

    def __init__(self, app: ASGIApp, node: Node, access: Access, paths: frozenset[str]) -> None:
        self._app, self._node, self._access, self._paths = app, node, access, paths
        self._identity = [(n.lower().encode(), v.encode()) for n, v in node.identity.headers().items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        shown = _shown(scope)
        no = self._refusal(shown)
        identity = self._identity if shown.of_node and no is None else ()
        try:
            await (no or self._app)(scope, receive, self._sending(shown.path, send, identity))
        except asyncio.CancelledError:  # the client has left
            self._node.metrics.responses.labels(self._label(shown.path), 499).inc()
            raise

    def _refusal(self, shown: CallerShown) -> Response | None:
        if not shown.path.isprintable():  # a route's pattern matches a path with a line break behind it
            return error_response(404, "there is no such path.", {"connection": "close"})
        refusal = self._access.refusal(shown)
        return None if refusal is None else error_response(refusal.status, refusal.why, refusal.headers)

    def _sending(self, path: str, send: Send, identity: Sequence[tuple[bytes, bytes]]) -> Send:
        """`send`, with what every answer carries; its status is counted."""
        label = self._label(path)

        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                self._node.metrics.responses.labels(label, message["status"]).inc()
                close = [(b"connection", b"close")] if self._node.is_draining else []
                message = {**message, "headers": [*message["headers"], *identity, *close]}
            await send(message)

        return sending

    def _label(self, path: str) -> str:
        return path if path in self._paths else "other"


def error_response(status: int, why: str, headers: Mapping[str, str]) -> Response:
    """What every error looks like: JSON with the reason."""
    return Response(msgspec.json.encode({"error": why}), status, dict(headers), JSON)


def _shown(scope: Scope) -> CallerShown:
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    path, method = scope["path"], scope["method"]
    return CallerShown(
        method,
        path,
        [value.decode("latin-1") for name, value in headers if name == b"authorization"],
        rule_for(method, path).roles == PEERS or any(name == _ROUTE for name, _ in headers),
        address=scope["client"][0] if scope.get("client") else "",
    )
