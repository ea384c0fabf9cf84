"""What a device has no memory for is answered elsewhere, in Python and by a node, and nothing else is."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

import pliant
from pliant.api.open_endpoint import open_endpoint
from pliant.errors import BudgetError
from pliant.route.router_settings import RouterSettings
from pliant.run.submodel.elastic_session import ElasticSession
from pliant.system.linux.memory import rss_bytes
from tests.run.conftest import paper_profile
from tests.serve.nodes import PATIENCE_S, reserved, running
from tests.serve.test_routing import metric, until

LONG = " ".join(["good film"] * 6)


def _least_bytes(store: Path) -> int:
    with pytest.raises(BudgetError) as refused:
        pliant.open(store, memory=1, length=8, profile=paper_profile())
    found = re.search(r"Give at least (\d+) bytes", str(refused.value))
    assert found is not None
    return int(found[1])


def test_a_text_too_long_for_the_memory_is_answered_above(tiny_store: Callable[..., Path]) -> None:
    """`explain` named this device, which then failed; the answer was a fallback."""
    store = tiny_store(n_layers=4, widths=(2, 4))
    least, profile = _least_bytes(store), paper_profile()
    little = {"memory": least, "length": 8, "profile": profile}
    with (
        running(open_endpoint(str(store), preload="10MB", profile=profile), name="large") as large,
        running(open_endpoint(str(store), **little), name="small", upstreams=(large.url,)) as small,
        pliant.open(store, **little, upstreams=[large.url]) as model,
        pliant.open(store, preload="10MB", profile=profile) as whole,
    ):
        assert isinstance(whole, ElasticSession)
        n = whole.encode(LONG).n_tokens
        until(lambda: model.explain(tokens=n).target == large.url)
        local = model.explain(tokens=n).candidates[0]
        assert local.constraint == "memory"
        assert local.most_n is not None
        assert 8 <= local.most_n < n
        assert local.memory is not None
        assert local.memory.most_bytes == least
        reply = model(LONG)
        assert reply.endpoint == "large"
        np.testing.assert_allclose(reply.logits, whole(LONG).logits, rtol=0, atol=1e-5)
        assert model.explain(tokens=local.most_n).candidates[0].constraint is None
        body = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [LONG]}]}
        url = f"{small.url}/v2/models/{store.name}/infer"
        until(lambda: httpx.post(url, json=body).status_code == 200)  # it knows the node above by then
        assert httpx.post(url, json=body).json()["parameters"]["endpoint"] == "large"
        assert metric(small, "pliant_fallbacks_total") == 0


def test_an_explanation_gives_the_bytes_that_an_answer_reads(tiny_store: Callable[..., Path]) -> None:
    """Of each model on its own limit; no longer only where several models share one."""
    store = tiny_store(n_layers=4, widths=(2, 4))
    options = {"memory": "10MB", "preload": 0, "length": 8, "profile": paper_profile()}
    with pliant.open(store, **options, upstreams=["http://127.0.0.1:1"]) as model:
        row = model.explain(tokens=8).candidates[0]
        assert row.memory is not None
        assert row.memory.held_bytes == model.local.memory.predicted_bytes <= row.memory.most_bytes
        assert row.memory.most_bytes == 10_000_000
        reply = model(model.local.sample(8))
        assert row.memory.load_bytes == reply.details.details.read_bytes > 0
        (floor,) = {level.accuracy for level in model.levels()[:1]}
        assert model.explain(tokens=8, floor=floor).candidates[0].memory.load_bytes <= row.memory.load_bytes


@pytest.mark.slow
@pytest.mark.usefixtures("lingering")
def test_what_only_an_upstream_has_the_memory_for_waits_for_its_return(
    tiny_store: Callable[..., Path],
) -> None:
    """While it is down, a client is told to come back, not to shorten its text."""
    store = tiny_store(n_layers=4, widths=(2, 4))
    little = {"memory": _least_bytes(store), "length": 8, "profile": paper_profile()}
    body = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [LONG]}]}
    options = {"routing": RouterSettings(1000, retry_s=0.2)}
    with (
        reserved() as address,
        running(open_endpoint(str(store), **little), upstreams=(f"http://{address}",), **options) as small,
        httpx.Client(timeout=PATIENCE_S) as http,
    ):
        url = f"{small.url}/v2/models/{store.name}/infer"
        assert http.post(url, json=body).status_code == 422, "nobody knows yet of one with more memory"
        for _ in range(2):
            with running(open_endpoint(str(store), preload="10MB", profile=paper_profile()), listen=address):
                until(lambda: http.post(url, json=body).status_code == 200)
            refused = http.post(url, json=body)
            assert refused.status_code == 503, refused.text
            assert int(refused.headers["retry-after"]) >= 1
            assert "try again" in refused.json()["error"]


def test_a_flood_of_texts_too_long_for_the_memory_is_refused_at_once(tiny_store: Callable[..., Path]) -> None:
    """64 clients are told the longest length; none of their texts is run, and memory stays as it was."""
    store = tiny_store(n_layers=4, widths=(2, 4))
    little = {"memory": _least_bytes(store), "length": 8, "profile": paper_profile()}
    session = open_endpoint(str(store), **little)
    (most_n,) = {level.most_n for level in session.levels()}
    body = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [LONG]}]}
    with (
        running(session) as node,
        ThreadPoolExecutor(64) as clients,
        httpx.Client(timeout=2 * PATIENCE_S) as http,
    ):

        def flood(n: int) -> None:
            url = f"{node.url}/v2/models/{store.name}/infer"
            for refused in clients.map(lambda _: http.post(url, json=body), range(n)):
                assert refused.status_code == 422
                assert f"up to {most_n}. Give a shorter input" in refused.json()["error"]

        flood(1024)  # threads and connections take their memory first
        used, rss = session.memory, rss_bytes()
        for _ in range(3):
            flood(256)
        assert session.memory.parts == used.parts
        assert rss_bytes() - rss < 4_000_000
        assert metric(node, "pliant_fallbacks_total") == 0
        assert metric(node, 'pliant_requests_total{outcome="refused"}') == 1024 + 3 * 256
        assert metric(node, 'pliant_compute_seconds_count{target="local"}') == 0
