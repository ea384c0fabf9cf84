"""A node over HTTP: its paths, its errors, and what it refuses before a model sees it."""

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import httpx
import pytest

from pliant.errors import NodeError
from pliant.serve.access.security import ListenAddress
from pliant.serve.http.limits import Limits
from pliant.serve.node.start_node import LENGTHS
from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, Running, asking, running
from tests.serve.test_routing import route

TOKEN = "0123456789abcdef"
INFER = "/v2/models/upper/infer"


@pytest.fixture(scope="module")
def served() -> Upper:
    return Upper()


@pytest.fixture(scope="module")
def node(served: Upper) -> Iterator[Running]:
    with running(served, limits=Limits(body_bytes=4096, head_bytes=4096), name="here") as run:
        yield run


@pytest.fixture
def client(node: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=node.url, timeout=PATIENCE_S) as client:
        yield client


def refused(response: httpx.Response, status: int, word: str = "") -> None:
    """An error as the protocol has it."""
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    assert word in response.json()["error"]


def tensor(**changes: Any) -> dict[str, Any]:
    given = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"], **changes}
    return {name: value for name, value in given.items() if value is not None}


def test_health_metadata_and_readiness_are_as_the_protocol_says(client: httpx.Client) -> None:
    """Public clients ask these before they ask anything else."""
    states = {
        "/v2/health/live": {"live": True},
        "/v2/health/ready": {"ready": True},
        "/v2/models/upper/ready": {"name": "upper", "ready": True},
        "/v2/models/upper/versions/1/ready": {"name": "upper", "ready": True},
    }
    for path, state in states.items():  # KServe's client reads the bodies
        assert (client.get(path).status_code, client.get(path).json()) == (200, state)
    assert client.get("/v2").json()["name"] == "here"
    about = client.get("/v2/models/upper").json()
    assert about["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert client.get("/v2/models/upper/versions/1").json() == about


def test_an_answer_has_the_requests_id_and_the_outputs_asked_for(client: httpx.Client) -> None:
    """All outputs unless some are named, in their order."""
    reply = client.post(INFER, content=asking("abc", id="7")).json()
    assert reply == {
        "model_name": "upper",
        "model_version": "1",
        "id": "7",
        "outputs": [
            {"name": "upper", "datatype": "BYTES", "shape": [1], "data": ["ABC"]},
            {"name": "n", "datatype": "INT64", "shape": [1], "data": [3]},
        ],
        "parameters": {"endpoint": "local"},
    }
    some = client.post(INFER, content=asking("abc", outputs=[{"name": "n"}])).json()
    assert [output["name"] for output in some["outputs"]] == ["n"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b'{"inputs":{}}',
        b'{"inputs":[{}]}',
        b"[" * 100_000,
        b'{"inputs":' + b"[" * 3000,
        b'{"inputs":[],"a":1e999999}',
    ],
)
def test_what_is_no_request_is_refused_with_a_reason(client: httpx.Client, body: bytes) -> None:
    """[crime.damage] malformed JSON."""
    response = client.post(INFER, content=body[:4000])
    refused(response, 400)


@pytest.mark.parametrize(
    ("inputs", "word"),
    [
        ([], "takes text"),
        ([tensor(name="other")], "takes text"),
        ([tensor(), tensor()], "takes text"),
        ([tensor(), tensor(name="more")], "takes text"),
        ([tensor()] * 200, "takes text"),
        ([tensor(datatype="INT64", data=[1])], "must be BYTES[-1]"),
        ([tensor(datatype="TEXT")], "unknown datatype"),
        ([tensor(datatype="\u0000" * 50)], "unknown datatype"),
        ([tensor(shape=[2000], data=["a"] * 2000)], "at most 1024 rows"),
        ([tensor(shape=[1, 1])], "must be BYTES[-1]"),
        ([tensor(shape=[])], "must be BYTES[-1]"),
        ([tensor(shape=[-1])], "shape"),
        ([tensor(shape=[2**70])], "shape"),
        ([tensor(shape="1")], "shape"),
        ([tensor(data=["a", "b"])], "elements"),
        ([tensor(data=[1])], "data"),
        ([tensor(data=[["a"], ["b"]])], "data"),
        ([tensor(data=None)], "neither"),
        ([tensor(parameters=[])], "parameters"),
        ([tensor(parameters={"shared_memory_region": "x"})], "not supported"),
        ([tensor(parameters={"binary_data_size": 5})], "bytes are left"),
        ([tensor(parameters={"binary_data_size": -1}, data=None)], "bytes are left"),
        ([tensor(parameters={"binary_data_size": "5"}, data=None)], "bytes are left"),
        ([tensor(parameters={"binary_data_size": True}, data=None)], "bytes are left"),
        ([tensor(parameters={"binary_data_size": 0}, data=["a"])], "both"),
        ([tensor(data=["no"])], "cannot be read"),
    ],
)
def test_wrong_tensors_are_refused_with_a_reason(client: httpx.Client, inputs: list[Any], word: str) -> None:
    """[crime.damage] wrong dtypes, shapes and names; the model is never given what it cannot take."""
    body = json.dumps({"inputs": inputs}).encode()
    if len(body) > 4096:
        refused(client.post(INFER, content=body), 413)
    else:
        refused(client.post(INFER, content=body), 400, word)


def test_an_input_that_is_too_long_is_refused_with_the_limit(client: httpx.Client) -> None:
    """Before it waits for a turn that it would take from others."""
    refused(client.post(INFER, content=asking("a" * 1001)), 400, "at most 1000")


@pytest.mark.parametrize(
    "outputs",
    [
        [{"name": "none"}],
        [{"name": "n"}, {"name": "n"}],
        [{"name": "n", "parameters": {"binary_data": 1}}],
        [7],
    ],
)
def test_wrong_outputs_are_refused(client: httpx.Client, outputs: list[Any]) -> None:
    """A client that asks for what is not there learns so, not by a missing key."""
    refused(client.post(INFER, content=asking("a", outputs=outputs)), 400)


@pytest.mark.parametrize("length", ["-1", "0", "x", "1e3", "99999", "9" * 30, "٣"])
def test_a_binary_body_of_another_length_is_refused(client: httpx.Client, length: str) -> None:
    """[crime.damage] malformed binary bodies."""
    headers = [(b"Inference-Header-Content-Length", length.encode())]
    refused(client.post(INFER, content=asking("a") + b"tail", headers=headers), 400)


def test_binary_tensors_must_be_all_there_and_nothing_more(client: httpx.Client) -> None:
    """[crime.damage] bodies cut short, and too long, at every byte."""
    head = json.dumps(
        {"inputs": [tensor(data=None, parameters={"binary_data_size": 7})], "outputs": [{"name": "n"}]}
    ).encode()
    body = head + b"\x03\x00\x00\x00abc"
    length = {"Inference-Header-Content-Length": str(len(head))}
    assert client.post(INFER, content=body, headers=length).json()["outputs"][0]["data"] == [3]
    for n in range(len(head), len(body)):
        refused(client.post(INFER, content=body[:n], headers=length), 400)
    refused(client.post(INFER, content=body + b"x", headers=length), 400, "follow")


def test_a_body_that_is_too_long_is_refused_unread(client: httpx.Client) -> None:
    """Said, or come upon in pieces without a length."""
    refused(client.post(INFER, content=b" " * 5000), 413)

    def pieces() -> Iterator[bytes]:
        for _ in range(5):
            yield b" " * 1000

    refused(client.post(INFER, content=pieces()), 413)


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "gzip;q=1"])
def test_a_body_in_another_coding_is_refused(client: httpx.Client, coding: str) -> None:
    """And the answer says which are read, as HTTP has it (RFC 9110, 15.5.16)."""
    response = client.post(INFER, content=b"x", headers={"content-encoding": coding})
    refused(response, 415, "gzip, deflate")
    assert response.headers["accept-encoding"] == "gzip, deflate, identity"


def test_other_paths_and_methods_are_refused(client: httpx.Client) -> None:
    """With the errors of HTTP, in the protocol's form."""
    refused(client.get("/v2/models/other"), 404, "this node has no model 'other'; it has 'upper'")
    refused(client.get("/v2/models/upper/infer/"), 404)
    refused(client.get("/%2e%2e/etc/passwd"), 404)
    response = client.get(INFER)
    refused(response, 405, "GET is not allowed here. Use POST.")
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("where", ["name", "datatype", "data", "id", "parameters", "outputs"])
def test_bytes_that_are_not_utf_8_are_refused(client: httpx.Client, where: str) -> None:
    """Wherever they stand: they were a 500 with a traceback in the log."""
    words = {name: f"?{name}" for name in ("name", "datatype", "data", "id", "parameters", "outputs")}
    given = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [words["data"]]}
    request = {
        "id": words["id"],
        "parameters": {"x": words["parameters"]},
        "inputs": [given | ({where: words[where]} if where in ("name", "datatype") else {})],
        "outputs": [{"name": words["outputs"] if where == "outputs" else "upper"}],
    }
    text = json.dumps(request)
    assert f"?{where}" in text
    body = text.encode().replace(f"?{where}".encode(), b"\xff")
    refused(client.post(INFER, content=body), 400)


def test_answers_are_counted_by_status() -> None:
    """Failures too, which no metric showed: whoever operates the node looks there first."""
    with (
        running(Upper(), tokens=(TOKEN,), limits=Limits(body_bytes=4096)) as node,
        httpx.Client(base_url=node.url, timeout=PATIENCE_S) as client,
    ):
        good = {"authorization": f"Bearer {TOKEN}"}
        asked = [
            (200, asking("a"), {}),
            (400, b"{", {}),
            (401, asking("a"), {"authorization": "Bearer x"}),
            (403, asking("a"), route(sender="x")),
            (413, b"x" * 5000, {}),
            (415, b"x", {"content-encoding": "br"}),
            (422, asking("a", parameters={"accuracy_floor": 0.9}), {}),
            (500, asking("bug"), {}),
        ]
        for status, body, headers in asked:
            assert client.post(INFER, content=body, headers=good | headers).status_code == status
        assert client.get("/nowhere", headers=good).status_code == 404
        text = client.get("/metrics", headers=good).text
        begins = 'pliant_responses_total{model="upper",model_version="1"'
        for status, *_ in asked:
            assert f'{begins},path="{INFER}",status="{status}"}} 1.0' in text
        assert 'pliant_responses_total{model="",model_version="",path="other",status="404"} 1.0' in text


def test_a_bug_answers_500_and_the_node_goes_on(client: httpx.Client) -> None:
    """Nothing about the inside is told to strangers, and nobody else suffers."""
    response = client.post(INFER, content=asking("bug"))
    refused(response, 500)
    assert "ZeroDivision" not in response.text
    assert client.post(INFER, content=asking("a")).status_code == 200


def test_everything_but_health_asks_for_the_token() -> None:
    """[crime.damage] wrong tokens."""
    with (
        running(Upper(), tokens=(TOKEN,)) as node,
        httpx.Client(base_url=node.url, timeout=PATIENCE_S) as client,
    ):
        assert client.get("/v2/health/live").status_code == 200
        paths = ("/v2", "/v2/models/upper", "/metrics", "/openapi.json", "/nowhere", "/v2/models/upper/ready")
        for path in paths:
            refused(client.get(path), 401, "bearer")
        for wrong in ("Bearer x", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN):
            response = client.post(INFER, content=asking("a"), headers={"authorization": wrong})
            refused(response, 401, "no valid token")
            assert response.headers["www-authenticate"] == "Bearer"
        twice = [("authorization", f"Bearer {TOKEN}"), ("authorization", "Bearer x")]
        refused(client.get("/v2", headers=twice), 401)
        good = {"authorization": f"Bearer {TOKEN}"}
        assert client.post(INFER, content=asking("a"), headers=good).status_code == 200
        assert client.get("/metrics", headers=good).status_code == 200


def test_a_node_does_not_listen_to_strangers_without_a_token() -> None:
    """Before anything is bound; the model that was opened is closed again."""
    served = Upper()
    with pytest.raises(NodeError, match="--insecure"), running(served, listen=ListenAddress("0.0.0.0", 0)):
        pass
    assert served.is_closed


def test_an_address_in_use_is_said(node: Running) -> None:
    """Not a traceback of the socket's."""
    host, _, port = node.address.partition(":")
    with (
        pytest.raises(NodeError, match="nothing can listen"),
        running(Upper(), listen=ListenAddress(host, int(port))),
    ):
        pass


def test_a_node_that_has_no_time_to_learn_still_knows_two_lengths() -> None:
    """From one, what is longer would seem to take in proportion; each is answered once uncounted."""
    upper = Upper()
    with running(upper, learn_s=1e-9) as node:
        assert upper.answered == [b"a"] * 2 + [b"a" * 64] * 2
        url = f"{node.url}/v2/pliant/route"
        here = httpx.get(url, params={"length": 400}, timeout=PATIENCE_S).json()["candidates"][0]
        assert 0 < here["total_s"] < 60


def test_a_length_is_learned_before_the_next_one() -> None:
    """Of nine lengths in turns, a session that keeps eight images compiled each anew, and was timed at that:
    a node of 0.1 ms told 43, refused what was due before, and got no requests from others."""
    upper = Upper()
    with running(upper, learn_s=3600.0):
        runs = [(len(text), len(list(same))) for text, same in groupby(upper.answered)]
    assert sorted(runs) == [(n, 4) for n in sorted(LENGTHS)]
