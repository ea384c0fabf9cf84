"""Spans through OpenTelemetry's API."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import final

from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TracerProvider,
    TraceState,
    set_span_in_context,
    use_span,
)

from pliant.serve.telemetry.trace_context import TraceContext, new_trace
from pliant.serve.telemetry.tracing import Kind, OpenSpan, SpanAttribute

_KINDS = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}


@final
class _OtelSpan:
    def __init__(self, span: Span, parent: TraceContext | None) -> None:
        self._span = span
        found = span.get_span_context()
        if found.is_valid:
            trace_id, span_id = f"{found.trace_id:032x}", f"{found.span_id:016x}"
            state = found.trace_state.to_header()
            self.context = TraceContext(trace_id, span_id, found.trace_flags.sampled, state)
        else:  # the provider creates no valid spans
            self.context = new_trace() if parent is None else parent.child()

    def set_attributes(self, attributes: Mapping[str, SpanAttribute]) -> None:
        self._span.set_attributes(attributes)

    def fail(self, why: str) -> None:
        self._span.set_status(Status(StatusCode.ERROR, why))


@final
class OtelTracer:
    """Creates spans with `provider`, whose SDK samples and exports them."""

    is_recording = True

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("pliant")

    @contextmanager
    def span(
        self, name: str, kind: Kind, parent: TraceContext | None, attributes: Mapping[str, SpanAttribute]
    ) -> Iterator[OpenSpan]:
        span = self._tracer.start_span(name, _parent_context(parent), _KINDS[kind], attributes)
        with use_span(span, end_on_exit=True, record_exception=False):
            yield _OtelSpan(span, parent)

    def record(
        self,
        name: str,
        parent: TraceContext,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, SpanAttribute],
    ) -> TraceContext:
        span = self._tracer.start_span(
            name, _parent_context(parent), attributes=attributes, start_time=start_ns
        )
        span.end(end_ns)
        return _OtelSpan(span, parent).context


def _parent_context(parent: TraceContext | None) -> Context:
    """The parent context of a new span; an empty context without `parent`."""
    if parent is None:
        return Context()
    flags = TraceFlags(TraceFlags.SAMPLED if parent.is_sampled else TraceFlags.DEFAULT)
    state = TraceState.from_header([parent.state]) if parent.state else None
    above = SpanContext(int(parent.trace_id, 16), int(parent.span_id, 16), True, flags, state)
    return set_span_in_context(NonRecordingSpan(above), Context())
