"""Guard: what a node is over HTTP: its routes and their methods, status and headers, its OpenAPI document.

Protects clients (Open Inference Protocol v2), other nodes, and dashboards that read the metrics' names. What
is compared comes over a socket, so no move of a module changes it. A route, header, schema or metric may be
added; one that goes needs a line in CHANGELOG.md, and one that other nodes read keeps working for a version
(`tests/guards/test_messages.py`). Update by `pytest tests/guards/test_http.py --update-golden`.
"""

import json
import re
from collections.abc import Callable, Iterator

import httpx
import pytest

from pliant.route.node_identity import Identity
from pliant.route.node_messages import ROUTE_HEADER, RouteMessage, encode_route
from tests.serve.models import Upper
from tests.serve.nodes import Running, asking, running

MODEL = "/v2/models/upper"
PATHS = (
    "/v2", "/v2/health/live", "/v2/health/ready", MODEL, f"{MODEL}/ready", f"{MODEL}/infer",
    f"{MODEL}/versions/1", f"{MODEL}/versions/1/ready", f"{MODEL}/versions/1/infer", f"{MODEL}/versions/2",
    "/v2/models/other", "/v2/pliant/curve", "/v2/pliant/route?length=3", "/v2/pliant/tell", "/metrics",
    "/openapi.json", "/", "/docs",
)  # fmt: skip
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")
ROUTE = {ROUTE_HEADER: encode_route(RouteMessage(path=("below",), hops_left=3, sender="below"))}
IDENTITY = Identity("upper", "0").headers()
ASKED = asking("a film", id="7", parameters={"deadline_s": 60})


@pytest.fixture(scope="module")
def node() -> Iterator[Running]:
    with running(Upper(), name="here") as found:
        yield found


@pytest.fixture(scope="module")
def http(node: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=node.url, timeout=60) as client:
        yield client


def _shown(name: str, answer: httpx.Response) -> str:
    """Status, type, and the names of all headers."""
    headers = ", ".join(sorted(answer.headers))
    return f"{name}: {answer.status_code} {answer.headers.get('content-type', '-')} [{headers}]"


def test_routes_and_methods_are_answered_as_they_were(
    http: httpx.Client, golden: Callable[[str, str], None]
) -> None:
    """Every path with every method, those that are refused too."""
    lines = []
    for path in PATHS:
        for method in METHODS:
            body = ASKED if path.endswith("infer") and method == "POST" else None
            lines.append(_shown(f"{method} {path}", http.request(method, path, content=body)))
    golden("guards/http_routes.txt", "\n".join(lines) + "\n")


def test_answers_to_clients_and_to_nodes_have_the_headers_they_had(
    http: httpx.Client, golden: Callable[[str, str], None]
) -> None:
    """JSON and binary, from a client and from another node, and requests that cannot be answered."""
    binary = json.loads(ASKED) | {"parameters": {"binary_data_output": True}}
    infer = f"{MODEL}/infer"
    cases = {
        "a client's": (infer, ASKED, {}),
        "a client's, to be answered in binary": (infer, json.dumps(binary).encode(), {}),
        "a client's with an id": (infer, ASKED, {"Pliant-Request": "abc"}),
        "a node's": (infer, ASKED, {**ROUTE, **IDENTITY}),
        "a node's of the protocol before": (infer, ASKED, {**ROUTE, **Identity("upper", "0", 2).headers()}),
        "a node's of protocol 1": (infer, ASKED, ROUTE),
        "a node's with another model": (infer, ASKED, {**ROUTE, **Identity("other", "0").headers()}),
        "a node's of a protocol too far": (infer, ASKED, {**ROUTE, **Identity("upper", "9", 5).headers()}),
        "no JSON": (infer, b"{", {}),
        "no such input": (infer, b'{"inputs": []}', {}),
        "an input that cannot be read": (infer, asking("no"), {}),
        "a bug": (infer, asking("bug"), {}),
        "an accuracy that there is not": (infer, asking("a", parameters={"accuracy_floor": 0.9}), {}),
        "a broadcast": ("/v2/pliant/tell", b"{}", IDENTITY),
        "a broadcast of a protocol too far": ("/v2/pliant/tell", b"{}", Identity("upper", "9", 5).headers()),
    }
    lines = []
    for name, (path, body, headers) in cases.items():
        lines.append(_shown(name, http.post(path, content=body, headers=headers)))
    pinged = http.get("/v2/pliant/curve?model=upper", headers={**ROUTE, **IDENTITY})
    lines.append(_shown("a ping", pinged))
    lines.append(f"a ping's keys: {', '.join(sorted(pinged.json()))}")
    golden("guards/http_headers.txt", "\n".join(lines) + "\n")


def test_a_token_guards_all_but_health(golden: Callable[[str, str], None]) -> None:
    """Who may ask what: nobody, a client, another node."""
    lines = []
    tokens = {"tokens": ("client" * 4,), "peer_tokens": ("peer" * 6,)}
    with running(Upper(), name="here", **tokens) as node, httpx.Client(base_url=node.url, timeout=60) as http:
        for who, token in (("nobody", None), ("a client", "client" * 4), ("a node", "peer" * 6)):
            headers = {} if token is None else {"authorization": f"Bearer {token}"}
            answers = {path: http.get(path, headers=headers) for path in PATHS}
            lines += [f"{who}: GET {path}: {answer.status_code}" for path, answer in answers.items()]
            if token is None:
                lines.append(_shown("nobody", answers["/v2"]))
        document = http.get("/openapi.json", headers=headers).json()
    lines.append(f"security: {json.dumps(document['security'])}")
    golden("guards/http_tokens.txt", "\n".join(lines) + "\n")


def test_the_openapi_document_is_as_it_was(http: httpx.Client, golden: Callable[[str, str], None]) -> None:
    """Clients are generated from it."""
    document = http.get("/openapi.json").json()
    golden("guards/openapi.json", json.dumps(document, indent=1, sort_keys=True) + "\n")


def test_metrics_have_the_names_types_and_labels_they_had(
    http: httpx.Client, golden: Callable[[str, str], None]
) -> None:
    """Dashboards and alerts are written for them."""
    http.post(f"{MODEL}/infer", content=ASKED, headers={**ROUTE, **IDENTITY})
    lines = http.get("/metrics").text.splitlines()
    types = [line.removeprefix("# TYPE ") for line in lines if line.startswith("# TYPE ")]
    samples = [line for line in lines if not line.startswith("#")]
    labelled = {re.sub(r'="[^"]*"', "", line.rpartition(" ")[0]) for line in samples}
    golden("guards/http_metrics.txt", "\n".join([*types, "", *sorted(labelled)]) + "\n")
