"""Nodes whose model can be less accurate and sooner: what is answered while links are up, and when not."""

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import pliant
from pliant.api.open_endpoint import open_endpoint
from pliant.errors import BudgetError, NodeError
from pliant.ir.curve import Curve
from pliant.ir.endpoint import Estimate, Request, ServiceLevel
from pliant.ir.reply import Reply
from pliant.ir.times.level_selector import Level, LevelSelector
from pliant.ir.times.timing import Timing
from pliant.route.choice.request_terms import Terms
from tests.run.conftest import paper_profile
from tests.serve.models import Upper, texts
from tests.serve.nodes import PATIENCE_S, Running, asking, fixed, running
from tests.serve.test_routing import metric, until

WHOLE, SMALL = 0.92, 0.8


class TwoWays:
    """An endpoint that says it takes `small_s` or `whole_s`, whatever it really takes."""

    name = "two"

    def __init__(self, mark: str, small_s: float, whole_s: float) -> None:
        ways = ((SMALL, small_s), (WHOLE, whole_s))
        self.trade = LevelSelector(Level(0, 1000, f"{a}", a, a, (Timing(s, s),) * 2) for a, s in ways)
        self.mark = mark
        self.deadlines: list[float | None] = []

    @property
    def best(self) -> float | None:
        return self.trade.best

    def curve(self, accuracy_floor: float = 0.0) -> Curve:
        return self.trade.curve(accuracy_floor)

    def levels(self) -> tuple[ServiceLevel, ...]:
        return self.trade.levels()

    def estimate(self, request: Request) -> Estimate:
        pick = self.trade.pick(request.length, request.accuracy_floor, request.deadline_s)
        return Estimate(pick.time.median_s, pick.level.accuracy)

    def answer(self, request: Request) -> Reply[None]:
        self.deadlines.append(request.deadline_s)
        pick = self.trade.pick(request.length, request.accuracy_floor, request.deadline_s)
        word = f"{pick.level.accuracy}{self.mark}"
        outputs = {"upper": texts(word), "n": np.array([1])}
        return Reply(outputs, self.name, pick.time.median_s, None, accuracy=pick.level.accuracy)


class Elastic(Upper):
    """`Upper` with two ways to answer; `gate` holds answers back."""

    def __init__(self, mark: str, small_s: float, whole_s: float) -> None:
        super().__init__()
        self.two = TwoWays(mark, small_s, whole_s)

    @property
    def best(self) -> float | None:
        return self.two.best

    def curve(self, accuracy_floor: float = 0.0) -> Curve:
        return self.two.curve(accuracy_floor)

    def levels(self) -> tuple[ServiceLevel, ...]:
        return self.two.levels()

    def estimate(self, request: Request) -> Estimate:
        return self.two.estimate(request)

    def answer(self, request: Request) -> Reply[None]:
        assert self.gate.wait(60)
        return self.two.answer(request)


def asked(node: Running, **parameters: float) -> Any:
    body = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["abcde"]}]}
    url = f"{node.url}/v2/models/upper/infer"
    return httpx.post(url, json={**body, "parameters": parameters}, timeout=PATIENCE_S)


def told(response: httpx.Response) -> tuple[str, dict[str, Any]]:
    """The word, and the parameters but for the endpoint, which is the one that marked it."""
    assert response.status_code == 200, response.text
    said = response.json()
    word, found = said["outputs"][0]["data"][0], said["parameters"]
    assert found.pop("endpoint") == ("up" if word.endswith("@up") else "local")
    return word, found


def test_a_node_alone_answers_with_what_fits_and_says_so() -> None:
    """Whole where nothing is asked or time allows, small where it does not."""
    with running(Elastic("", 20.0, 40.0), name="alone", **fixed((0, 40.0))) as node:
        assert told(asked(node)) == ("0.92", {"accuracy": WHOLE})
        assert told(asked(node, deadline_s=50)) == ("0.92", {"accuracy": WHOLE, "met": True})
        assert told(asked(node, deadline_s=30)) == ("0.8", {"accuracy": SMALL, "met": True})
        assert told(asked(node, accuracy_floor=0.5)) == ("0.8", {"accuracy": SMALL})


def test_a_deadline_that_cannot_be_kept_is_refused_with_what_could_be_had() -> None:
    """A late and less accurate answer is given to those who ask for it, and to nobody else."""
    with running(Elastic("", 20.0, 40.0), name="alone", **fixed((0, 40.0))) as node:
        refused = asked(node, deadline_s=10)
        assert refused.status_code == 503
        assert "the soonest, by local, takes 2e+04 ms with an accuracy of 0.8" in refused.json()["error"]
        assert asked(node, accuracy_floor=0.9, deadline_s=30).status_code == 503
        late = told(asked(node, deadline_s=1e-6, best_effort=True))
        assert late == ("0.8", {"accuracy": SMALL, "met": False})
        assert told(asked(node, accuracy_floor=0.9, deadline_s=30, best_effort=True))[0] == "0.92"
        assert asked(node, deadline_s=10, best_effort=1).status_code == 400
        assert metric(node, 'pliant_requests_total{outcome="refused",target="local"}') == 2


def test_a_request_that_would_be_late_after_its_wait_is_not_computed() -> None:
    """What was in time when it came may not be when its turn comes; its answer would be late and worse."""
    model = Elastic("", 1e-3, 2e-3)
    with running(model, name="alone", **fixed((0, 2e-3))) as node, ThreadPoolExecutor(2) as pool:
        model.gate.clear()
        first = pool.submit(asked, node)
        until(lambda: node.node is not None and node.node.n_open == 1)
        second = pool.submit(asked, node, deadline_s=1000)
        until(lambda: node.node is not None and node.node.n_open == 2)
        assert node.node is not None
        node.node.local.clock = lambda: time.monotonic() + 2000.0
        model.gate.set()
        assert told(first.result())[0] == "0.92"
        assert second.result().status_code == 503
        assert len(model.two.deadlines) == 1


def test_best_effort_may_be_a_nodes_own_and_goes_along() -> None:
    """The node above answers late as well, where both would be."""
    with running(Elastic("@up", 5.0, 25.0), name="up", **fixed((0, 25.0))) as up:
        below = Elastic("@end", 50.0, 60.0)
        options = {"upstreams": (up.url,), **fixed((0, 60.0))}
        with running(below, name="end", terms=Terms(best_effort=True), **options) as end:
            until(lambda: end.node is not None and end.node.explain(5).target == up.url)
            word, said = told(asked(end, deadline_s=1e-3))
            assert word == "0.8@up"
            assert said["accuracy"] == SMALL
            assert asked(end, deadline_s=1e-3, best_effort=False).status_code == 503


def test_what_would_be_refused_is_explained_as_refused() -> None:
    """By the terms of the node: no answer here or above is in time."""
    with running(Elastic("", 20.0, 40.0), name="alone", terms=Terms(1.0), **fixed((0, 40.0))) as node:
        assert node.node is not None
        found = node.node.explain(5)
        assert found.target is None
        assert not found.candidates[0].is_chosen
        assert found.candidates[0].constraint == "deadline"
        assert "no answer is in time" in found.reason
        assert asked(node).status_code == 503


def test_a_session_has_no_deadline_of_its_own(tiny_model: Callable[..., Path]) -> None:
    """Requests that named none were given the least accurate submodel, late as well, to keep 50 ms."""
    served = open_endpoint(str(tiny_model("bert", n_layers=4, widths=(2, 4))), preload="0", threads=1)
    with running(served, name="alone") as node:
        assert node.node is not None
        assert node.node.terms == Terms()


def test_what_nobody_can_promise_is_refused_with_the_limit() -> None:
    """422 for an accuracy that the model has not, or that was never measured; 400 for no accuracy at all."""
    with running(Elastic("", 20.0, 40.0), name="alone") as node:
        response = asked(node, accuracy_floor=0.95)
        assert response.status_code == 422
        assert "0.92" in response.json()["error"]
        assert asked(node, accuracy_floor=7).status_code == 400
        assert asked(node, deadline_s=-1).status_code == 400
    with running(Upper(), name="plain") as node:
        response = asked(node, accuracy_floor=0.5)
        assert response.status_code == 422
        assert "leave it out. Only a text encoder that was packed" in response.json()["error"]
        assert told(asked(node, deadline_s=100)) == ("ABCDE", {"met": True})


def test_an_input_too_long_for_the_nodes_memory_is_refused_with_the_limit(
    tiny_store: Callable[..., Path],
) -> None:
    """It was a failure, 500, for which the node below left this one out, as another had the memory."""
    with pytest.raises(BudgetError) as least:
        pliant.open(tiny_store(), memory=1, length=4, profile=paper_profile())
    found = re.search(r"Give at least (\d+) bytes", str(least.value))
    assert found is not None
    served = pliant.open(tiny_store(), memory=int(found[1]), length=4, profile=paper_profile())
    with running(served, name="alone") as node:
        url = f"{node.url}/v2/models/{served.name}/infer"
        said = [httpx.post(url, content=asking(x), timeout=PATIENCE_S) for x in ("bad", "good " * 20, "bad")]
        assert [response.status_code for response in said] == [200, 422, 200]
        assert (
            "no memory for an input of length 22: local takes the longest, up to" in said[1].json()["error"]
        )


def test_a_nodes_own_terms_hold_where_a_request_has_none() -> None:
    """`--latency` and `--accuracy-floor`."""
    with running(Elastic("", 20.0, 40.0), name="alone", terms=Terms(30.0, 0.5)) as node:
        assert told(asked(node)) == ("0.8", {"accuracy": SMALL, "met": True})
        assert told(asked(node, deadline_s=50))[0] == "0.92"
        assert asked(node, accuracy_floor=0.95).status_code == 422


def test_a_node_whose_own_floor_is_above_what_was_measured_does_not_start() -> None:
    """It would refuse every request that names no floor, and only its clients would find out."""
    with (
        pytest.raises(NodeError, match=r"floor of 0\.95.*0\.92"),
        running(Elastic("", 20.0, 40.0), name="alone", terms=Terms(30.0, 0.95)),
    ):
        pass


@pytest.mark.usefixtures("lingering")
def test_accuracy_is_given_up_when_the_link_is_down_and_not_before() -> None:
    """Up: the whole answer of the node above, in time. Down: what this device can do by then."""
    with running(Elastic("@up", 1.0, 2.0), name="up", **fixed((0, 2.0))) as up:
        below = Elastic("@end", 20.0, 40.0)
        with running(below, name="end", upstreams=(up.url,), terms=Terms(30.0), **fixed((0, 40.0))) as end:
            assert end.node is not None
            until(lambda: end.node is not None and end.node.explain(5).target == up.url)
            assert told(asked(end)) == ("0.92@up", {"accuracy": WHOLE, "met": True})
            up.stop()
            up.join()
            assert told(asked(end)) == ("0.8@end", {"accuracy": SMALL, "met": True})
            assert told(asked(end, deadline_s=100))[0] == "0.92@end"


def test_a_deadline_goes_along_and_the_node_above_gives_up_accuracy_for_it() -> None:
    """Less what has passed; where both would be late, the sooner answers."""
    up_model = Elastic("@up", 5.0, 25.0)
    with running(up_model, name="up", **fixed((0, 25.0))) as up:
        below = Elastic("@end", 50.0, 60.0)
        with running(below, name="end", upstreams=(up.url,), **fixed((0, 60.0))) as end:
            until(lambda: end.node is not None and end.node.explain(5).target == up.url)
            assert told(asked(end))[0] == "0.92@up"
            assert up_model.two.deadlines[-1] is None
            assert told(asked(end, deadline_s=10))[0] == "0.8@up"
            left_s = up_model.two.deadlines[-1]
            assert left_s is not None
            assert 0 < left_s < 10


def test_what_is_explained_is_what_a_request_gets() -> None:
    """By the deadline that requests have where they say none: the whole answer above would be late."""
    with running(Elastic("@up", 30.0, 40.0), name="up", **fixed((0, 40.0))) as up:
        below = Elastic("@end", 10.0, 60.0)
        with running(below, name="end", upstreams=(up.url,), terms=Terms(20.0), **fixed((0, 60.0))) as end:
            node = end.node
            assert node is not None
            until(lambda: node.explain(5).candidates[1].total_s is not None)
            found = node.explain(5)
            assert found.target == "local"
            assert found.candidates[1].constraint == "deadline"
            assert told(asked(end))[0] == "0.8@end"


def test_an_answer_that_does_not_come_is_given_up_while_there_is_time_for_another() -> None:
    """The node above hangs: the deadline is kept here, with less accuracy."""
    hangs = Elastic("@up", 1e-4, 2e-4)
    with running(hangs, name="up", **fixed((0, 2e-4))) as up:
        below = Elastic("@end", 0.5, 100.0)
        with running(below, name="end", upstreams=(up.url,), **fixed((0, 100.0))) as end:
            until(lambda: end.node is not None and end.node.explain(5).target == up.url)
            hangs.gate.clear()
            try:
                word, said = told(asked(end, deadline_s=4))
            finally:
                hangs.gate.set()
            assert (word, said["accuracy"], said["met"]) == ("0.8@end", SMALL, True)
            counted = 'pliant_hedges_total{answered="%s",upstream="' + up.url + '"}'
            assert metric(end, counted % "here") == 1
            assert metric(end, counted % "there") == 0
            assert told(asked(end, deadline_s=8))[0] == "0.92@up", "it is there again"
            assert metric(end, counted % "here") == 1, "an answer in time costs nothing here"


def test_a_floor_is_asked_of_the_node_that_reaches_it() -> None:
    """The node above has the same accuracies at other times: each floor and deadline finds its endpoint."""
    with running(Elastic("@up", 5.0, 15.0), name="up", **fixed((0, 15.0))) as up:
        below = Elastic("@end", 1.0, 60.0)
        with running(below, name="end", upstreams=(up.url,), **fixed((0, 60.0))) as end:
            until(lambda: end.node is not None and end.node.explain(5).target == up.url)
            assert told(asked(end, accuracy_floor=0.9))[0] == "0.92@up"
            assert told(asked(end, accuracy_floor=0.5))[0] == "0.8@end", "the soonest that reaches it"
            assert told(asked(end, deadline_s=30))[0] == "0.92@up"
            assert told(asked(end, deadline_s=10))[0] == "0.8@end", "of equals the soonest"
            assert asked(end, deadline_s=10, accuracy_floor=0.9).status_code == 503
            refused = asked(end, accuracy_floor=0.95)
            assert refused.status_code == 422
            assert "0.9200" in refused.json()["error"]
            rows = {row.target: row for row in end.node.explain(5, Terms(10.0, 0.9)).candidates}
            assert {row.constraint for row in rows.values()} == {"deadline"}
            assert rows[up.url].bound_s == pytest.approx(15.0, abs=1.0)


@pytest.mark.parametrize("binary", [False, True])
def test_a_small_real_model_trades_through_http(binary: bool, tiny_model: Callable[..., Path]) -> None:
    """A session end to end: no hurry is the whole model's answer, an impossible deadline is refused."""
    directory = tiny_model("bert", n_layers=4, widths=(2, 4))
    served = open_endpoint(str(directory), preload="100MB", threads=1)
    with pliant.open(directory, latency="60min", preload="100MB", threads=1) as session:
        expected = session("good film")
    assert expected.logits is not None
    name = served.name
    with running(served, name="alone") as node:
        body = {
            "inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["good film"]}],
            "outputs": [{"name": "logits", "parameters": {"binary_data": binary}}],
        }
        url = f"{node.url}/v2/models/{name}/infer"
        response = httpx.post(url, json=body, timeout=PATIENCE_S)
        if binary:
            n_json = int(response.headers["inference-header-content-length"])
            logits = np.frombuffer(response.content[n_json:], np.float32)
        else:
            logits = np.array(response.json()["outputs"][0]["data"], np.float32)
        np.testing.assert_allclose(logits, expected.logits, rtol=1e-5)
        impossible: dict[str, float] = {"deadline_s": 1e-5}
        late = httpx.post(url, json={**body, "parameters": impossible}, timeout=PATIENCE_S)
        assert late.status_code == 503
        impossible |= {"best_effort": True}
        late = httpx.post(url, json={**body, "parameters": impossible}, timeout=PATIENCE_S)
        assert late.status_code == 200
        assert b'"met":false' in late.content
        floor = httpx.post(url, json={**body, "parameters": {"accuracy_floor": 0.5}}, timeout=PATIENCE_S)
        assert floor.status_code == 422
        assert "never measured" in floor.json()["error"]
