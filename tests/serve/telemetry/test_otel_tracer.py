"""Spans of a request, read back from OpenTelemetry's SDK."""

from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip(
    "opentelemetry.sdk", reason="OpenTelemetry's SDK is missing: pip install opentelemetry-sdk"
)

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from pliant.errors import ModelError
from pliant.run.process_memory import MemoryBudget
from pliant.serve.telemetry.otel_tracer import OtelTracer
from tests.serve.models import Upper
from tests.serve.nodes import Running, fixed, running
from tests.serve.repository.test_repository_api import Shelf, asked, change, mark_of, serving
from tests.serve.telemetry.test_request_context import lines_of, logged
from tests.serve.test_routing import LATE, SOON, target_of, until

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "congo=t61rcWkgMzE"}


def recorder() -> tuple[OtelTracer, InMemorySpanExporter]:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return OtelTracer(provider), exporter


def spans_of(exporter: InMemorySpanExporter, id: str) -> dict[str, ReadableSpan]:
    """Those of the hop that has the request's id, and those below, by name."""
    every = exporter.get_finished_spans()
    (hop,) = (span for span in every if (span.attributes or {}).get("pliant.request_id") == id)
    found, above = {"hop": hop}, {hop.context.span_id}
    for span in every:
        if span.parent is not None and span.parent.span_id in above:
            found[span.name] = span
    return found


def test_two_hops_are_one_trace_with_a_span_for_each_stage() -> None:
    """client > end's hop > upstream > up's hop > queue, compute."""
    (end_tracer, end_spans), (up_tracer, up_spans) = recorder(), recorder()
    with (
        running(Upper(mark="@up"), name="up", tracer=up_tracer, **fixed(*SOON)) as up,
        running(
            Upper(mark="@end"), name="end", tracer=end_tracer, upstreams=(up.url,), **fixed(*LATE)
        ) as end,
    ):
        until(lambda: target_of(end, 3) == up.url)
        answer = end.post("a", headers={**PARENT, "X-Request-Id": "seven"})
        assert answer.json()["outputs"][0]["data"] == ["A@up"]
    mine, above = spans_of(end_spans, "seven"), spans_of(up_spans, "seven")
    assert mine.keys() == {"hop", "upstream"}
    assert above.keys() == {"hop", "queue", "compute"}
    for span in (*mine.values(), *above.values()):
        assert f"{span.context.trace_id:032x}" == TRACE
        assert span.context.trace_state.to_header() == PARENT["tracestate"]
        assert span.start_time <= span.end_time
    assert mine["hop"].parent is not None
    assert f"{mine['hop'].parent.span_id:016x}" == SPAN
    assert mine["hop"].kind is above["hop"].kind is SpanKind.SERVER
    assert mine["upstream"].kind is SpanKind.CLIENT
    assert above["hop"].parent is not None
    assert above["hop"].parent.span_id == mine["upstream"].context.span_id
    assert above["queue"].end_time == above["compute"].start_time
    assert above["compute"].attributes["pliant.length"] == 1
    assert answer.headers["traceparent"] == f"00-{TRACE}-{mine['hop'].context.span_id:016x}-01"


def test_a_failure_is_an_error_of_its_span() -> None:
    tracer, exporter = recorder()
    with running(Upper(), tracer=tracer) as node:
        assert node.post("bug", headers={"X-Request-Id": "seven"}).status_code == 500
        assert node.post("fine", headers={"X-Request-Id": "eight"}).status_code == 200
    failed, fine = spans_of(exporter, "seven")["hop"], spans_of(exporter, "eight")["hop"]
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.attributes["http.response.status_code"] == 500
    assert fine.status.status_code is StatusCode.UNSET


def test_the_load_of_an_evicted_model_is_a_span_of_each_request_that_waits_for_it() -> None:
    """Else a trace shows seconds of nothing: the wait is longer than all that follows."""
    tracer, exporter = recorder()
    slow, other = Shelf("slow", n_bytes=60), Shelf("other", n_bytes=60, is_initial=False)
    with (
        logged() as stream,
        serving(slow, other, memory=MemoryBudget(100), tracer=tracer) as node,
        ThreadPoolExecutor(2) as pool,
    ):
        assert change(node, "other", "load").status_code == 200  # which evicts the other one
        slow.gate.clear()
        ids = ("seven", "eight")
        waiting = [pool.submit(asked, node, "slow", **PARENT, **{"x-request-id": id}) for id in ids]
        until(lambda: counted_waiters(node) == 2)
        slow.gate.set()
        for id, answer in zip(ids, (one.result() for one in waiting), strict=True):
            assert mark_of(answer) == "slow:1:a"
            assert answer.headers.get_list("x-request-id") == [id]
        slow.error = ModelError("broken")
        assert change(node, "other", "load").status_code == 200
        assert asked(node, "slow", **{"x-request-id": "nine"}).status_code >= 400
    for id in ids:
        found = spans_of(exporter, id)
        assert found.keys() == {"hop", "load", "queue", "compute"}
        hop, load = found["hop"], found["load"]
        assert f"{hop.context.trace_id:032x}" == TRACE
        assert (load.attributes["pliant.model"], load.attributes["pliant.model_version"]) == ("slow", "1")
        times = (hop.start_time, load.start_time, load.end_time, found["compute"].end_time, hop.end_time)
        assert list(times) == sorted(times)
    failed = spans_of(exporter, "nine")
    assert failed.keys() == {"hop", "load"}
    assert failed["load"].status.status_code is StatusCode.ERROR
    lines = [line for line in lines_of(stream) if line["logger"] == "pliant.serve.access"]
    shown = [line.get("request_id") for line in lines if line["path"].endswith("slow/infer")]
    assert sorted(shown) == ["eight", "nine", "seven"]
    identities = {line["request_id"]: line.get("identity") for line in lines if line["status"] == 200}
    assert (identities["seven"], identities["eight"]) == ("id-slow-1", "id-slow-1")


def counted_waiters(node: Running) -> int:
    """How many requests wait for a model to be loaded."""
    assert node.repository is not None
    return len(node.repository.wanted("slow", None).waiters)
