"""Changes of a node's models that meet other changes, a drain, or a scrape."""

import asyncio
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest

from pliant.errors import ModelError, NodeError
from pliant.route.choice.request_terms import Terms
from pliant.run.process_memory import MemoryBudget
from pliant.serve.repository.model_entry import OpenModel
from tests.serve.nodes import PATIENCE_S, Running, asking, reserved, running_models
from tests.serve.repository.test_models_under_load import entries
from tests.serve.repository.test_repository_api import OPERATOR, Shelf, asked, change, index, mark_of, serving
from tests.serve.test_routing import metric, until


def start(node: Running, work: Coroutine[Any, Any, None]) -> Future[None]:
    """Run `work` on the event loop of the node."""
    assert node.loop is not None
    return asyncio.run_coroutine_threadsafe(work, node.loop)


def n_answered(node: Running, version: str) -> float:
    line = f'pliant_requests_total{{model="search",model_version="{version}",outcome="ok"}}'
    return metric(node, line)


def test_requests_of_each_version_are_counted() -> None:
    """One name must not hide the counts of its other versions."""
    with serving(Shelf("search"), Shelf("search", "2")) as node:
        for version, n in (("1", 3), ("2", 2)):
            for _ in range(n):
                assert asked(node, f"search/versions/{version}").status_code == 200
        assert (n_answered(node, "1"), n_answered(node, "2")) == (3.0, 2.0)


def test_counts_continue_when_a_model_is_loaded_again() -> None:
    """A model that is evicted every few seconds would otherwise lose what no scrape has read."""
    search, other = Shelf("search", n_bytes=40), Shelf("other", n_bytes=70, is_initial=False)
    with serving(search, other, memory=MemoryBudget(100)) as node:
        assert asked(node, "search").status_code == 200
        assert change(node, "other", "load").status_code == 200
        assert index(node)["search:1"] == "UNAVAILABLE"
        assert n_answered(node, "1") == 1.0
        assert mark_of(asked(node, "search")) == "search:1:a"
        search.stamp = "b"
        assert change(node, "search", "load").status_code == 200
        assert mark_of(asked(node, "search")) == "search:1:b"
        assert n_answered(node, "1") == 3.0
        statistics = httpx.get(f"{node.url}/v2/models/search/stats", timeout=PATIENCE_S).json()
        assert statistics["model_stats"][0]["inference_count"] == 3


def test_gauges_are_those_of_the_node_that_serves() -> None:
    """A load that fails leaves those of the previous model, and a model that is unloaded has none."""
    search, other = Shelf("search"), Shelf("other", error=ModelError("no such file."))
    with serving(search) as node:
        assert node.repository is not None
        search.stamp = "b"
        with pytest.raises(ModelError):
            start(node, node.repository.configure([search.entry, other.entry])).result(PATIENCE_S)
        assert mark_of(asked(node, "search")) == "search:1:a"
        assert gauges(node) == {"pliant_model_info", "pliant_predecessors", "pliant_queue_length"}
        assert change(node, "search", "load").status_code == 200
        assert gauges(node) == {"pliant_model_info", "pliant_predecessors", "pliant_queue_length"}
        assert change(node, "search", "unload").status_code == 200
        assert gauges(node) == set()


def gauges(node: Running) -> set[str]:
    text = httpx.get(f"{node.url}/metrics", timeout=PATIENCE_S).text
    names = [line.partition("{")[0] for line in text.splitlines() if 'model="search"' in line]
    assert names.count("pliant_model_info") <= 1
    return {"pliant_model_info", "pliant_predecessors", "pliant_queue_length"} & set(names)


@pytest.mark.slow
def test_no_sample_is_sent_twice_for_two_versions_that_share_memory() -> None:
    """Prometheus takes one sample of a series per scrape."""
    served = entries("words:1=imdb-lstm", "words:2=imdb-lstm")
    with running_models(served, MemoryBudget(40_000_000), operator_tokens=(OPERATOR,)) as node:
        text = httpx.get(f"{node.url}/metrics", timeout=PATIENCE_S).text
    series = Counter(line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#"))
    assert [one for one, n in series.items() if n > 1] == []
    assert sum(one.startswith("pliant_memory_share_bytes") for one in series) == 2


class _Broken(Shelf):
    """It fails when it has got its memory, for which others were evicted."""

    def open(self, memory: MemoryBudget | None) -> OpenModel:
        super().open(memory).local.close()
        raise ModelError("broken")


def test_no_model_gets_defaults_that_were_refused() -> None:
    """A model that was evicted for a new one, and loaded again when that failed, got the new ones."""
    first, broken = Shelf("first", n_bytes=60), _Broken("broken", n_bytes=60)
    with serving(first, memory=MemoryBudget(100), terms=Terms(1.0)) as node:
        assert node.controls is not None
        entries = (first.entry, broken.entry)
        config = replace(node.controls.config, entries=entries, terms=Terms(2.0))
        changing = node.controls.apply(config)
        with pytest.raises(ModelError, match="broken"):
            start(node, changing).result(PATIENCE_S)
        assert len(first.opened) == 2
        assert [one.terms for one in node.controls.repository.nodes] == [Terms(1.0)]


def test_a_model_that_leaves_the_configuration_while_its_load_waits_is_not_loaded() -> None:
    """It would be served by no path, and hold its memory until the node ends."""
    first, gone, new = Shelf("first"), Shelf("gone", is_initial=False), Shelf("new")
    with serving(first, gone) as node:
        assert node.repository is not None
        new.gate.clear()
        changing = start(node, node.repository.configure([first.entry, new.entry]))
        assert new.is_opening.wait(PATIENCE_S)
        loading = start(node, node.repository.load("gone"))
        start(node, node.repository.refresh()).result(PATIENCE_S)  # which also is what a load begins with
        new.gate.set()
        changing.result(PATIENCE_S)
        with pytest.raises(NodeError, match="no model 'gone'"):
            loading.result(PATIENCE_S)
        assert gone.opened == []


@pytest.mark.usefixtures("lingering")
def test_a_model_whose_load_ends_during_the_drain_is_not_ready() -> None:
    """Else a load balancer would send requests to a node that leaves."""
    with reserved() as listen, ThreadPoolExecutor(1) as pool:
        search = Shelf("search")
        with serving(search, listen=listen, settle_s=PATIENCE_S) as node:
            search.stamp = "b"
            search.gate.clear()
            search.is_opening.clear()
            loading = pool.submit(change, node, "search", "load")
            assert search.is_opening.wait(PATIENCE_S)
            node.stop()
            ready = f"{node.url}/v2/health/ready"
            until(lambda: httpx.get(ready, timeout=PATIENCE_S).status_code == 503)
            search.gate.set()
            assert loading.result().status_code == 200
            assert mark_of(asked(node, "search")) == "search:1:b"
            assert httpx.get(ready, timeout=PATIENCE_S).status_code == 503
            assert start(node, _is_refused(node, search)).result(PATIENCE_S) is None
            node.stop()  # skips the settling time


def test_an_unload_does_not_wait_for_an_upload() -> None:
    """A client that sends its body slowly would stop all loads and unloads for as long."""
    search, other = Shelf("search"), Shelf("other")
    body, sent, gate = asking("ab"), threading.Event(), threading.Event()

    def parts() -> Iterator[bytes]:
        yield body[:5]
        sent.set()
        assert gate.wait(PATIENCE_S)
        yield body[5:]

    with serving(other, search) as node, ThreadPoolExecutor(1) as pool:
        for status in (503, 200):
            gate.clear()
            sent.clear()
            url = f"{node.url}/v2/models/search/infer"
            answer = pool.submit(httpx.post, url, content=parts(), timeout=PATIENCE_S)
            assert sent.wait(PATIENCE_S)
            until(lambda: metric(node, "pliant_body_bytes") > 0)
            if status == 503:
                assert change(node, "search", "unload").status_code == 200
            gate.set()
            assert answer.result().status_code == status
            assert change(node, "search", "load").status_code == 200
        assert mark_of(answer.result()) == "search:1:a"


async def _is_refused(node: Running, search: Shelf) -> None:
    assert node.repository is not None
    with pytest.raises(NodeError, match="loads no models"):
        await node.repository.configure([search.entry, Shelf("late").entry])
