"""Request id, trace, span and log line for gRPC calls, as for HTTP requests."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final
from urllib.parse import unquote

import grpc

from pliant.serve.telemetry.request_context import (
    MODEL_VERSION,
    NO_MODEL,
    REQUEST_ID,
    ServedModel,
    current_request,
    enter_request,
    set_model,
)
from pliant.serve.telemetry.trace_context import TRACEPARENT
from pliant.serve.telemetry.tracing import OpenSpan, Tracer

_LOG = logging.getLogger("pliant.serve.access")
_OURS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN)
"""Statuses that mark a server span as failed (OpenTelemetry's conventions for gRPC)."""


@final
class ObservedCall:
    """A call in progress. `metadata` is the response metadata: request id, trace, and what methods add."""

    def __init__(self, span: OpenSpan | None) -> None:
        self._span = span
        self.code = grpc.StatusCode.UNKNOWN
        self.metadata: dict[str, str] = {}
        self.model = NO_MODEL
        if (context := current_request()) is not None:
            self.metadata = {REQUEST_ID: context.id, TRACEPARENT: context.trace.traceparent}

    def set_model(self, model: ServedModel) -> None:
        """Record the model of the call, once it is known."""
        self.model, self.metadata[MODEL_VERSION] = model, model.version
        if self._span is not None:
            self._span.set_attributes({"pliant.model": model.name, "pliant.model_version": model.version})


@contextmanager
def observe_call(path: str, context: Any, tracer: Tracer, node: str) -> Iterator[ObservedCall]:
    """Context of a call to `path` (`/SERVICE/METHOD`); the method's wrapper sets its `code`."""
    _, service, method = path.split("/")
    about = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method, "pliant.node": node}
    start_s = time.perf_counter()
    with enter_request(metadata_of(context), NO_MODEL, tracer, path.removeprefix("/"), about) as span:
        call = ObservedCall(span)
        try:
            yield call
        finally:
            span.set_attributes({"rpc.grpc.status_code": call.code.value[0]})
            if call.code in _OURS:
                span.fail(f"status {call.code.name}")
            if _LOG.isEnabledFor(logging.INFO):
                seconds = time.perf_counter() - start_s
                extra: dict[str, object] = {
                    "method": "POST",
                    "path": path,
                    "grpc_status": call.code.name,
                    "seconds": round(seconds, 6),
                    "client": client_of(context),
                    "node": node,
                }
                with set_model(call.model):
                    _LOG.info("%s %s in %.6f s", path, call.code.name, seconds, extra=extra)


def metadata_of(context: Any) -> dict[str, str]:
    """The caller's text metadata by name; repeated names are joined with commas, as over HTTP."""
    found: dict[str, str] = {}
    for name, value in context.invocation_metadata() or ():
        if isinstance(value, str):
            found[name] = f"{found[name]},{value}" if name in found else value
    return found


def metadata_bytes(context: Any) -> int:
    """The size of the caller's metadata in bytes."""
    return sum(len(name) + len(value) for name, value in context.invocation_metadata() or ())


def client_of(context: Any) -> str:
    """The caller's address, without its port: `ipv4:127.0.0.1:4711`, `ipv6:%5B::1%5D:4711`."""
    kind, _, address = unquote(context.peer()).partition(":")
    return address.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else address
