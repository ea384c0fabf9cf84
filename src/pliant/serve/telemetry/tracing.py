"""Spans of requests: through OpenTelemetry's API where it is installed, else identifiers alone.

`pip install 'pliant[otel]'` brings the API; what records and exports spans (an SDK) is the operator's choice.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Literal, Protocol, Self, final

from pliant.serve.telemetry.trace_context import TraceContext, new_trace

Kind = Literal["server", "client", "internal"]
Attribute = str | bool | int | float


class OpenSpan(Protocol):
    """A span under way."""

    @property
    def context(self) -> TraceContext:
        """As other processes are told of it."""
        ...

    def tell(self, attributes: Mapping[str, Attribute]) -> None:
        """What is known of it only now."""
        ...

    def fail(self, why: str) -> None:
        """It does not end well."""
        ...


class Tracer(Protocol):
    """Makes spans; called on any thread."""

    def span(
        self, name: str, kind: Kind, parent: TraceContext | None, attributes: Mapping[str, Attribute]
    ) -> AbstractContextManager[OpenSpan]:
        """A span around the context, below `parent`; the first of a trace without one."""
        ...

    def record(
        self,
        name: str,
        parent: TraceContext,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, Attribute],
    ) -> None:
        """A span that is over; times are those of `time.time_ns`."""
        ...


@final
class _Unrecorded:
    """A span that only has identifiers; its own context manager."""

    __slots__ = ("context",)

    def __init__(self, context: TraceContext) -> None:
        self.context = context

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def tell(self, attributes: Mapping[str, Attribute]) -> None:
        pass

    def fail(self, why: str) -> None:
        pass


@final
class ContextTracer:
    """Carries traces from callers to upstreams, and records nothing."""

    def span(
        self, name: str, kind: Kind, parent: TraceContext | None, attributes: Mapping[str, Attribute]
    ) -> AbstractContextManager[OpenSpan]:
        return _Unrecorded(new_trace() if parent is None else parent.child())

    def record(
        self,
        name: str,
        parent: TraceContext,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, Attribute],
    ) -> None:
        pass


def make_tracer() -> Tracer:
    """OpenTelemetry's tracer where its API is installed and something records, else a ContextTracer."""
    try:
        from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider
    except ImportError:
        return ContextTracer()
    provider = get_tracer_provider()
    if isinstance(provider, ProxyTracerProvider):  # the API alone: no SDK was configured
        return ContextTracer()
    from pliant.serve.telemetry.otel_tracer import OtelTracer

    return OtelTracer(provider)
