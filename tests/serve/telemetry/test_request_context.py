"""One request is found again everywhere: in answers, at upstreams, in log lines of every node and thread."""

import io
import json
import logging
import re
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from pliant.serve.telemetry.log_lines import log_to
from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, Running, asking, fixed, running
from tests.serve.repository.test_repository_api import AS_OPERATOR, Shelf, serving
from tests.serve.test_routing import LATE, SOON, target_of, until

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "congo=t61rcWkgMzE"}
_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]")


@contextmanager
def logged(form: Any = "json") -> Iterator[io.StringIO]:
    """What the process logs meanwhile."""
    stream, logger = io.StringIO(), logging.getLogger("pliant.serve")
    level = logger.level
    handler = log_to(stream, form, is_verbose=True)
    try:
        yield stream
    finally:
        logging.captureWarnings(False)
        logging.getLogger().removeHandler(handler)
        logger.setLevel(level)


def lines_of(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@contextmanager
def two_nodes() -> Iterator[tuple[Running, Running]]:
    """(an end node that passes everything on, the node above it)"""
    with (
        running(Upper(mark="@up"), name="up", **fixed(*SOON)) as up,
        running(Upper(mark="@end"), name="end", upstreams=(up.url,), **fixed(*LATE)) as end,
    ):
        until(lambda: target_of(end, 3) == up.url)
        yield end, up


def test_warnings_are_lines_of_json_too() -> None:
    """A collector of JSON lines stops at the first other one."""
    with warnings.catch_warnings(), logged() as stream:
        warnings.simplefilter("always")
        warnings.warn("m is compiled again", stacklevel=1)
    (line,) = lines_of(stream)
    assert "m is compiled again" in line["message"]


def test_id_and_trace_of_a_client_reach_the_node_above_and_come_back() -> None:
    """Each hop is a span of its own in the client's trace."""
    with logged() as stream, two_nodes() as (end, _):
        answer = end.post("a film", headers={**PARENT, "X-Request-Id": "order-7"})
        assert answer.json()["outputs"][0]["data"] == ["A FILM@up"]
        assert answer.headers["x-request-id"] == "order-7"
        assert answer.headers["pliant-model-version"] == "1"
    assert answer.headers["traceparent"].startswith(f"00-{TRACE}-")
    mine = [line for line in lines_of(stream) if line.get("request_id") == "order-7"]
    access = {line["node"]: line for line in mine if line["logger"] == "pliant.serve.access"}
    assert access.keys() == {"end", "up"}
    assert {line["trace_id"] for line in mine} == {TRACE}
    assert {(line["model"], line["model_version"], line["identity"]) for line in mine} == {
        ("upper", "1", "upper")
    }
    spans = {node: line["span_id"] for node, line in access.items()}
    assert len({*spans.values(), SPAN}) == 3
    assert answer.headers["traceparent"] == f"00-{TRACE}-{spans['end']}-01"
    for line in access.values():
        assert (line["method"], line["path"], line["status"]) == ("POST", "/v2/models/upper/infer", 200)
        assert line["seconds"] > 0.0


def test_a_request_without_an_id_gets_one_and_no_two_the_same() -> None:
    with running(Upper(), name="here") as node, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: node.post(f"film {n}"), range(32)))
    assert len({answer.headers["x-request-id"] for answer in answers}) == 32
    assert len({answer.headers["traceparent"] for answer in answers}) == 32
    assert all(_TRACEPARENT.fullmatch(answer.headers["traceparent"]) for answer in answers)


@pytest.mark.parametrize("given", ["x" * 129, "a\tb", "\xe4"])
def test_an_id_that_could_break_a_log_line_is_replaced(given: str) -> None:
    with running(Upper()) as node:
        answer = node.post("a", headers={"X-Request-Id": given.encode("latin-1")})
    assert re.fullmatch("[0-9a-f]{16}", answer.headers["x-request-id"])


def test_log_lines_of_the_compute_thread_name_the_request() -> None:
    """A model's own failure is logged there, with its traceback."""
    with logged() as stream, running(Upper(), name="here") as node:
        assert node.post("bug", headers={"X-Request-Id": "seven"}).status_code == 500
        assert node.post("fine", headers={"X-Request-Id": "eight"}).status_code == 200
    (failed,) = [line for line in lines_of(stream) if "exception" in line]
    assert (failed["request_id"], failed["model"], failed["level"]) == ("seven", "upper", "error")
    assert "Traceback" in failed["exception"]


def test_requests_at_once_keep_their_lines_apart() -> None:
    """16 clients; every line of a request has the trace that its answer names."""
    with logged() as stream, two_nodes() as (end, _), ThreadPoolExecutor(16) as pool:
        ids = [f"client-{n}" for n in range(64)]
        answers = dict(
            zip(ids, pool.map(lambda id: end.post(id, headers={"X-Request-Id": id}), ids), strict=True)
        )
    traces: dict[str, set[str]] = {}
    for line in lines_of(stream):
        if "request_id" in line:
            traces.setdefault(line["request_id"], set()).add(line["trace_id"])
    for id, answer in answers.items():
        assert answer.headers["x-request-id"] == id
        assert traces[id] == {answer.headers["traceparent"].split("-")[1]}


def test_text_lines_name_the_request_too() -> None:
    with logged("text") as stream, running(Upper(), name="here") as node:
        node.post("a", headers={"X-Request-Id": "order-7", **PARENT})
    (line,) = [line for line in stream.getvalue().splitlines() if "POST" in line]
    assert f"[request_id=order-7 trace_id={TRACE} span_id=" in line
    assert line.endswith(" model=upper model_version=1 identity=upper]")


def test_an_id_of_a_client_does_not_make_two_requests_one() -> None:
    """Proxies give the calls of one page the same X-Request-Id: upstreams still run each of them."""
    above = Upper(mark="@up")
    with (
        running(above, name="up", **fixed(*SOON)) as up,
        running(Upper(mark="@end"), name="end", upstreams=(up.url,), **fixed(*LATE)) as end,
    ):
        until(lambda: target_of(end, 3) == up.url)
        for _ in range(2):
            assert end.post("same", headers={"X-Request-Id": "page-1"}).status_code == 200
    assert above.answered.count(b"same") == 2


def test_refusals_carry_the_id_too() -> None:
    """What a client reports is found in the log."""
    with running(Upper(), tokens=("client" * 4,)) as node:
        answer = httpx.post(
            f"{node.url}/v2/models/upper/infer",
            content=asking("a"),
            headers={"X-Request-Id": "seven"},
            timeout=PATIENCE_S,
        )
    assert (answer.status_code, answer.headers["x-request-id"]) == (401, "seven")


def test_calls_of_no_model_and_of_shared_paths_carry_the_id_too() -> None:
    """The repository, unknown paths, refusals and embeddings; not the page, which asks all the time."""
    shelf, headers = Shelf("first"), {**PARENT, **AS_OPERATOR, "X-Request-Id": "seven"}
    calls = (
        ("POST", "/v2/repository/index", 200),
        ("POST", "/v2/repository/models/first/load", 200),
        ("POST", "/v2/repository/models/none/unload", 404),
        ("GET", "/v2/models/first/versions/9/infer", 404),
        ("POST", "/v1/embeddings", 404),
    )
    unobserved = ("/", "/page/main.js", "/v2/pliant/outlook", "/v2/health/live", "/metrics")
    with logged() as stream, serving(shelf, tokens=("client" * 4,)) as node:
        for method, path, status in calls:
            body = {"model": "first", "input": "a"} if path == "/v1/embeddings" else None
            answer = httpx.request(method, node.url + path, headers=headers, json=body, timeout=PATIENCE_S)
            assert (answer.status_code, answer.headers["x-request-id"]) == (status, "seven"), path
            assert answer.headers["traceparent"].startswith(f"00-{TRACE}-")
            version = "1" if path == "/v1/embeddings" else None
            assert answer.headers.get("pliant-model-version") == version
        refused = httpx.post(f"{node.url}/v2/repository/index", headers={"X-Request-Id": "eight"})
        assert (refused.status_code, refused.headers["x-request-id"]) == (401, "eight")
        for path in unobserved:
            answer = httpx.get(node.url + path, headers=headers, timeout=PATIENCE_S)
            assert answer.status_code == 200
            assert "x-request-id" not in answer.headers
    access = [line for line in lines_of(stream) if line["logger"] == "pliant.serve.access"]
    found = [(line["method"], line["path"], line["status"]) for line in access]
    assert found == [*calls, ("POST", "/v2/repository/index", 401)]
    assert [line.get("model") for line in access] == [None, None, None, None, "first", None]
    assert {line["trace_id"] for line in access[:-1]} == {TRACE}
