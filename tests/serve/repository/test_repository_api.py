"""Models that are loaded and unloaded while a node runs, over HTTP, with models that count."""

import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from pliant.errors import BudgetError, ModelError, NodeError
from pliant.run.process_memory import MemoryBudget
from pliant.serve.repository.model_entry import ModelEntry, ModelKey, OpenModel
from tests.collector import freeze_everything
from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, Running, asking, running_models
from tests.serve.test_routing import until

OPERATOR = "an-operator-of-this-node"
AS_OPERATOR = {"authorization": f"Bearer {OPERATOR}"}


@dataclass
class Shelf:
    """A model on disk, as far as a repository sees it: each opening is another session, `mark` its answers.

    While `gate` is cleared it is being opened. `error` is raised by the next openings.
    """

    name: str
    version: str = "1"
    n_bytes: int = 0
    error: Exception | None = None
    stamp: str = "a"
    is_initial: bool = True
    opened: list[Upper] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    is_opening: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    @property
    def entry(self) -> ModelEntry:
        return ModelEntry(
            key=ModelKey(self.name, self.version),
            open=self.open,
            stamp=lambda: self.stamp,
            is_initial=self.is_initial,
        )

    def open(self, memory: MemoryBudget | None) -> OpenModel:
        self.is_opening.set()
        assert self.gate.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        session = Upper(
            self.name, f"@{self.name}:{self.version}:{self.stamp}", f"id-{self.name}-{self.version}"
        )
        if memory is not None:
            memory.reserve(session, self.n_bytes)
            close = session.close
            session.close = lambda: (close(), memory.release(session))  # type: ignore[method-assign, func-returns-value, assignment]
        self.opened.append(session)
        return OpenModel(session)


def serving(*shelves: Shelf, memory: MemoryBudget | None = None, **options: Any) -> Any:
    entries = [shelf.entry for shelf in shelves]
    return running_models(entries, memory, operator_tokens=(OPERATOR,), **options)


def change(node: Running, model: str, verb: str, **parameters: Any) -> httpx.Response:
    path = f"{node.url}/v2/repository/models/{model}/{verb}"
    return httpx.post(path, json={"parameters": parameters}, headers=AS_OPERATOR, timeout=PATIENCE_S)


def index(node: Running, **asked: Any) -> dict[str, str]:
    path = f"{node.url}/v2/repository/index"
    rows = httpx.post(path, json=asked, headers=AS_OPERATOR, timeout=PATIENCE_S).json()
    return {f"{row['name']}:{row['version']}": row["state"] for row in rows}


def asked(node: Running, path: str, text: str = "ab", **headers: str) -> httpx.Response:
    url = f"{node.url}/v2/models/{path}/infer"
    return httpx.post(url, content=asking(text), headers=headers, timeout=PATIENCE_S)


def mark_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["outputs"][0]["data"][0].partition("@")[2])


def test_a_model_is_unloaded_and_loaded_again_while_the_node_runs() -> None:
    """Its session is closed, and another opened; the other model answers all the while."""
    first, second = Shelf("first"), Shelf("second")
    with serving(first, second) as node:
        assert index(node) == {"first:1": "READY", "second:1": "READY"}
        assert change(node, "first", "unload").json() == {"name": "first", "unload": True}
        assert first.opened[0].is_closed
        assert index(node) == {"first:1": "UNAVAILABLE", "second:1": "READY"}
        assert index(node, ready=True) == {"second:1": "READY"}
        refused = asked(node, "first")
        assert refused.status_code == 503
        assert "/v2/repository/models/first/load" in refused.json()["error"]
        ready = httpx.get(f"{node.url}/v2/models/first/ready", timeout=PATIENCE_S)
        assert (ready.status_code, ready.json()) == (503, {"name": "first", "ready": False})
        assert mark_of(asked(node, "second")) == "second:1:a"
        assert change(node, "first", "load").json() == {"name": "first", "load": True}
        assert mark_of(asked(node, "first")) == "first:1:a"
        assert len(first.opened) == 2


def test_the_last_model_may_go_and_come_back() -> None:
    """Health and the repository answer without any model."""
    only = Shelf("only")
    with serving(only) as node:
        assert change(node, "only", "unload").status_code == 200
        assert httpx.get(f"{node.url}/v2/health/ready", timeout=PATIENCE_S).status_code == 200
        assert httpx.get(f"{node.url}/v2", timeout=PATIENCE_S).json()["version"] == "0"
        assert httpx.get(f"{node.url}/metrics", timeout=PATIENCE_S).status_code == 200
        assert asked(node, "only").status_code == 503
        assert asked(node, "other").status_code == 404
        assert change(node, "only", "load").status_code == 200
        assert mark_of(asked(node, "only")) == "only:1:a"


def test_versions_older_than_one_that_cannot_be_loaded_are_loaded() -> None:
    """The documentation says so; a call that names the version changes nothing then."""
    first, second = Shelf("first", is_initial=False), Shelf("first", "2", error=ModelError("broken"))
    second.is_initial = False
    with serving(Shelf("other"), first, second) as node:
        assert change(node, "first", "load", version="2").status_code == 400
        assert first.opened == []
        assert change(node, "first", "load").status_code == 400
        assert index(node) == {"other:1": "READY", "first:1": "READY", "first:2": "UNAVAILABLE"}


def test_requests_in_flight_are_answered_before_an_unload_ends() -> None:
    """The session is not closed under them."""
    shelf = Shelf("first")
    with serving(shelf) as node, ThreadPoolExecutor(2) as pool:
        (session,) = shelf.opened
        session.gate.clear()
        answer = pool.submit(asked, node, "first")
        until(lambda: bool(session.answered))
        unload = pool.submit(change, node, "first", "unload")
        until(lambda: index(node)["first:1"] == "UNLOADING")
        assert not session.is_closed
        assert asked(node, "first").status_code == 503  # what comes now is refused
        session.gate.set()
        assert mark_of(answer.result()) == "first:1:a"
        assert unload.result().status_code == 200
        assert session.is_closed


def test_two_loads_of_one_name_at_once_open_it_once() -> None:
    """The second finds the files as the first read them."""
    shelf = Shelf("late", is_initial=False)
    with serving(Shelf("first"), shelf) as node, ThreadPoolExecutor(2) as pool:
        shelf.gate.clear()
        loads = [pool.submit(change, node, "late", "load") for _ in range(2)]
        assert shelf.is_opening.wait(PATIENCE_S)
        assert index(node)["late:1"] == "LOADING"
        assert mark_of(asked(node, "first")) == "first:1:a"  # others answer meanwhile
        shelf.gate.set()
        assert [one.result().status_code for one in loads] == [200, 200]
        assert len(shelf.opened) == 1


def test_a_model_whose_files_changed_is_loaded_anew_without_a_gap() -> None:
    """The one that answers now is closed once there is another."""
    shelf = Shelf("first")
    with serving(shelf) as node:
        change(node, "first", "load")
        assert len(shelf.opened) == 1
        shelf.stamp = "b"
        shelf.gate.clear()
        shelf.is_opening.clear()
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(change, node, "first", "load")
            assert shelf.is_opening.wait(PATIENCE_S)
            assert mark_of(asked(node, "first")) == "first:1:a"
            shelf.gate.set()
            assert load.result().status_code == 200
        assert mark_of(asked(node, "first")) == "first:1:b"
        assert [one.is_closed for one in shelf.opened] == [True, False]


def test_a_load_that_fails_leaves_everything_as_it_was() -> None:
    """The old version answers; a model that was not loaded says why it is not."""
    first, late = Shelf("first"), Shelf("late", is_initial=False, error=ModelError("late.onnx is no model."))
    with serving(first, late) as node:
        first.stamp, first.error = "b", ModelError("first.onnx is cut off.")
        for name, why in (("first", "cut off"), ("late", "no model")):
            failed = change(node, name, "load")
            assert failed.status_code == 400
            assert why in failed.json()["error"]
        assert index(node) == {"first:1": "READY", "late:1": "UNAVAILABLE"}
        assert mark_of(asked(node, "first")) == "first:1:a"
        assert "no model" in asked(node, "late").json()["error"]


def test_an_unloaded_model_is_freed_at_once(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node and its connections form reference cycles, and `pliant node` has the collector skip what it
    began with: an operator who unloads a model would get no memory back."""
    shelf = Shelf("m")
    monkeypatch.setattr("pliant.run.unused_memory.gc", gc)
    request.addfinalizer(freeze_everything)
    with serving(Shelf("first"), shelf) as node:
        gc.freeze()
        for _ in range(3):
            session = weakref.ref(shelf.opened.pop())
            assert change(node, "m", "unload").status_code == 200
            assert session() is None
            assert change(node, "m", "load").status_code == 200
        assert gc.get_freeze_count()


def test_a_request_gets_the_newest_version_or_the_one_it_names() -> None:
    """Numbers count as numbers: 10 is newer than 9."""
    nine, ten = Shelf("m", "9"), Shelf("m", "10")
    with serving(ten, nine) as node:
        assert mark_of(asked(node, "m")) == "m:10:a"
        assert mark_of(asked(node, "m/versions/9")) == "m:9:a"
        assert asked(node, "m/versions/8").status_code == 404
        about = httpx.get(f"{node.url}/v2/models/m", timeout=PATIENCE_S).json()
        assert about["versions"] == ["9", "10"]
        assert change(node, "m", "unload", version="10").status_code == 200
        assert mark_of(asked(node, "m")) == "m:9:a"
        assert asked(node, "m/versions/10").status_code == 503


def test_the_least_recently_used_is_evicted_and_loaded_again_when_asked() -> None:
    """Both are within the budget at any time; a model that fits in no way is refused."""
    memory = MemoryBudget(100)
    a, b, c = Shelf("a", n_bytes=40), Shelf("b", n_bytes=50), Shelf("c", n_bytes=60, is_initial=False)
    huge = Shelf("huge", n_bytes=101, is_initial=False)
    with serving(a, b, c, huge, memory=memory) as node:
        assert mark_of(asked(node, "b")) == "b:1:a"
        assert mark_of(asked(node, "a")) == "a:1:a"  # b is the least recently used
        assert change(node, "c", "load").status_code == 200
        assert index(node) == {
            "a:1": "READY", "b:1": "UNAVAILABLE", "c:1": "READY", "huge:1": "UNAVAILABLE"
        }  # fmt: skip
        assert httpx.get(f"{node.url}/v2/models/b/ready", timeout=PATIENCE_S).status_code == 200
        assert index(node)["b:1"] == "UNAVAILABLE"  # a probe of health loads nothing
        assert mark_of(asked(node, "b")) == "b:1:a"
        assert index(node)["b:1"] == "READY"
        assert len(b.opened) == 2
        before = index(node)
        refused = change(node, "huge", "load")
        assert refused.status_code == 409
        assert "--memory" in refused.json()["error"]
        assert index(node) == before


def test_what_was_evicted_for_a_model_that_fails_is_loaded_again() -> None:
    """Else a broken file would take models away."""
    memory = MemoryBudget(100)
    a, b = Shelf("a", n_bytes=80), Shelf("b", n_bytes=50, is_initial=False)
    errors: Iterator[Exception] = iter((BudgetError("too little", 30), ModelError("b is no model.")))
    b.open = lambda memory: _raise(next(errors))  # type: ignore[method-assign]
    with serving(a, b, memory=memory) as node:
        failed = change(node, "b", "load")
        assert failed.status_code == 400, failed.text
        assert "b is no model" in failed.json()["error"]
        assert index(node) == {"a:1": "READY", "b:1": "UNAVAILABLE"}
        assert mark_of(asked(node, "a")) == "a:1:a"
        assert len(a.opened) == 2


def _raise(error: Exception) -> OpenModel:
    raise error


@pytest.mark.parametrize(
    ("path", "body", "status", "why"),
    [
        ("models/none/load", {}, 404, "no model 'none'; it has 'first'"),
        ("models/first/load", {"parameters": {"config": "{}"}}, 400, "config"),
        ("models/first/load", {"parameters": {"version": "7"}}, 404, "has no version '7'"),
        ("models/first/unload", {"parameters": {"unload_dependents": False}}, 200, ""),
        ("models/first/load", {"unknown": 1}, 400, "unknown"),
        ("index", [1], 400, "cannot be read"),
        ("nothing", {}, 404, "/nothing' was not found"),
    ],
)
def test_changes_that_cannot_be_are_refused(path: str, body: Any, status: int, why: str) -> None:
    """With the reason; what Triton's client sends by default is understood."""
    with serving(Shelf("first")) as node:
        url = f"{node.url}/v2/repository/{path}"
        answer = httpx.post(url, json=body, headers=AS_OPERATOR, timeout=PATIENCE_S)
        assert answer.status_code == status, answer.text
        assert why in answer.text


def test_only_an_operator_changes_models() -> None:
    """Also where the node is open otherwise."""
    with serving(Shelf("first")) as node:
        for path in ("index", "models/first/load", "models/first/unload"):
            for headers, status in (({}, 401), ({"authorization": "Bearer somebody-else-here"}, 401)):
                answer = httpx.post(f"{node.url}/v2/repository/{path}", headers=headers, timeout=PATIENCE_S)
                assert answer.status_code in (status, 403), answer.text
        assert index(node) == {"first:1": "READY"}


def test_two_models_of_one_name_and_version_are_refused() -> None:
    """No path could tell them apart."""
    with pytest.raises(Exception, match="two models are called a"), serving(Shelf("a"), Shelf("a")):
        pass


def test_an_unloaded_model_of_an_open_session_says_that_it_cannot_come_back() -> None:
    """A program that serves sessions of its own has no files to open again."""
    from pliant.serve.repository.model_entry import session_entry

    entry = session_entry(Upper("own"))
    with running_models([entry], operator_tokens=(OPERATOR,)) as node:
        assert change(node, "own", "unload").status_code == 200
        failed = change(node, "own", "load")
        assert failed.status_code == 400
        assert "cannot be opened again" in failed.json()["error"]


def test_a_node_error_of_a_load_keeps_its_status() -> None:
    """Such as a cluster that cannot be led."""
    late = Shelf("late", is_initial=False, error=NodeError("the port is taken.", status=503))
    with serving(Shelf("first"), late) as node:
        assert change(node, "late", "load").status_code == 503


def test_a_model_called_stats_keeps_its_path() -> None:
    """`/v2/models/stats` is also that of all models' statistics, for nodes without such a model."""
    with serving(Shelf("other"), Shelf("stats")) as node:
        path = f"{node.url}/v2/models/stats"
        assert httpx.get(path, timeout=PATIENCE_S).json()["name"] == "stats"
        assert mark_of(asked(node, "stats")) == "stats:1:a"
        (found,) = httpx.get(f"{path}/stats", timeout=PATIENCE_S).json()["model_stats"]
        assert (found["name"], found["inference_count"]) == ("stats", 1)
        assert change(node, "stats", "unload").status_code == 200
        refused = httpx.get(path, timeout=PATIENCE_S)
        assert refused.status_code == 503
        assert "/v2/repository/models/stats/load" in refused.json()["error"]
    with serving() as node:
        assert httpx.get(f"{node.url}/v2/models/stats", timeout=PATIENCE_S).json() == {"model_stats": []}
