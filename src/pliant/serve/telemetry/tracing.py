"""Spans of requests: through OpenTelemetry's API if it is installed, otherwise identifiers only.

`pip install 'pliant[otel]'` installs the API; the operator chooses the SDK that records and exports spans.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Literal, Protocol, Self, final

from pliant.serve.telemetry.trace_context import TraceContext, new_trace

Kind = Literal["server", "client", "internal"]
SpanAttribute = str | bool | int | float


class OpenSpan(Protocol):
    """An open span."""

    @property
    def context(self) -> TraceContext:
        """The span's context for other processes."""
        ...

    def set_attributes(self, attributes: Mapping[str, SpanAttribute]) -> None:
        """Add attributes to the span."""
        ...

    def fail(self, why: str) -> None:
        """Mark the span as failed."""
        ...


class Tracer(Protocol):
    """Creates spans; thread-safe."""

    @property
    def is_recording(self) -> bool:
        """Whether anybody reads the spans: else they need no details."""
        ...

    def span(
        self, name: str, kind: Kind, parent: TraceContext | None, attributes: Mapping[str, SpanAttribute]
    ) -> AbstractContextManager[OpenSpan]:
        """A span for the duration of the context, a child of `parent`.

        Without it, the root of a new trace.
        """
        ...

    def record(
        self,
        name: str,
        parent: TraceContext,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, SpanAttribute],
    ) -> TraceContext:
        """Record a completed span, and return its context; times are those of `time.time_ns`."""
        ...


@final
class _ContextSpan:
    """A span with identifiers only; its own context manager."""

    __slots__ = ("context",)

    def __init__(self, context: TraceContext) -> None:
        self.context = context

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def set_attributes(self, attributes: Mapping[str, SpanAttribute]) -> None:
        pass

    def fail(self, why: str) -> None:
        pass


@final
class ContextTracer:
    """Passes traces from callers to upstreams without recording anything."""

    is_recording = False

    def span(
        self, name: str, kind: Kind, parent: TraceContext | None, attributes: Mapping[str, SpanAttribute]
    ) -> AbstractContextManager[OpenSpan]:
        return _ContextSpan(new_trace() if parent is None else parent.child())

    def record(
        self,
        name: str,
        parent: TraceContext,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, SpanAttribute],
    ) -> TraceContext:
        return parent


def make_tracer() -> Tracer:
    """OpenTelemetry's tracer if its API is installed and an SDK records spans, else a ContextTracer."""
    try:
        from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider
    except ImportError:
        return ContextTracer()
    provider = get_tracer_provider()
    if isinstance(provider, ProxyTracerProvider):  # the API alone: no SDK was configured
        return ContextTracer()
    from pliant.serve.telemetry.otel_tracer import OtelTracer

    return OtelTracer(provider)
