"""A node that has no model when it starts, and knows those that come into its folder."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest

from pliant.errors import InputError, ModelError, NodeError
from pliant.route.choice.request_terms import Terms
from pliant.run.process_memory import MemoryBudget
from pliant.serve.repository.model_entry import ModelEntry
from tests.serve.nodes import ANY_PORT, PATIENCE_S, Running, running_models
from tests.serve.repository.test_changes_together import start
from tests.serve.repository.test_repository_api import (
    AS_OPERATOR,
    OPERATOR,
    Shelf,
    asked,
    change,
    index,
    mark_of,
)


def finding(shelves: list[Shelf], *, memory: MemoryBudget | None = None, **options: Any) -> Any:
    """A node that finds the models of `shelves`, whatever there is whenever it looks."""

    def find() -> Sequence[ModelEntry]:
        if any(isinstance(shelf.error, InputError) for shelf in shelves):
            raise InputError("the folder cannot be read.")
        return [shelf.entry for shelf in shelves]

    return running_models([], memory, find, operator_tokens=(OPERATOR,), **options)


def got(node: Running, path: str) -> httpx.Response:
    return httpx.get(f"{node.url}{path}", timeout=PATIENCE_S)


def test_a_node_without_a_model_serves_all_that_is_of_none() -> None:
    """It is ready: what it lacks is a model, which an operator loads."""
    with finding([], grpc=ANY_PORT, name="here") as node:
        assert node.node is None
        assert got(node, "/v2/health/ready").status_code == 200
        assert got(node, "/v2").json()["name"] == "here"
        assert "pliant_responses_total" in got(node, "/metrics").text
        assert got(node, "/").status_code == 200
        paths = got(node, "/openapi.json").json()["paths"]
        assert {"/v2", "/v2/repository/index", "/v2/repository/models/{model}/load"} <= paths.keys()
        assert [path for path in paths if path.startswith("/v2/models")] == ["/v2/models/stats"]
        assert index(node) == {}
        for path in ("late/infer", "late/config"):
            assert httpx.post(f"{node.url}/v2/models/{path}", timeout=PATIENCE_S).status_code in (404, 405)
        embedded = httpx.post(f"{node.url}/v1/embeddings", json={"model": "late", "input": "a"})
        assert embedded.status_code == 404
        outlook = httpx.get(f"{node.url}/v2/pliant/outlook", headers=AS_OPERATOR, timeout=PATIENCE_S)
        assert (outlook.status_code, "no loaded model" in outlook.text) == (404, True)
        with httpx.stream("GET", f"{node.url}/v2/pliant/events", headers=AS_OPERATOR) as events:
            lines = iter(events.iter_lines())
            assert "event: numbers" in lines  # which reads up to it
            assert json.loads(next(lines).partition(" ")[2])["models"] == {}


def test_a_model_that_comes_later_is_listed_loaded_and_answers() -> None:
    """Nothing is loaded before an operator says so; one that has gone is no longer known once unloaded."""
    shelves: list[Shelf] = []
    with finding(shelves) as node:
        assert change(node, "late", "load").status_code == 404
        shelves.append(Shelf("late", is_initial=False))
        assert index(node) == {"late:1": "UNAVAILABLE"}
        assert asked(node, "late").status_code == 503
        assert change(node, "late", "load").status_code == 200
        assert mark_of(asked(node, "late")) == "late:1:a"
        shelves.append(Shelf("late", "2", is_initial=False))
        assert change(node, "late", "load", version="2").status_code == 200
        assert mark_of(asked(node, "late")) == "late:2:a"
        first, second = shelves
        shelves.clear()
        assert index(node) == {"late:1": "READY", "late:2": "READY"}
        assert mark_of(asked(node, "late")) == "late:2:a"
        assert change(node, "late", "unload").status_code == 200
        assert first.opened[0].is_closed
        assert second.opened[0].is_closed
        assert index(node) == {}
        assert asked(node, "late").status_code == 404


def test_a_folder_that_cannot_be_read_is_said_and_changes_nothing() -> None:
    """The models that are loaded answer on."""
    shelves = [Shelf("late", is_initial=False)]
    with finding(shelves) as node:
        change(node, "late", "load")
        shelves.append(Shelf("bad", error=InputError("broken")))
        answers: list[Callable[[], httpx.Response]] = [
            lambda: change(node, "late", "load"),
            lambda: httpx.post(f"{node.url}/v2/repository/index", headers=AS_OPERATOR, timeout=PATIENCE_S),
        ]
        for answer in answers:
            assert (answer().status_code, "cannot be read" in answer().text) == (400, True)
        assert mark_of(asked(node, "late")) == "late:1:a"


def test_a_model_whose_files_moved_is_loaded_from_where_they_are() -> None:
    """Such as from `NAME.onnx` into `NAME/`; the entry of the first look was opened for ever."""
    shelves = [Shelf("late", is_initial=False)]
    with finding(shelves) as node:
        for stamp in ("a", "b"):
            shelves[0] = Shelf("late", is_initial=False, stamp=stamp)
            assert change(node, "late", "load").status_code == 200
            assert mark_of(asked(node, "late")) == f"late:1:{stamp}"


def test_a_found_model_that_never_reaches_a_new_floor_keeps_the_old_defaults() -> None:
    """It stays when others are replaced, and would refuse every request."""
    with finding([Shelf("late")], terms=Terms(1.0)) as node:
        assert node.controls is not None
        config = replace(node.controls.config, entries=(), terms=Terms(accuracy_floor=0.5))
        changing = node.controls.apply(config)
        with pytest.raises(NodeError, match=r"no request could have an accuracy floor of 0\.5"):
            start(node, changing).result(PATIENCE_S)
        assert [one.terms for one in node.controls.repository.nodes] == [Terms(1.0)]


def test_a_found_model_is_still_one_after_a_configuration_that_fails() -> None:
    """A named model stays known when its files are gone, and so would this one for ever."""
    shelves = [Shelf("late", is_initial=False)]
    with finding(shelves) as node:
        assert node.repository is not None
        assert index(node) == {"late:1": "UNAVAILABLE"}
        bad = Shelf("bad", error=ModelError("broken"))
        with pytest.raises(ModelError):
            start(node, node.repository.configure([shelves[0].entry, bad.entry])).result(PATIENCE_S)
        shelves.clear()
        assert index(node) == {}
