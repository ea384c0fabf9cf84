"""Several models at one address: each request finds its own, in one queue and within one bound of memory."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import numpy as np
import pytest

from pliant.api.open_endpoint import open_endpoint
from pliant.errors import InputError
from pliant.run.process_memory import MemoryBudget
from pliant.serve.upstream.request_explanation import request_explanation
from tests.serve.models import Upper, texts
from tests.serve.nodes import PATIENCE_S, Running, asking, fixed, running
from tests.serve.test_routing import metric, until

TEXT, OTHER = "a charming and often affecting journey", "dull, and far too long"


def asked(node: Running, model: str, text: str, **more: Any) -> httpx.Response:
    path = f"{node.url}/v2/models/{model}/infer"
    return httpx.post(path, content=asking(text, **more), timeout=PATIENCE_S)


def test_a_request_finds_the_model_that_it_names() -> None:
    """By its path, `?model=`, or a node's word; what names none of them is the first one's."""
    first, second = Upper("first", "1", "id-1"), Upper("second", "2", "id-2")
    with running(first, (second,), name="both") as node:
        for model, mark in (("first", "1"), ("second", "2")):
            assert asked(node, model, "ab").json()["outputs"][0]["data"] == [f"AB{mark}"]
            about = httpx.get(f"{node.url}/v2/models/{model}", timeout=PATIENCE_S).json()
            assert about["name"] == model
            found = request_explanation(node.url, 4, None, httpx.create_ssl_context(), model=model)
            assert (found.node, found.target) == ("both", "local")
        wrong = asked(node, "third", "ab")
        assert wrong.status_code == 404
        assert "'first', 'second'" in wrong.json()["error"]
        wrong = httpx.get(f"{node.url}/v2/pliant/route?length=4&model=third", timeout=PATIENCE_S)
        assert wrong.status_code == 404
        assert "no model 'third'; it has 'first', 'second'" in wrong.json()["error"]
        metrics = httpx.get(f"{node.url}/metrics", timeout=PATIENCE_S).text
        for model in ("first", "second"):
            assert (
                f'pliant_requests_total{{model="{model}",model_version="1",outcome="ok",target="local"}} 1.0'
                in metrics
            )
    assert first.is_closed
    assert second.is_closed


def test_a_node_below_reaches_each_model_of_the_node_above() -> None:
    """Pings, requests and broadcasts carry the content hash of the model that they are about."""
    above = [Upper(name, f"@{name}", f"id-{name}") for name in ("first", "second")]
    below = [Upper(name, "@below", f"id-{name}") for name in ("first", "second")]
    for one in below:
        one.gate.clear()  # it would never answer
    with running(above[0], (above[1],), name="above", **fixed((0, 0.001))) as upper:
        more = {"name": "below", "upstreams": (upper.url,), **fixed((0, 100.0))}
        with running(below[0], (below[1],), **more) as node:
            assert node.node is not None
            try:
                for name in ("first", "second"):
                    until(lambda name=name: "ready" in _states(node, name))
                    answer = asked(node, name, "ab")
                    marks = answer.json()["outputs"][0]["data"]
                    assert marks == [f"AB@{name}"], answer.text
            finally:
                for one in below:
                    one.gate.set()


def _states(node: Running, model: str) -> list[str]:
    url = f"{node.url}/metrics"
    ready = [
        line
        for line in httpx.get(url, timeout=PATIENCE_S).text.splitlines()
        if line.startswith("pliant_upstream_ready{") and f'model="{model}"' in line
    ]
    return ["ready" if line.endswith(" 1.0") else "not" for line in ready]


def test_models_wait_in_one_queue() -> None:
    """They compute on one device: a wait for one is a wait for all, and estimates count it."""
    first, second = Upper("first"), Upper("second", identity="id-2")
    with running(first, (second,), queue=1) as node, ThreadPoolExecutor(2) as pool:
        first.gate.clear()
        try:
            running_one = pool.submit(asked, node, "first", "a")
            until(lambda: first.answered)
            waiting = pool.submit(asked, node, "second", "b")
            until(lambda: metric(node, 'pliant_queue_length{model="first"}') == 1.0)
            refused = asked(node, "second", "c")
            assert refused.status_code == 503
            assert second.answered == []
        finally:
            first.gate.set()
        assert [one.result().status_code for one in (running_one, waiting)] == [200, 200]


def test_two_models_of_one_name_are_refused() -> None:
    """No path could tell them apart."""
    sessions = Upper("same"), Upper("same", identity="other")
    with pytest.raises(InputError, match="two models are called same"), running(sessions[0], sessions[1:]):
        pass
    assert all(one.is_closed for one in sessions)


def test_a_model_that_was_let_go_of_tells_what_loading_takes() -> None:
    """Where requests go follows from that, here and on nodes below; its next request has it loaded."""
    sources = ("random:cove-200:1", "random:cove-200:2")
    with open_endpoint(sources[0], threads=1) as alone:
        one_bytes = alone.memory.predicted_bytes
    budget = MemoryBudget(one_bytes + one_bytes // 2)
    served = [open_endpoint(source, memory=budget, threads=1) for source in sources]
    with running(served[0], served[1:], budget) as node:
        for cold, warm in (served, served[::-1]):
            assert asked(node, warm.name, TEXT).status_code == 200
            for one in (cold, warm):
                found = request_explanation(node.url, 8, None, httpx.create_ssl_context(), model=one.name)
                (share,) = (share for share in found.memory if share.name == one.name)
                (way,) = found.candidates
                assert (share.loading_s > 0.0) == (share.held_bytes == 0) == (one is cold)
                assert way.answer_s is None or way.answer_s >= one.loading_s
        assert budget.free_bytes >= 0
        before = {share.name: share.n_asked for share in budget.shares}
        late = asked(node, cold.name, TEXT, parameters={"deadline_s": 1e-6})
        assert late.status_code == 503, late.text
        after = {share.name: share.n_asked for share in budget.shares}
        assert after[cold.name] > before[cold.name]  # or it might never be loaded again
        assert after[warm.name] <= before[warm.name]


@pytest.mark.slow
def test_shipped_models_share_a_budget_under_16_clients() -> None:
    """Each answer is that of its model alone: of a recurrent one to the bit, of another, whose batches may
    run with other bits, the label. The node tells what is held for each."""
    budget = MemoryBudget(7_000_000)
    names = ("sst2", "imdb-lstm")
    with ExitStack() as stack:
        served = [open_endpoint(name, memory=budget, threads=1) for name in names]
        node = stack.enter_context(running(served[0], served[1:], budget))
        before = {share.name: share.share_bytes for share in budget.shares}
        with ThreadPoolExecutor(16) as pool:
            calls = [(names[i % 2], TEXT if i // 2 % 2 else OTHER) for i in range(64)]
            answers = list(pool.map(lambda call: asked(node, *call).json(), calls))
        found = request_explanation(node.url, 8, None, httpx.create_ssl_context(), model="imdb-lstm")
        assert [share.name for share in found.memory] == list(names)
        for share in found.memory:
            assert share.held_bytes <= share.share_bytes == before[share.name]
            assert share.n_asked > 0
        assert sum(share.share_bytes for share in found.memory) <= budget.total_bytes
        for share in found.memory:
            told = metric(node, f'pliant_memory_held_bytes{{model="{share.name}"}}')
            assert told == share.held_bytes
    for name in names:
        bound = before[name] if name == "sst2" else None
        with open_endpoint(name, memory=bound, threads=1) as alone:
            requests = {text: alone.request({"text": texts(text)}) for text in (TEXT, OTHER)}
            expected = {text: alone.answer(request) for text, request in requests.items()}
        for (model, text), answer in zip(calls, answers, strict=True):
            if model == name:
                logits, label = (output["data"] for output in answer["outputs"])
                assert label == [expected[text].label]
                if name != "sst2":
                    np.testing.assert_array_equal(np.array(logits, np.float32), expected[text].logits)
