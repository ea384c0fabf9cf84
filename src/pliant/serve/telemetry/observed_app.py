"""An ASGI middleware that gives requests an id, a trace and a log line."""

import logging
import time
from collections.abc import Awaitable, Mapping
from typing import Any, final

from starlette.types import ASGIApp, Receive, Scope, Send

from pliant.serve.telemetry.request_context import (
    ANSWERING,
    MODEL_VERSION,
    NO_MODEL,
    REQUEST_ID,
    ServedModel,
    current_request,
    enter_request,
    set_model,
)
from pliant.serve.telemetry.trace_context import TRACEPARENT, TRACESTATE
from pliant.serve.telemetry.tracing import Tracer

OBSERVED = "pliant.observed"
"""Key in an ASGI scope: the request has its id, span and log line already."""
_LOG = logging.getLogger("pliant.serve.access")
_REQUEST_ID, _TRACEPARENT = REQUEST_ID.encode(), TRACEPARENT.encode()
_READ = {_REQUEST_ID, _TRACEPARENT, TRACESTATE.encode()}
_FAILED = 500


@final
class ObservedApp:
    """Wraps `app` of `model`; responses carry `X-Request-Id`, `traceparent` and the model version.

    Without `model`, the model is that of the node that the scope names (`ANSWERING`), if any. Paths of
    `unobserved`, or below one that ends with a slash, have no span: health checks and scrapes, which come
    every few seconds. A request that was observed before (`OBSERVED`) is not observed again.
    """

    def __init__(
        self,
        app: ASGIApp,
        model: ServedModel | None,
        tracer: Tracer,
        node: str,
        unobserved: tuple[str, ...] = (),
    ) -> None:
        self._app, self._model, self._tracer, self._node = app, model or NO_MODEL, tracer, node
        self._paths = frozenset(unobserved)
        self._folders = tuple(path for path in unobserved if path.endswith("/") and path != "/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or OBSERVED in scope or self._is_unobserved(scope["path"]):
            await self._app(scope, receive, send)
            return
        method, path = scope["method"], scope["path"]
        about = {"http.request.method": method, "url.path": path, "pliant.node": self._node}
        start_s, status = time.perf_counter(), 0
        with enter_request(
            _read(scope), self._model_of(scope), self._tracer, f"{method} {path}", about
        ) as span:
            context = current_request()
            assert context is not None
            said = (
                (_REQUEST_ID, context.id.encode("latin-1")),
                (_TRACEPARENT, context.trace.traceparent.encode()),
            )

            def sending(message: Any) -> Awaitable[None]:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                    version = self._model_of(scope).version.encode("latin-1")
                    more = (*said, (MODEL_VERSION.encode(), version)) if version else said
                    message = {**message, "headers": [*message["headers"], *more]}
                return send(message)

            try:
                await self._app(scope, receive, sending)
            finally:
                model = self._model_of(scope)
                span.set_attributes({"http.response.status_code": status})
                if model is not self._model:
                    span.set_attributes({"pliant.model": model.name, "pliant.model_version": model.version})
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
                    shown = ascii(path)[1:-1]
                    with set_model(model):
                        _LOG.info("%s %s %d in %.6f s", method, shown, status, seconds, extra=extra)

    def _is_unobserved(self, path: str) -> bool:
        return path in self._paths or path.startswith(self._folders)

    def _model_of(self, scope: Scope) -> ServedModel:
        found: ServedModel = scope[ANSWERING].model if ANSWERING in scope else self._model
        return found


def _read(scope: Scope) -> dict[str, str]:
    """Read the relevant headers; repeated headers are joined (RFC 9110, 5.3)."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        if name in _READ:
            key, text = name.decode(), value.decode("latin-1")
            found[key] = f"{found[key]},{text}" if key in found else text
    return found
