"""W3C trace context: the trace of a request (https://www.w3.org/TR/trace-context/)."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE = re.compile(r"[\x20-\x7e]{1,512}")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span of a trace, as sent to other processes. Identifiers are lower-case hexadecimal."""

    trace_id: str
    span_id: str
    is_sampled: bool = False
    state: str = ""

    def child(self) -> "TraceContext":
        """A new child span."""
        return TraceContext(self.trace_id, secrets.token_hex(8), self.is_sampled, self.state)

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"

    def headers(self) -> dict[str, str]:
        """The headers for a request to another process."""
        return {TRACEPARENT: self.traceparent, **({TRACESTATE: self.state} if self.state else {})}


def new_trace() -> TraceContext:
    """A new trace. Without a tracer it is not sampled."""
    return TraceContext(secrets.token_hex(16), secrets.token_hex(8))


def read_trace(headers: Mapping[str, str]) -> TraceContext | None:
    """Read the caller's span; None if missing or invalid, so that a new trace begins (3.2.2).

    `headers` have lower-case names. Versions after 00 may have further fields after a dash.
    """
    found = _TRACEPARENT.fullmatch(headers.get(TRACEPARENT, ""))
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    if not int(trace_id, 16) or not int(span_id, 16):
        return None
    state = headers.get(TRACESTATE, "")
    is_sampled = bool(int(flags, 16) & _SAMPLED)
    return TraceContext(trace_id, span_id, is_sampled, state if _STATE.fullmatch(state) else "")
