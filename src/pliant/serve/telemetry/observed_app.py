"""An ASGI middleware that gives requests an id, a trace and a log line."""

import logging
import time
from collections.abc import Awaitable, Mapping
from typing import Any, final

from starlette.types import ASGIApp, Receive, Scope, Send

from pliant.serve.telemetry.request_context import (
    MODEL_VERSION,
    REQUEST_ID,
    ServedModel,
    current_request,
    enter_request,
)
from pliant.serve.telemetry.trace_context import TRACEPARENT, TRACESTATE
from pliant.serve.telemetry.tracing import Tracer

_LOG = logging.getLogger("pliant.serve.access")
_REQUEST_ID, _TRACEPARENT = REQUEST_ID.encode(), TRACEPARENT.encode()
_READ = {_REQUEST_ID, _TRACEPARENT, TRACESTATE.encode()}
_FAILED = 500


@final
class ObservedApp:
    """Wraps `app` of `model`; responses carry `X-Request-Id`, `traceparent` and the model version.

    Health checks and scrapes, which come every few seconds, have no span.
    """

    def __init__(
        self, app: ASGIApp, model: ServedModel, tracer: Tracer, node: str, unobserved: tuple[str, ...] = ()
    ) -> None:
        self._app, self._model, self._tracer, self._node = app, model, tracer, node
        self._unobserved = unobserved
        self._version = (MODEL_VERSION.encode(), model.version.encode("latin-1"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(self._unobserved):
            await self._app(scope, receive, send)
            return
        method, path = scope["method"], scope["path"]
        about = {"http.request.method": method, "url.path": path, "pliant.node": self._node}
        start_s, status = time.perf_counter(), 0
        with enter_request(_read(scope), self._model, self._tracer, f"{method} {path}", about) as span:
            context = current_request()
            assert context is not None
            said = (
                (_REQUEST_ID, context.id.encode("latin-1")),
                (_TRACEPARENT, context.trace.traceparent.encode()),
                self._version,
            )

            def sending(message: Any) -> Awaitable[None]:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                    message = {**message, "headers": [*message["headers"], *said]}
                return send(message)

            try:
                await self._app(scope, receive, sending)
            finally:
                span.set_attributes({"http.response.status_code": status})
                if status >= _FAILED or not status:
                    span.fail(f"status {status}" if status else "no answer")
                if _LOG.isEnabledFor(logging.INFO):
                    client = (scope.get("client") or ("",))[0]
                    seconds = time.perf_counter() - start_s
                    extra: Mapping[str, object] = {
                        "method": method,
                        "path": path,
                        "status": status,
                        "seconds": round(seconds, 6),
                        "client": client,
                        "node": self._node,
                    }
                    _LOG.info("%s %s %d in %.6f s", method, ascii(path)[1:-1], status, seconds, extra=extra)


def _read(scope: Scope) -> dict[str, str]:
    """Read the relevant headers; repeated headers are joined (RFC 9110, 5.3)."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        if name in _READ:
            key, text = name.decode(), value.decode("latin-1")
            found[key] = f"{found[key]},{text}" if key in found else text
    return found
