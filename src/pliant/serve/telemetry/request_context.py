"""The context of the current request: id, trace, model and version.

It is a context variable, which tasks inherit; work on another thread runs in a copy of the context.
"""

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from pliant.serve.telemetry.lane_times import ProgramRun, lane_times
from pliant.serve.telemetry.trace_context import TraceContext, read_trace
from pliant.serve.telemetry.tracing import ContextTracer, Kind, OpenSpan, SpanAttribute, Tracer

REQUEST_ID, MODEL_VERSION = "x-request-id", "pliant-model-version"
ANSWERING = "pliant.answering"
"""Key in an ASGI scope: the node whose model answers at a path that all models share."""
_LONGEST, _IDENTITY = 128, 12
_CURRENT: ContextVar["RequestContext | None"] = ContextVar("pliant_request", default=None)


@dataclass(frozen=True, slots=True)
class RequestContext:
    """A request.

    `identity` is the content hash of the model. `is_given` is set if the caller chose the `id`.
    """

    id: str
    trace: TraceContext
    model: str
    model_version: str
    identity: str = ""
    tracer: Tracer = field(default_factory=ContextTracer)
    is_given: bool = False

    @property
    def log_fields(self) -> dict[str, str]:
        """The fields of its log lines."""
        model = ServedModel(self.model, self.model_version, self.identity)
        ids = {"request_id": self.id, "trace_id": self.trace.trace_id, "span_id": self.trace.span_id}
        return ids | model.log_fields

    def headers(self) -> dict[str, str]:
        """Headers for an upstream, in addition to the model's."""
        return {REQUEST_ID: self.id, **self.trace.headers()}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model fields of log lines and responses."""

    name: str
    version: str
    identity: str = ""

    @property
    def log_fields(self) -> dict[str, str]:
        """The `extra` of a log line about this model, whatever the current request is for."""
        return {"model": self.name, "model_version": self.version, "identity": self.identity[:_IDENTITY]}


NO_MODEL = ServedModel("", "")
"""Of a request for no model."""


def current_request() -> RequestContext | None:
    """The request of this task or thread; None outside requests."""
    return _CURRENT.get()


def current_headers() -> dict[str, str]:
    """Id and trace headers of the current request; empty outside requests."""
    context = _CURRENT.get()
    return {} if context is None else context.headers()


def own_id() -> str:
    """A unique id: that of the current request, unless its caller chose it."""
    context = _CURRENT.get()
    return secrets.token_hex(8) if context is None or context.is_given else context.id


@contextmanager
def enter_request(
    headers: Mapping[str, str],
    model: ServedModel,
    tracer: Tracer,
    name: str,
    attributes: Mapping[str, SpanAttribute],
) -> Iterator[OpenSpan]:
    """Process a request with `headers` (lower-case names) in a span of its own.

    An id that is longer than 128 characters or not printable is replaced, because it goes into log lines.
    """
    given = headers.get(REQUEST_ID, "")
    is_good = 0 < len(given) <= _LONGEST and given.isascii() and given.isprintable()
    id = given if is_good else secrets.token_hex(8)
    about = {
        "pliant.request_id": id,
        "pliant.model": model.name,
        "pliant.model_version": model.version,
        **attributes,
    }
    with tracer.span(name, "server", read_trace(headers), about) as span:
        about_model = (model.name, model.version, model.identity)
        context = RequestContext(id, span.context, *about_model, tracer, is_good)
        token = _CURRENT.set(context)
        try:
            yield span
        finally:
            _CURRENT.reset(token)


@contextmanager
def set_model(model: ServedModel) -> Iterator[None]:
    """Set the model of the current request for log lines and responses."""
    context = _CURRENT.get()
    if context is None:
        yield
        return
    named = replace(context, model=model.name, model_version=model.version, identity=model.identity)
    token = _CURRENT.set(named)
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def inner_span(name: str, kind: Kind, attributes: Mapping[str, SpanAttribute]) -> Iterator[OpenSpan | None]:
    """A child span of the current request's span, and parent of spans inside it; None outside requests."""
    context = _CURRENT.get()
    if context is None:
        yield None
        return
    with context.tracer.span(name, kind, context.trace, attributes) as span:
        token = _CURRENT.set(replace(context, trace=span.context))
        try:
            yield span
        except BaseException as error:
            span.fail(f"{error}" or type(error).__name__)
            raise
        finally:
            _CURRENT.reset(token)


def record_stages(n: int, endpoint: str, waited_s: float, spent_s: float, details: object = None) -> None:
    """Record the spans of an answer that just ended: `waited_s` in the queue, then `spent_s` of work.

    `n` is the length of the input. If `details` are those of a run (`ProgramRun`), a span for each of its
    lanes lies below that of the work: the run ended with it. A batch may have begun before the part of it
    that counts as the work of one request.
    """
    context = _CURRENT.get()
    if context is None or not context.tracer.is_recording:
        return
    end_ns = time.time_ns()
    begun_ns = end_ns - int(spent_s * 1e9)
    about: dict[str, SpanAttribute] = {"pliant.endpoint": endpoint, "pliant.length": n}
    context.tracer.record("queue", context.trace, begun_ns - int(waited_s * 1e9), begun_ns, about)
    work = context.tracer.record("compute", context.trace, begun_ns, end_ns, about)
    if not isinstance(details, ProgramRun):
        return
    for lane in lane_times(details):
        times = (end_ns - int(before_s * 1e9) for before_s in (lane.start_s, lane.end_s))
        start_ns, stop_ns = (max(begun_ns, at_ns) for at_ns in times)
        context.tracer.record(lane.name, work, start_ns, stop_ns, lane.attributes)
