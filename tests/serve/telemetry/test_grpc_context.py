"""Calls over gRPC have the id, the trace, the spans and the log lines that requests over HTTP have."""

import re
from typing import Any

import pytest

from pliant.run.process_memory import MemoryBudget
from tests.serve.models import Upper, texts
from tests.serve.nodes import ANY_PORT, PATIENCE_S, Running, fixed, running
from tests.serve.repository.test_repository_api import Shelf, change, serving
from tests.serve.telemetry.test_request_context import PARENT, SPAN, TRACE, lines_of, logged
from tests.serve.test_routing import LATE, SOON, metric, target_of, until

grpc = pytest.importorskip("grpc", reason="grpcio is not installed")
from pliant.serve.grpc.wire_messages import SERVICE, message  # noqa: E402 - not without grpcio
from pliant.serve.protocol.oip_tensors import write_bytes  # noqa: E402

INFER = f"/{SERVICE}/ModelInfer"


def infer(node: Running, text: str, model: str = "upper", **metadata: str) -> tuple[bytes, dict[str, str]]:
    """The upper case of `text`, and the metadata that come with it; of an error, its own."""
    assert node.node is not None
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1]}
    raw = [write_bytes(texts(text), "bytes")]
    request = message("ModelInferRequest")(model_name=model, inputs=[tensor], raw_input_contents=raw)
    given = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
    with grpc.insecure_channel(str(node.grpc)) as channel:
        method = channel.unary_unary(INFER, response_deserializer=message("ModelInferResponse").FromString)
        try:
            answer, call = method.with_call(request.SerializeToString(), PATIENCE_S, metadata=given)
        except grpc.RpcError as error:
            return b"", dict(error.trailing_metadata())
    return answer.raw_output_contents[0][4:], dict(call.initial_metadata())


def test_id_and_trace_of_a_caller_reach_the_node_above_and_come_back() -> None:
    """A call over gRPC goes up over HTTP, in the caller's trace."""
    with (
        logged() as stream,
        running(Upper(mark="@up"), name="up", **fixed(*SOON)) as up,
        running(Upper(), name="end", upstreams=(up.url,), grpc=ANY_PORT, **fixed(*LATE)) as end,
    ):
        until(lambda: target_of(end, 3) == up.url)
        answer, said = infer(end, "film", x_request_id="order-7", **PARENT)
    assert answer == b"FILM@up"
    assert (said["x-request-id"], said["pliant-node"], said["pliant-model-version"]) == ("order-7", "up", "1")
    access = {
        line["node"]: line
        for line in lines_of(stream)
        if line.get("request_id") == "order-7" and line["logger"] == "pliant.serve.access"
    }
    assert access.keys() == {"end", "up"}
    assert {line["trace_id"] for line in access.values()} == {TRACE}
    assert said["traceparent"] == f"00-{TRACE}-{access['end']['span_id']}-01"
    assert len({SPAN, *(line["span_id"] for line in access.values())}) == 3
    assert (access["end"]["path"], access["end"]["grpc_status"]) == (INFER, "OK")
    assert access["end"]["seconds"] > 0.0


def test_refusals_and_failures_carry_the_id_and_lines_of_the_model_name_it() -> None:
    """What a caller reports is found in the log; an id that could break a line is replaced."""
    with logged() as stream, running(Upper(), name="here", grpc=ANY_PORT) as node:
        _, failed = infer(node, "bug", x_request_id="seven")
        _, other = infer(node, "fine", x_request_id="x" * 129)
    lines = lines_of(stream)
    assert failed["x-request-id"] == "seven"
    assert re.fullmatch("[0-9a-f]{16}", other["x-request-id"])
    (traceback,) = [line for line in lines if "exception" in line]
    assert (traceback["request_id"], traceback["model"], traceback["model_version"]) == (
        "seven",
        "upper",
        "1",
    )
    (access,) = [line for line in lines if line.get("request_id") == "seven" and "grpc_status" in line]
    assert access["grpc_status"] == "INTERNAL"
    with running(Upper(), tokens=("client" * 4,), grpc=ANY_PORT) as node:
        assert infer(node, "a", x_request_id="eight")[1]["x-request-id"] == "eight"


def test_a_call_is_a_span_with_those_of_its_stages_below() -> None:
    """Read back from OpenTelemetry's SDK."""
    pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry's SDK is missing")
    from opentelemetry.trace import SpanKind, StatusCode

    from tests.serve.telemetry.test_otel_tracer import recorder, spans_of

    tracer, exporter = recorder()
    with running(Upper(), tracer=tracer, name="here", grpc=ANY_PORT) as node:
        infer(node, "fine", x_request_id="seven", **PARENT)
        infer(node, "bug", x_request_id="eight")
    fine, failed = spans_of(exporter, "seven"), spans_of(exporter, "eight")["hop"]
    assert fine.keys() == {"hop", "queue", "compute"}
    hop: Any = fine["hop"]
    assert f"{hop.context.trace_id:032x}" == TRACE
    assert f"{hop.parent.span_id:016x}" == SPAN
    assert hop.kind is SpanKind.SERVER
    assert hop.name == INFER.removeprefix("/")
    about = {name: hop.attributes[name] for name in ("rpc.system", "rpc.method", "rpc.grpc.status_code")}
    assert about == {"rpc.system": "grpc", "rpc.method": "ModelInfer", "rpc.grpc.status_code": 0}
    assert hop.attributes["pliant.model"] == "upper"
    assert hop.status.status_code is StatusCode.UNSET
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.attributes["rpc.grpc.status_code"] == grpc.StatusCode.INTERNAL.value[0]


def test_a_call_that_loads_its_model_shows_that_and_no_later_line_has_its_id() -> None:
    """The upstreams of a model are asked for as long as it is loaded, which is not part of the call."""
    pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry's SDK is missing")
    from tests.serve.telemetry.test_otel_tracer import recorder, spans_of

    tracer, exporter = recorder()
    slow, other = Shelf("slow", n_bytes=60), Shelf("other", n_bytes=60, is_initial=False)
    options = {"grpc": ANY_PORT, "tracer": tracer, "upstreams": ("http://127.0.0.1:9",)}
    with logged() as stream, serving(slow, other, memory=MemoryBudget(100), **options) as node:

        def said(n: int) -> None:
            until(lambda: stream.getvalue().count("127.0.0.1:9 is not used") == n)

        said(1)
        assert change(node, "other", "load").status_code == 200  # which evicts the other one
        said(2)
        answer, _ = infer(node, "film", "slow", x_request_id="seven")
        said(3)
    assert answer.startswith(b"FILM")
    assert spans_of(exporter, "seven").keys() == {"hop", "load", "queue", "compute"}
    lines = [line for line in lines_of(stream) if "is not used" in line["message"]]
    assert [line.get("request_id") for line in lines] == [None, None, None]


def test_calls_are_counted_in_the_metrics_of_their_model() -> None:
    """A call that names no known model counts in those of none."""
    second = Upper("second", identity="id-2")
    with running(Upper("first"), (second,), name="here", grpc=ANY_PORT) as node:
        infer(node, "fine", "second")
        infer(node, "bug", "second")
        infer(node, "fine", "none")
        counted = {
            (model, status): metric(
                node, f'pliant_responses_total{{model="{model}",path="{INFER}",status="{status}"}}'
            )
            for model, status in (("second", "OK"), ("second", "INTERNAL"), ("", "NOT_FOUND"))
        }
    assert counted == dict.fromkeys(counted, 1.0)
