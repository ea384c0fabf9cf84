"""A deadline counts the wait for a model that was evicted, and loading alone may be too long for it."""

import gzip
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from pliant.route.node_messages import ROUTE_HEADER, RouteMessage, encode_route
from pliant.run.process_memory import MemoryBudget
from pliant.serve.access.rates import ClientRates, Rate
from pliant.serve.access.security import bearer
from pliant.serve.http.limits import Limits
from pliant.serve.repository.model_slot import ModelSlot
from pliant.serve.upstream.request_explanation import EXPLAIN_PATH
from tests.serve.nodes import ANY_PORT, PATIENCE_S, Running, asking
from tests.serve.repository.test_repository_api import (
    AS_OPERATOR,
    Shelf,
    asked,
    change,
    index,
    mark_of,
    serving,
)
from tests.serve.test_routing import until

LONG_S = 50.0
"""What loading is said to have taken: far more than any deadline here, and no test waits for it."""


@contextmanager
def evicted(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[tuple[Running, Shelf]]:
    """A node whose model `slow` was evicted, and takes LONG_S to load as far as the node knows."""
    slow, other = Shelf("slow", n_bytes=60), Shelf("other", n_bytes=60, is_initial=False)
    known = ModelSlot.wait_s

    def wait_s(slot: ModelSlot, now_s: float) -> float:
        is_slow = slot.key.name == "slow" and slot.live is None
        assert not is_slow or slot.load_s is not None, "loading was not measured"
        return LONG_S if is_slow else known(slot, now_s)

    monkeypatch.setattr(ModelSlot, "wait_s", wait_s)
    with serving(slow, other, memory=MemoryBudget(100), **options) as node:
        shown = bearer(next(iter(options.get("tokens", ())), None))
        assert mark_of(asked(node, "slow", **shown)) == "slow:1:a"
        assert change(node, "other", "load").status_code == 200
        assert index(node)["slow:1"] == "UNAVAILABLE"
        yield node, slow


def infer(node: Running, body: bytes, **headers: str) -> httpx.Response:
    return httpx.post(f"{node.url}/v2/models/slow/infer", content=body, headers=headers, timeout=PATIENCE_S)


def soon(**parameters: Any) -> bytes:
    return asking("ab", parameters=parameters)


def test_a_request_whose_deadline_loading_alone_exceeds_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the time to come again; the model is loaded meanwhile, for those that come then."""
    with evicted(monkeypatch) as (node, slow):
        slow.gate.clear()
        for body, headers in (
            (soon(deadline_s=5.0), {}),
            (gzip.compress(soon(deadline_s=5.0)), {"content-encoding": "gzip"}),
            (
                asking("ab"),
                {ROUTE_HEADER: encode_route(RouteMessage(("below",), 3, "below", deadline_s=5.0))},
            ),
        ):
            refused = infer(node, body, **headers)
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "50"
            assert "takes about 50 s, longer than the deadline of 5 s" in refused.json()["error"]
        assert len(slow.opened) == 1
        slow.gate.set()
        until(lambda: index(node)["slow:1"] == "READY")
        assert mark_of(infer(node, soon(deadline_s=40.0))) == "slow:1:a"


def test_a_deadline_of_embeddings_includes_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of any other request; the model is loaded for later ones."""
    with evicted(monkeypatch) as (node, slow):
        slow.gate.clear()
        body = {"model": "slow", "input": "ab", "deadline_s": 5.0}
        refused = httpx.post(f"{node.url}/v1/embeddings", json=body, timeout=PATIENCE_S)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "50")
        assert "longer than the deadline of 5 s" in refused.json()["error"]["message"]
        slow.gate.set()
        until(lambda: index(node)["slow:1"] == "READY")


@pytest.mark.parametrize(
    "body", [soon(deadline_s=5.0, best_effort=True), soon(deadline_s=60.0), asking("ab")]
)
def test_requests_that_can_wait_are_answered_once_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    """Compressed or not, the body that was read early is the one that is answered."""
    with evicted(monkeypatch) as (node, slow):
        packed = infer(node, gzip.compress(body), **{"content-encoding": "gzip"})
        assert mark_of(packed) == "slow:1:a"
        assert slow.opened[-1].answered == [b"ab"]


def test_the_wait_for_a_model_counts_against_the_deadline() -> None:
    """A request that waited longer than it may is refused, and not answered as if it had just come."""
    slow, other = Shelf("slow", n_bytes=60), Shelf("other", n_bytes=60, is_initial=False)
    with serving(slow, other, memory=MemoryBudget(100)) as node, ThreadPoolExecutor(2) as pool:
        change(node, "other", "load")
        slow.gate.clear()
        slow.is_opening.clear()
        waiting = [pool.submit(infer, node, soon(deadline_s=0.3, best_effort=late)) for late in (False, True)]
        assert slow.is_opening.wait(PATIENCE_S)
        refused = waiting[0].result()  # while it is still being loaded, which may take long
        threading.Event().wait(0.5)  # the other's deadline passes
        slow.gate.set()
        late = waiting[1].result()
        assert refused.status_code == 503
        assert "deadline" in refused.json()["error"]
        assert mark_of(late) == "slow:1:a"
        assert late.json()["parameters"]["met"] is False
        assert slow.opened[-1].answered == [b"ab"]


def test_what_cannot_be_read_early_is_refused_where_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its model is loaded for that, as for any request."""
    with evicted(monkeypatch) as (node, _):
        for body in (
            b"{",
            b'{"parameters": 3}',
            soon(deadline_s="soon"),
            soon(deadline_s=-1),
            soon(deadline_s=1e300),
        ):
            assert infer(node, body).status_code == 400, body
            assert change(node, "other", "unload").status_code == 200


def test_a_call_over_grpc_has_the_same_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parameter, or the call's own deadline; refused with the status that says so."""
    grpc = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    from tritonclient.utils import InferenceServerException

    from tests.serve.models import texts

    with (
        evicted(monkeypatch, grpc=ANY_PORT) as (node, slow),
        grpc.InferenceServerClient(str(node.grpc)) as client,
    ):
        tensor = grpc.InferInput("text", [1], "BYTES")
        tensor.set_data_from_numpy(texts("ab"))
        slow.gate.clear()
        for more in ({"parameters": {"deadline_s": 5.0}}, {"client_timeout": 5.0}):
            with pytest.raises(InferenceServerException, match="longer than the deadline") as refused:
                client.infer("slow", [tensor], **more)
            assert refused.value.status() == "StatusCode.DEADLINE_EXCEEDED"
        slow.gate.set()
        until(lambda: index(node)["slow:1"] == "READY")
        answer = client.infer("slow", [tensor], parameters={"deadline_s": 40.0})
        assert answer.get_response().parameters["met"].bool_param


def test_a_body_that_is_too_long_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of it would be read as the next request."""
    limits = Limits(body_bytes=1000)
    with evicted(monkeypatch, limits=limits) as (node, slow):
        refused = infer(node, asking("a" * 2000))
        assert (refused.status_code, refused.headers["connection"]) == (413, "close")
        assert len(slow.opened) == 1


def test_health_checks_and_pings_load_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has no token could have models evicted; a ping is answered as for a model that is not ready."""
    client, peer = "client-token-0123", "peer-token-0123456"
    with evicted(monkeypatch, tokens=(client,), peer_tokens=(peer,)) as (node, slow):
        for path, token, status in (
            ("/v2/health/live", None, 200),
            ("/v2/health/ready", None, 200),
            ("/v2/models/slow", None, 401),
            ("/v2/models/slow/ready", client, 200),
            ("/v2", client, 200),
            ("/v2/pliant/curve", peer, 404),
            ("/v2/pliant/curve", None, 401),
        ):
            url = f"{node.url}{path}?model=slow"
            assert httpx.get(url, headers=bearer(token), timeout=PATIENCE_S).status_code == status, path
        assert len(slow.opened) == 1
        explained = httpx.get(f"{node.url}{EXPLAIN_PATH}?model=slow", headers=AS_OPERATOR, timeout=PATIENCE_S)
        assert explained.status_code == 404
        assert "slow is not loaded" in explained.json()["error"]
        assert len(slow.opened) == 1
        about = httpx.get(f"{node.url}/v2/models/slow", headers=bearer(client), timeout=PATIENCE_S)
        assert about.status_code == 200
        assert len(slow.opened) == 2


def counted(node: Running, status: int) -> bool:
    """Whether exactly one response of `slow` had that status."""
    told = httpx.get(f"{node.url}/metrics", headers=AS_OPERATOR, timeout=PATIENCE_S).text
    (line,) = (
        line
        for line in told.splitlines()
        if line.startswith("pliant_responses_total{")
        and all(f'"{label}"' in line for label in ("slow", "/v2/models/slow/infer", status))
    )
    return line.endswith(" 1.0")


def test_a_client_over_its_rate_loads_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is refused for its deadline is counted, and has the headers of every answer."""
    with evicted(monkeypatch, rates=ClientRates(Rate(1e-9, 2))) as (node, slow):
        slow.gate.clear()
        late = infer(node, soon(deadline_s=5.0), **{"x-request-id": "order-7"})
        assert (late.status_code, late.headers["x-request-id"]) == (503, "order-7")
        assert late.headers["pliant-model-version"] == "1"
        often = infer(node, soon(deadline_s=5.0))
        assert (often.status_code, "x-request-id" in often.headers) == (429, True)
        slow.gate.set()
        assert counted(node, 503)
        assert counted(node, 429)


def test_a_request_that_loads_its_model_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the node that loads, not by the model's application again."""
    with evicted(monkeypatch, rates=ClientRates(Rate(1e-9, 3))) as (node, _):
        assert [infer(node, asking("ab")).status_code for _ in range(3)] == [200, 200, 429]
        assert counted(node, 429)


def test_a_page_of_another_site_loads_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before its request has an effect."""
    with evicted(monkeypatch) as (node, slow):
        assert infer(node, asking("ab"), origin="http://evil.example").status_code == 403
        assert len(slow.opened) == 1
        assert counted(node, 403)
