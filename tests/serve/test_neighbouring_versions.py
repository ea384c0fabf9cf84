"""Nodes of an earlier and of a later version beside this one, above it and below it.

What an earlier one would not say yet is taken out of every message on its way, and what a later one might
say is added: requests are answered above all the same. A version that is too far away is refused by name.
"""

import json
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from pliant.ir.envelope import VERSION
from pliant.route.node_messages import CurveMessage, RouteMessage, decode_advert, decode_route
from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, asking, fixed, running
from tests.serve.relay import Change, Message, Relay
from tests.serve.test_routing import HONEST, LATE, answer_of, explained, target_of, until

ROUTE, CURVE = "pliant-route", "pliant-curve"
ADDED = {"added": {"also": [1, None]}, "more": "text"}


def earlier(message: Message) -> Message:
    """Without any field or header that has not been there from the start of the protocol."""
    headers = dict.fromkeys(("traceparent", "x_request_id", "pliant_version", "pliant_model_version"))
    return _told(message, _required).with_headers(**headers)


def later(message: Message) -> Message:
    """Of the next version of the protocol, with more fields in all that nodes say, and more headers."""
    more = {"pliant_protocol": str(VERSION + 1), "pliant_added": "x", "tracestate": "a=b"}
    answered = message.start == "200" and message.content.startswith(b'{"model_name"')
    if answered:  # as clients are answered, whose form is the field's
        content = json.dumps(json.loads(message.content) | {"parameters": ADDED}).encode()
        message = Message(message.start, message.headers, content)
    return _told(message, lambda told, kind: told | ADDED).with_headers(**more)


def _told(message: Message, change: Callable[[dict[str, Any], type], dict[str, Any]]) -> Message:
    """`change` what a node says of itself, in headers, in the answer to a ping and in a broadcast."""
    headers = {
        name: json.dumps(change(json.loads(message.headers[name]), kind), separators=(",", ":"))
        for name, kind in ((ROUTE, RouteMessage), (CURVE, CurveMessage))
        if name in message.headers
    }
    content = message.content
    if content.startswith(b'{"node"'):
        content = json.dumps(change(json.loads(content), CurveMessage)).encode()
    return Message(message.start, {**message.headers, **headers}, content)


def _required(told: dict[str, Any], kind: type) -> dict[str, Any]:
    optional = {field.name for field in msgspec.structs.fields(kind) if not field.required}
    return {
        name: value for name, value in told.items() if name not in optional - {"path", "hops_left", "sender"}
    }


@pytest.mark.parametrize("other", [earlier, later])
def test_a_node_answers_beside_a_neighbouring_version(other: Change) -> None:
    """A rollout replaces nodes one after the other. What the lower node says comes to the upper one, and the
    upper one's answers to the lower, as another version would have said it."""
    with (
        running(Upper(mark="@up"), name="up", **fixed(*HONEST)) as up,
        Relay(up.url, request=other, answer=other) as between,
        running(Upper(mark="@end"), name="end", upstreams=(between.url,), **fixed(*LATE)) as end,
    ):
        until(lambda: target_of(end, 2) == between.url)
        answer = end.post("ab", headers={"x-request-id": "r1"})
        assert answer.json()["outputs"][0]["data"] == ["AB@up"]
        assert answer.headers["pliant-node"] == "up"
        assert answer.headers["x-request-id"] == "r1"
        assert explained(end, 2)["candidates"][1]["reason"] is None
        asked = asking("ab", parameters={"explain": True, "objective": "time"})
        answer = httpx.post(f"{end.url}/v2/models/upper/infer", content=asked, timeout=PATIENCE_S)
        assert answer.json()["parameters"]["endpoint"] == "up"
        assert answer.json()["parameters"]["reason"] == "the most accurate, then the least time"


@pytest.mark.parametrize("is_above", [True, False])
def test_a_node_that_is_too_far_away_is_refused_by_both_versions(is_above: bool) -> None:
    """It is left out, requests are answered below, and the reason says what to do."""

    def far(message: Message) -> Message:
        return message.with_headers(pliant_protocol=str(VERSION + 2))

    changes: dict[str, Change] = {"answer": far} if is_above else {"request": far}
    with (
        running(Upper(mark="@up"), name="up", **fixed(*HONEST)) as up,
        Relay(up.url, **changes) as between,
        running(Upper(mark="@end"), name="end", upstreams=(between.url,), **fixed(*LATE)) as end,
    ):
        says = f"speaks version {VERSION + 2} of the protocol, this device version {VERSION}"
        if is_above:
            until(lambda: says in (explained(end, 2)["candidates"][1]["reason"] or ""))
            assert "Install the same pliant on both" in explained(end, 2)["candidates"][1]["reason"]
        else:
            until(lambda: any(answer.start == "409" for _, answer in between.passed))
            refused = next(answer for _, answer in between.passed if answer.start == "409")
            assert says in json.loads(refused.content)["error"]
        assert answer_of(end, "ab") == "AB@end"


def test_every_optional_field_may_be_missing_by_itself() -> None:
    """Each came with some version; one that is missing has the value that it had before."""
    route = {
        "path": ["end"],
        "hops_left": 7,
        "sender": "end",
        "address": "http://10.0.0.7:8080",
        "objective": [1.0, 0.5],
        "deadline_s": 0.5,
        "patience_s": 2.0,
        "accuracy_floor": 0.9,
        "best_effort": True,
    }
    assert route.keys() == {field.name for field in msgspec.structs.fields(RouteMessage)}
    for field in msgspec.structs.fields(RouteMessage):
        found = decode_route(json.dumps({name: v for name, v in route.items() if name != field.name}))
        assert getattr(found, field.name) == field.default
    curve = {
        "node": "up",
        "points": [[0, 0.5]],
        "through": ["up"],
        "stamp": [1, 2],
        "wait_s": 0.25,
        "spent_s": 0.5,
        "waited_s": 0.125,
        "levels": [{"accuracy": 0.9, "fidelity": 1.0, "bound": [[0, 0.75]]}],
    }
    assert curve.keys() == {field.name for field in msgspec.structs.fields(CurveMessage)}
    for field in msgspec.structs.fields(CurveMessage):
        if not field.required:
            told, _ = decode_advert(json.dumps({name: v for name, v in curve.items() if name != field.name}))
            assert told.curve.points == ((0, 0.5),)


def test_grpc_requests_may_have_fields_that_this_version_does_not_know() -> None:
    """Clients are upgraded before nodes, and after them."""
    grpc = pytest.importorskip("grpc", reason="grpcio is not installed")
    from pliant.serve.grpc.wire_messages import SERVICE, message
    from tests.serve.nodes import ANY_PORT

    text = {"name": "text", "datatype": "BYTES", "shape": [1], "contents": {"bytes_contents": [b"ab"]}}
    request = message("ModelInferRequest")(model_name="upper", inputs=[text])
    unknown = bytes.fromhex("fa3e0374776f") + bytes.fromhex("f83e05")  # fields 1007, of text and of a number
    with running(Upper(), grpc=ANY_PORT) as node, grpc.insecure_channel(str(_grpc(node))) as channel:
        body = request.SerializeToString() + unknown
        found = channel.unary_unary(f"/{SERVICE}/ModelInfer")(body, timeout=PATIENCE_S)
    assert b"AB" in message("ModelInferResponse").FromString(found).raw_output_contents[0]


def _grpc(node: Any) -> Any:
    return node.grpc
