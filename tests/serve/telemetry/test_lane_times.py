"""Spans of what a run did: kernels of each device, reads of a store, exchanges of each link."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

pytest.importorskip(
    "opentelemetry.sdk", reason="OpenTelemetry's SDK is missing: pip install opentelemetry-sdk"
)

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import pliant
from pliant.api.open_cluster import Cluster
from pliant.cluster.net.key import new_key
from pliant.ir.cost import Span, SpanState
from pliant.ir.program import Compute, Exchange, Load, Program, Segment, SliceRun, Step
from pliant.run.session.session import Session
from pliant.serve.telemetry.lane_times import lane_times
from tests.cluster.processes import PATIENT, WAIT_S, workers
from tests.cluster.test_clustered import write_key
from tests.serve.nodes import PATIENCE_S, asking, running
from tests.serve.telemetry.test_otel_tracer import recorder

DEVICES = {"hub", "a", "b"}


@dataclass(frozen=True, slots=True)
class Run:
    program: Program
    spans: tuple[Span, ...]


def test_lanes_are_from_their_first_step_to_the_end_of_their_last() -> None:
    """Counted back from the end of the run; steps that did not run do not count."""
    reads = [Load(layer, (SliceRun(layer, 0, 0, 1),), 10 * (layer + 1)) for layer in range(3)]
    first = Segment((Step("io", reads[0]), Step("io", reads[1]), Step("io", reads[2])))
    sent = Exchange("x", 400, "a", "b")
    second = Segment(
        (Step("a/cpu", Compute("layer", 0, 2, 5, "a")), Step("net:a->b", sent), Step("net:a->b", sent))
    )
    times = [(0.0, 0.5, "io"), (0.5, 1.0, "io"), (1.0, 1.0, "io"), (1.5, 2.0, "a/cpu")]
    times += [(2.0, 2.25, "net:a->b"), (3.5, 4.0, "net:a->b")]
    spans = [Span(i, lane, start_s, end_s) for i, (start_s, end_s, lane) in enumerate(times)]
    spans[2] = Span(2, "io", 1.0, 1.0, SpanState.SKIPPED)
    found = {lane.name: lane for lane in lane_times(Run(Program((first, second)), tuple(spans)))}
    assert {name: (lane.start_s, lane.end_s) for name, lane in found.items()} == {
        "read": (4.0, 3.0),
        "kernels": (2.5, 2.0),
        "exchange": (2.0, 0.0),
    }
    assert found["read"].attributes == {"pliant.busy_s": 1.0, "pliant.steps": 2, "pliant.bytes": 30}
    assert found["kernels"].attributes == {"pliant.busy_s": 0.5, "pliant.steps": 1, "pliant.device": "a"}
    assert found["exchange"].attributes == {
        "pliant.busy_s": 0.75, "pliant.steps": 2, "pliant.from": "a", "pliant.to": "b", "pliant.bytes": 800,
    }  # fmt: skip


def traced(session: Session[str], texts: list[str]) -> list[dict[str, list[ReadableSpan]]]:
    """The spans below the work of each of `texts`, asked at once, by name; their times lie within it."""
    tracer, exporter = recorder()
    with running(session, tracer=tracer) as node, ThreadPoolExecutor(len(texts)) as pool:
        url = f"{node.url}/v2/models/{session.name}/infer"

        def ask(i: int) -> int:
            headers = {"x-request-id": str(i)}
            return httpx.post(url, content=asking(texts[i]), headers=headers, timeout=PATIENCE_S).status_code

        assert set(pool.map(ask, range(len(texts)))) == {200}
    return [lanes_of(exporter, str(i)) for i in range(len(texts))]


def lanes_of(exporter: InMemorySpanExporter, id: str) -> dict[str, list[ReadableSpan]]:
    every = exporter.get_finished_spans()
    (hop,) = (span for span in every if (span.attributes or {}).get("pliant.request_id") == id)
    (work,) = (span for span in every if span.name == "compute" and is_below(span, hop))
    found: dict[str, list[ReadableSpan]] = {}
    for span in every:
        if is_below(span, work):
            assert span.context.trace_id == hop.context.trace_id
            assert work.start_time <= span.start_time <= span.end_time <= work.end_time
            found.setdefault(span.name, []).append(span)
    return found


def is_below(span: ReadableSpan, above: ReadableSpan) -> bool:
    return span.parent is not None and span.parent.span_id == above.context.span_id


def test_requests_to_a_cluster_have_the_spans_of_all_its_devices(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    """Six at once, of different lengths: each has its own."""
    source = str(tiny_model("bert", n_layers=4, widths=(2, 4)))
    key = write_key(tmp_path / "key", new_key())
    with (
        Cluster("127.0.0.1:0", name="hub", key=key, threads=1, patience=PATIENT, shares="equal") as cluster,
        workers(cluster.address, key, source, tmp_path),
        cluster.open(source) as session,
    ):
        cluster.wait(2, WAIT_S)
        found = traced(session, ["good " * n for n in range(1, 7)])
    for lanes in found:
        assert {span.attributes["pliant.device"] for span in lanes["kernels"]} == DEVICES
        links = {(span.attributes["pliant.from"], span.attributes["pliant.to"]) for span in lanes["exchange"]}
        assert links == {(src, dst) for src in DEVICES for dst in DEVICES - {src}}
        assert all(span.attributes["pliant.bytes"] > 0 for span in lanes["exchange"])


def test_an_answer_from_a_store_has_the_spans_of_its_reads(tiny_model: Callable[..., Path]) -> None:
    with pliant.open(str(tiny_model("bert", n_layers=4, widths=(2, 4))), preload="0B", threads=1) as session:
        (lanes,) = traced(session, ["good film"])
    assert {name: len(spans) for name, spans in lanes.items()} == {"kernels": 1, "read": 1}
    assert lanes["read"][0].attributes["pliant.bytes"] > 0
