"""A response says which endpoint answered, and on request why; a request names its own objective."""

import json
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest

from pliant.route.choice import choose_endpoint
from pliant.route.choice.energy import PowerModel
from pliant.serve.access.security import bearer
from pliant.serve.grpc.wire_messages import SERVICE, message
from pliant.serve.upstream.upstreams import REQUEST_HEADER
from tests.serve.models import Upper
from tests.serve.nodes import ANY_PORT, PATIENCE_S, Running, asking, fixed, running
from tests.serve.relay import Relay
from tests.serve.test_routing import HONEST, LATE, SOON, explained, route, target_of, until

STRONG = PowerModel("strong", 0.0, 1e3, "made up")


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Running, Running]]:
    """An end node, which rather asks above where an input is long, and the node above it."""
    with running(Upper(mark="@up"), name="up", **fixed(*HONEST)) as up:
        options = {"upstreams": (up.url,), "grpc": ANY_PORT, **fixed(*SOON)}
        with running(Upper(mark="@end"), name="end", **options) as end:
            until(lambda: target_of(end, 400) == up.url)
            yield end, up


def said(node: Running, text: str = "x", status: int = 200, **parameters: object) -> Any:
    """The parameters of the response to `text`; what it says where it is refused."""
    answer = node.post(text) if not parameters else ask(node, text, parameters)
    assert answer.status_code == status, answer.text
    return answer.json().get("parameters") if status == 200 else answer.json()["error"]


def ask(node: Running, text: str, parameters: dict[str, object]) -> httpx.Response:
    url = f"{node.url}/v2/models/upper/infer"
    return httpx.post(url, content=asking(text, parameters=parameters), timeout=PATIENCE_S)


def objective_above(between: Relay) -> Any:
    """What the last request that came up named."""
    came = next(came for came, _ in reversed(between.passed) if came.start.endswith("/infer"))
    return json.loads(came.headers["pliant-route"]).get("objective")


def test_a_response_names_the_endpoint_as_python_does(
    pair: tuple[Running, Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No parameter more, and no other endpoint is ranked, unless the request asks for it."""

    def rank(*_: object) -> None:
        raise AssertionError("the others were ranked")

    monkeypatch.setattr(choose_endpoint, "rank", rank)
    end, up = pair
    assert said(end) == {"endpoint": "local"}
    assert said(end, "x" * 400) == {"endpoint": "up"}
    assert said(up) == {"endpoint": "local"}


def test_a_response_says_why_where_the_request_asks(pair: tuple[Running, Running]) -> None:
    """The view of the node that the client asked, also where another one answered."""
    end, up = pair
    for text, target, name in (("x", "local", "local"), ("x" * 400, up.url, "up")):
        found = said(end, text, explain=True)
        assert found.keys() == {"endpoint", "reason", "hedged", "endpoints"}
        assert (found["endpoint"], found["hedged"]) == (name, False)
        assert found["reason"] == "the most accurate, then the least time"
        rows = json.loads(found["endpoints"])
        wanted = explained(end, len(text))["candidates"]
        assert [row["target"] for row in rows] == ["local", up.url]
        assert [row["target"] for row in rows if row["is_chosen"]] == [target]
        for row, other in zip(rows, wanted, strict=True):
            assert row.keys() == other.keys()
            assert row["answer_s"] == pytest.approx(other["answer_s"])
    assert said(end, "x", explain=False) == {"endpoint": "local"}
    found = said(end, "x", explain=True, deadline_s=3000.0)
    assert found["reason"] == "the least time within 0.25 points of the most accurate in time"


def test_of_several_rows_the_first_is_explained(pair: tuple[Running, Running]) -> None:
    """Each row may have another endpoint."""
    end, _ = pair
    tensor = {"name": "text", "shape": [3], "datatype": "BYTES", "data": ["x", "y" * 400, "z"]}
    asked = {"inputs": [tensor], "parameters": {"explain": True, "objective": "time"}}
    url = f"{end.url}/v2/models/upper/infer"
    answer = httpx.post(url, json=asked, timeout=PATIENCE_S).json()
    assert answer["outputs"][1]["data"] == [1, 400, 1]
    assert answer["parameters"]["endpoint"] == "local,up"
    (chosen,) = (row for row in json.loads(answer["parameters"]["endpoints"]) if row["is_chosen"])
    assert chosen["target"] == "local"


def test_all_endpoints_are_shown_to_who_may_see_them() -> None:
    """Their addresses are for operators, as those of `route explain` are; also if both use one id."""
    tokens = {"client": "client-token-0123456", "operator": "operator-token-0123456"}
    options = {"tokens": (tokens["client"],), "operator_tokens": (tokens["operator"],)}
    with running(Upper(), name="here", **options) as node:
        for role, more in (("operator", {"endpoints"}), ("client", set())):
            headers = {**bearer(tokens[role]), REQUEST_HEADER: "the same"}
            url, asked = f"{node.url}/v2/models/upper/infer", asking("x", parameters={"explain": True})
            answer = httpx.post(url, content=asked, headers=headers, timeout=PATIENCE_S).json()
            assert answer["parameters"].keys() == {"endpoint", "reason", "hedged", *more}


def test_it_is_the_same_over_grpc(pair: tuple[Running, Running]) -> None:
    """JSON text in a string parameter; a bad objective is INVALID_ARGUMENT."""
    end, up = pair
    assert end.grpc is not None
    with grpc.insecure_channel(f"{end.grpc.host}:{end.grpc.port}") as channel:
        infer = channel.unary_unary(
            f"/{SERVICE}/ModelInfer",
            request_serializer=message("ModelInferRequest").SerializeToString,
            response_deserializer=message("ModelInferResponse").FromString,
        )
        asked = message("ModelInferRequest")(model_name="upper")
        tensor = asked.inputs.add(name="text", datatype="BYTES", shape=[1])
        tensor.contents.bytes_contents.append(b"x" * 400)
        asked.parameters["explain"].bool_param = True
        asked.parameters["objective"].string_param = "time"
        found = infer(asked).parameters  # a timeout would be a deadline
        assert found["endpoint"].string_param == "up"
        assert found["reason"].string_param == "the most accurate, then the least time"
        rows = json.loads(found["endpoints"].string_param)
        assert [row["target"] for row in rows] == ["local", up.url]
        asked.parameters["objective"].string_param = "cheap"
        with pytest.raises(grpc.RpcError) as refused:
            infer(asked, timeout=PATIENCE_S)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "give time, energy, or mix:W" in refused.value.details()


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        ({"objective": "cheap"}, "'cheap' is not an objective: give time, energy, or mix:W"),
        ({"objective": 3}, "'3' is not an objective"),
        ({"objective": None}, "'None' is not an objective"),
        (
            {"objective": "energy"},
            "the power of this device is not known: give it with `pliant node --power`",
        ),
        ({"objective": "mix:0.3"}, "counts joules"),
        ({"explain": "yes"}, "explain is 'yes'; give true or false"),
    ],
)
def test_what_a_request_cannot_ask_is_refused(
    pair: tuple[Running, Running], parameters: dict[str, object], word: str
) -> None:
    """With the value and what to give instead."""
    assert word in said(pair[0], "x", 400, **parameters)


def test_a_request_names_its_objective_and_upstreams_get_it() -> None:
    """What is quick at the gateway takes its joules; the server above takes none of its own."""
    with (
        running(Upper(mark="@server"), name="server", **fixed(*HONEST)) as server,
        running(
            Upper(mark="@gateway"), name="gateway", upstreams=(server.url,), **fixed(*SOON, power=STRONG)
        ) as gateway,
        Relay(gateway.url) as between,
        running(
            Upper(mark="@end"), name="end", upstreams=(between.url,), **fixed(*LATE, power=STRONG)
        ) as end,
    ):
        until(lambda: target_of(gateway, 400) == server.url)
        until(lambda: target_of(end, 5) == between.url)
        told = []
        for objective in (None, "time", "energy", "mix:0.25"):
            found = said(end, "x" * 5, **({} if objective is None else {"objective": objective}))
            told.append((found["endpoint"], objective_above(between)))
        assert told == [
            ("gateway", None),
            ("gateway", [1.0, 0.0]),
            ("server", [0.0, 1.0]),
            ("gateway", [0.75, 0.25]),
        ]


def test_a_request_that_an_earlier_node_passed_on_is_not_refused_for_its_parameters() -> None:
    """It ignores them, so its client may have given anything; and it would exclude the node that refuses."""
    with running(Upper(mark="@up"), name="up", **fixed(*HONEST)) as up:
        passed = route(path=("end",), hops_left=7, sender="end")
        for parameters in ({"objective": "cheap"}, {"objective": "energy"}, {"explain": "yes"}):
            content = asking("ab", parameters=parameters)
            url = f"{up.url}/v2/models/upper/infer"
            answer = httpx.post(url, content=content, headers=passed, timeout=PATIENCE_S)
            assert answer.status_code == 200, answer.text
            assert "parameters" not in answer.json()
