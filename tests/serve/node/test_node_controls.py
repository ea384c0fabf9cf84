"""Changes of a running node's upstreams and memory budget, as its file has them on SIGHUP."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest

from pliant.errors import BudgetError, InputError, ModelError, NodeError
from pliant.route.choice.request_terms import Terms
from pliant.run.process_memory import MemoryBudget
from pliant.serve.repository.model_entry import ModelEndpoints, ModelEntry
from tests.serve.models import Upper
from tests.serve.node.test_peers import peers
from tests.serve.nodes import PATIENCE_S, Running, running
from tests.serve.repository.test_repository_api import OPERATOR, Shelf, asked, index, mark_of, serving
from tests.serve.test_routing import until

N_CLIENTS, N_CHANGES = 8, 8
A, B, C, D = (f"http://127.0.0.1:{port}" for port in (9, 10, 11, 12))


def apply(node: Running, **changes: Any) -> None:
    """Change these fields of the node's configuration, on its event loop."""
    assert node.controls is not None
    assert node.loop is not None
    work = node.controls.apply(replace(node.controls.config, **changes))
    asyncio.run_coroutine_threadsafe(work, node.loop).result(PATIENCE_S)


def upstreams(node: Running) -> set[str]:
    return {one["url"] for one in peers(node, token=OPERATOR).json()["upstreams"]}


def change_peers(node: Running, **changes: list[str]) -> set[str]:
    answer = peers(node, changes, OPERATOR)
    assert answer.status_code == 200, answer.text
    return {one["url"] for one in answer.json()["upstreams"]}


def test_upstreams_of_an_operator_stay_when_those_of_the_file_change() -> None:
    """The file says nothing about them: neither those that one added nor those that one removed."""
    with serving(Shelf("first"), upstreams=(A + "/", B)) as node:
        assert upstreams(node) == {A, B}
        assert change_peers(node, add=[C, D], remove=[B]) == {A, C, D}
        apply(node, upstreams=(A, B))
        assert upstreams(node) == {A, C, D}, "B was removed by an operator"
        apply(node, upstreams=(B, C))
        assert upstreams(node) == {C, D}
        apply(node, upstreams=(A,))
        assert upstreams(node) == {A, C, D}
        apply(node, upstreams=(A, B))
        assert upstreams(node) == {A, B, C, D}, "the file names B newly"
        assert change_peers(node, remove=[C]) == {A, B, D}


def test_a_model_with_upstreams_of_its_own_changes_them_without_a_load() -> None:
    """Loading it again would forget what an operator added."""
    first, second = Shelf("first"), Shelf("second")

    def entry(*urls: str) -> ModelEntry:
        return replace(first.entry, endpoints=ModelEndpoints(upstreams=urls))

    with serving(first, second, upstreams=(A,)) as node:
        assert node.repository is not None
        apply(node, entries=(entry(B), second.entry))
        apply(node, entries=(entry(C), second.entry), upstreams=(D,))
        now_s = node.repository.nodes[0].clock()
        found = [{one.name for one in live.router.states(now_s)} for live in node.repository.nodes]
        assert found == [{C}, {D}]
        assert len(first.opened) == len(second.opened) == 1
        with pytest.raises(InputError, match="256 upstreams at most"):
            apply(node, upstreams=tuple(f"http://127.0.0.1:{i}" for i in range(1, 258)))
        assert node.controls is not None
        assert node.controls.config.upstreams == (D,)


def test_a_model_that_loses_its_upstreams_must_reach_its_floor_alone() -> None:
    """Its node would refuse every request from then on; with an upstream, that one may reach it."""
    first = Shelf("first")
    with serving(first, upstreams=(A,), terms=Terms(accuracy_floor=0.5)) as node:
        with pytest.raises(NodeError, match="no request could have an accuracy floor"):
            apply(node, upstreams=())
        assert upstreams(node) == {A}
        apply(node, upstreams=(B,), terms=Terms(accuracy_floor=0.7))
        assert upstreams(node) == {B}


def test_a_smaller_budget_evicts_the_least_recently_used() -> None:
    """What fits stays loaded; a request loads the others, as after any eviction."""
    memory = MemoryBudget(100)
    a, b = Shelf("a", n_bytes=40), Shelf("b", n_bytes=50)
    with serving(a, b, memory=memory) as node:
        for name in ("b", "a"):
            assert mark_of(asked(node, name)) == f"{name}:1:a"
        apply(node, memory_bytes=95)
        assert index(node) == {"a:1": "READY", "b:1": "READY"}
        apply(node, memory_bytes=60)
        assert index(node) == {"a:1": "READY", "b:1": "UNAVAILABLE"}
        assert (memory.total_bytes, memory.free_bytes) == (60, 20)
        assert mark_of(asked(node, "b")) == "b:1:a"
        assert index(node) == {"a:1": "UNAVAILABLE", "b:1": "READY"}
        apply(node, memory_bytes=90)
        assert mark_of(asked(node, "a")) == "a:1:a"
        assert index(node) == {"a:1": "READY", "b:1": "READY"}


def test_a_budget_that_is_refused_changes_nothing() -> None:
    """Neither one that is too small for a model alone, nor a larger one beside a model that is broken."""
    memory = MemoryBudget(100)
    a, b, huge = Shelf("a", n_bytes=40), Shelf("b", n_bytes=50), Shelf("huge", n_bytes=150)
    broken = Shelf("broken", error=ModelError("broken is no model."))
    with serving(a, b, memory=memory) as node:
        for more, error, why in (
            ({"memory_bytes": 49}, BudgetError, "49 B is too little for b, which needs 50 B"),
            ({"memory_bytes": 200, "entries": (a.entry, huge.entry, broken.entry)}, ModelError, "no model"),
        ):
            with pytest.raises(error, match=why):
                apply(node, **more)
            assert memory.total_bytes == 100
            assert index(node) == {"a:1": "READY", "b:1": "READY"}
        apply(node, memory_bytes=200, entries=(a.entry, huge.entry))
        assert index(node) == {"a:1": "READY", "huge:1": "READY"}
        assert (memory.total_bytes, memory.free_bytes) == (200, 10)
        apply(node, memory_bytes=50, entries=(a.entry, b.entry))
        assert memory.total_bytes == 50
        assert mark_of(asked(node, "b")) == "b:1:a"


def test_models_that_a_refused_change_loads_again_keep_the_limits() -> None:
    """The first new model evicts one, which is loaded again when the second one is broken."""
    a, b, c = Shelf("a", n_bytes=40), Shelf("b", n_bytes=50), Shelf("c", n_bytes=60)
    broken = Shelf("broken", error=ModelError("broken is no model."))
    with serving(a, b, memory=MemoryBudget(100), queue=64, upstreams=(A,)) as node:
        entries = (a.entry, b.entry, c.entry, broken.entry)
        with pytest.raises(ModelError, match="no model"):
            apply(node, entries=entries, queue=0)
        assert node.repository is not None
        slots = {one.served.name: one.upstreams.slots.most for one in node.repository.nodes}
        assert slots == {"a": 64, "b": 64}


@pytest.mark.slow
@pytest.mark.usefixtures("lingering")
def test_no_request_is_lost_while_everything_changes() -> None:
    """Clients ask all the while; each gets the answer of the model that it asked, here or upstream."""
    memory, found = MemoryBudget(100), list[tuple[str, str]]()
    a, b, c = Shelf("a", n_bytes=40), Shelf("b", n_bytes=50), Shelf("c", n_bytes=20)
    done = threading.Event()
    with (
        running(Upper("a", "@a:upstream", "id-a-1")) as up,
        serving(a, b, c, memory=memory, queue=10 * N_CLIENTS) as node,
        ThreadPoolExecutor(N_CLIENTS) as pool,
    ):

        def ask(client: int) -> None:
            for name in cycle("ab"):
                if done.is_set():
                    return
                found.append((name, mark_of(asked(node, name, f"{client}"))))

        clients = [pool.submit(ask, i) for i in range(N_CLIENTS)]
        try:
            for i in range(N_CHANGES):
                entries = (a.entry, b.entry) if i % 5 == 0 else (a.entry, b.entry, c.entry)
                apply(
                    node,
                    entries=entries,
                    memory_bytes=(110, 95, 60)[i % 3],
                    upstreams=(up.url,) if i % 2 else (),
                    queue=(10 + i) * N_CLIENTS,
                )
                n = len(found)
                until(lambda n=n: len(found) > n + N_CLIENTS or done.is_set())  # type: ignore[misc]
        finally:
            done.set()
        for client in clients:
            client.result(PATIENCE_S)
    assert {name for name, mark in found if not mark.startswith(name)} == set()
    assert len(found) > N_CHANGES * N_CLIENTS
