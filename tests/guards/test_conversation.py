"""Guard: what the last version says over HTTP and gRPC is understood, and is answered as it was.

Protects nodes that are upgraded one after the other, and clients of a fleet that is half upgraded.
`tests/fixtures/formats/v*/conversation.json` were recorded between nodes of released versions and are never
changed: their requests are sent to a node of today, and their answers are given to one.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pliant.route.node_messages import decode_advert
from pliant.serve.grpc.wire_messages import message
from pliant.serve.telemetry.request_context import MODEL_VERSION
from tests.fixtures.formats.conversation import (
    FILE,
    KINDS,
    client_node,
    grpc_answer,
    read,
)
from tests.fixtures.formats.versions import released
from tests.serve.models import Upper
from tests.serve.nodes import Running, fixed, running
from tests.serve.relay import Message, Relay, sent
from tests.serve.test_routing import HONEST, LATE, answer_of, end_below, metric, target_of, until

versions = pytest.mark.parametrize("path", released(FILE).values(), ids=released(FILE))


@pytest.fixture(scope="module")
def node() -> Iterator[Running]:
    """The node that clients of the last version ask."""
    with client_node() as found:
        yield found


@versions
def test_a_node_of_today_answers_what_nodes_of_the_last_version_ask(path: Path) -> None:
    """A ping, a request that is passed on, and a broadcast, header by header as they were sent."""
    pinged, passed_on, told = (_asked(path, kind) for kind in KINDS)
    with running(Upper(mark="@up"), name="up", **fixed(*HONEST)) as up, end_below(up.url) as end:
        answer = sent(up.url, pinged)
        assert answer.start == "200"
        assert decode_advert(answer.content)[0].node == "up"
        answer = sent(up.url, passed_on)
        assert answer.start == "200"
        assert json.loads(answer.content)["outputs"][0]["data"] == ["AB@up"]
        assert decode_advert(answer.headers["pliant-curve"])[0].node == "up"
        until(lambda: target_of(end, 2) == up.url)
        assert sent(end.url, told).start == "200"
        assert metric(end, 'pliant_responses_total{path="/v2/pliant/tell",status="200"}') == 1


@versions
def test_a_node_of_today_passes_requests_on_to_one_of_the_last_version(path: Path) -> None:
    """Its answers to a ping and to a request are those that were recorded, header by header."""
    answers = {kind: read(answer) for kind, (_, answer) in zip(KINDS, _said(path, "nodes"), strict=True)}

    def as_recorded(answer: Message) -> Message:
        asked = above.passed[-1][0]
        return next(given for kind, given in answers.items() if asked.start.startswith(kind))

    with (
        running(Upper(), name="other", **fixed(*HONEST)) as other,
        Relay(other.url, answer=as_recorded) as above,
        running(Upper(mark="@end"), name="end", upstreams=(above.url,), **fixed(*LATE)) as end,
    ):
        until(lambda: target_of(end, 2) == above.url)
        assert answer_of(end, "ab") == "AB@up"
        response = httpx.get(f"{end.url}/v2/pliant/route", params={"length": 2}, headers=end.operator)
        assert response.json()["candidates"][1]["node"] == "up"


@versions
def test_clients_over_rest_find_every_field_that_they_found(path: Path, node: Running) -> None:
    """Fields may be added. Of an error the status stays and that it is said, not its words. What is for no
    model of the node had the version of its first one."""
    for asked, answered in _said(path, "rest"):
        before, now = read(answered), sent(node.url, read(asked))
        assert now.start == before.start, asked
        is_of_model = "/v2/models/upper" in read(asked).start
        assert before.headers.keys() - {MODEL_VERSION} <= now.headers.keys(), asked
        assert (MODEL_VERSION in now.headers) == is_of_model, asked
        if before.start == "200":
            assert _holds(json.loads(now.content), json.loads(before.content)), asked
        else:
            assert json.loads(now.content).keys() == json.loads(before.content).keys()


@versions
def test_clients_over_grpc_find_every_field_that_they_found(path: Path, node: Running) -> None:
    """The very bytes of the requests are answered by messages that say all that they said."""
    from google.protobuf.json_format import MessageToDict

    for method, asked, answered in _said(path, "grpc"):
        kind, now = message(f"{method}Response"), grpc_answer(node, method, bytes.fromhex(asked))
        found, before = (MessageToDict(kind.FromString(one)) for one in (now, bytes.fromhex(answered)))
        assert before, f"nothing was recorded of {method}"
        assert _holds(found, before), method


def _said(path: Path, what: str) -> list[list[Any]]:
    found: list[list[Any]] = json.loads(path.read_text())[what]
    return found


def _asked(path: Path, kind: str) -> Message:
    return next(read(asked) for asked, _ in _said(path, "nodes") if asked[0].startswith(kind))


def _holds(found: Any, kept: Any) -> bool:
    """Whether all of `kept` is in `found`, at every depth; lists may be longer at their ends."""
    if isinstance(kept, dict):
        return all(key in found and _holds(found[key], value) for key, value in kept.items())
    if isinstance(kept, list):
        return len(found) >= len(kept) and all(map(_holds, found, kept))
    return bool(found == kept)
