"""Nodes that pass requests on: three on loopback, and what happens when one goes, lies or calls back."""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pliant.ir.endpoint import Request
from pliant.route.node_identity import Identity
from pliant.route.node_messages import CURVE_HEADER, ROUTE_HEADER, RouteMessage, decode_advert, encode_route
from pliant.run.session.text_feeds import AnswerArrays
from pliant.serve.http.limits import Limits
from pliant.serve.upstream.upstreams import REQUEST_HEADER
from tests.serve.liars import Liar
from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, Running, fixed, reserved, running

GOOD = json.dumps(
    {
        "model_name": "upper",
        "outputs": [
            {"name": "upper", "datatype": "BYTES", "shape": [1], "data": ["X@liar"]},
            {"name": "n", "datatype": "INT64", "shape": [1], "data": [1]},
        ],
    }
).encode()
OTHER = GOOD.replace(b'"X@liar"', b"7")


AT_ONCE, SOON, LATE = ((0, 1e-6),), ((0, 1e-6), (10, 1e-3), (11, 200.0)), ((0, 500.0),)
"""Curves so far apart that no machine is slow enough to change a choice: `SOON` is quick up to length 10."""
HONEST = ((0, 30.0),)
"""Of a node that others choose instead of LATE, and that keeps its word however slow the machine is."""


def until(holds: Callable[[], object], why: str = "it never came to that") -> None:
    """Look often at first and less often after half a second: most looks are requests, which take a core."""
    start_s = time.monotonic()
    while (passed_s := time.monotonic() - start_s) < 2 * PATIENCE_S:
        if holds():
            return
        time.sleep(0.01 if passed_s < 0.5 else 0.05)
    raise AssertionError(why)


def explained(node: Running, length: int) -> Any:
    url, params = f"{node.url}/v2/pliant/route", {"length": length}
    return httpx.get(url, params=params, headers=node.operator, timeout=PATIENCE_S).json()


def target_of(node: Running, length: int) -> Any:
    return explained(node, length)["target"]


def answer_of(node: Running, text: str) -> str:
    response = node.post(text)
    assert response.status_code == 200, response.text
    word: str = response.json()["outputs"][0]["data"][0]
    return word


def metric(node: Running, line: str) -> float:
    """The sum of the node's samples that have the name and labels of `line`, 0 where there is none."""
    (wanted,) = next(iter(text_string_to_metric_families(f"{line} 0\n"))).samples
    return sum(
        sample.value
        for family in text_string_to_metric_families(
            httpx.get(f"{node.url}/metrics", timeout=PATIENCE_S).text
        )
        for sample in family.samples
        if sample.name == wanted.name and wanted.labels.items() <= sample.labels.items()
    )


def end_below(url: str, **options: Any) -> AbstractContextManager[Running]:
    """An end node that would rather ask at `url`."""
    return running(Upper(mark="@end"), name="end", upstreams=(url,), **{**fixed(*LATE), **options})


@pytest.fixture
def chain() -> Iterator[tuple[Running, Running, Running]]:
    """An end node, a gateway and a server; only short inputs are quick below."""
    with ExitStack() as stack:
        above: tuple[str, ...] = ()
        found = []
        for name, curve in (("server", HONEST), ("gateway", SOON), ("end", SOON)):
            served = Upper(mark=f"@{name}")
            options = fixed(*curve)
            node = stack.enter_context(running(served, name=name, upstreams=above, **options))
            above = (node.url,)
            found.append(node)
        server, gateway, end = found
        until(lambda: target_of(gateway, 400) == server.url)
        until(lambda: target_of(end, 400) == gateway.url)
        yield end, gateway, server


def test_long_inputs_go_up_two_levels_and_short_ones_stay(chain: tuple[Running, Running, Running]) -> None:
    """CRIME 4.2: each node decides for itself, and none knows of more than the next."""
    end, gateway, server = chain
    assert answer_of(end, "x" * 400) == "X" * 400 + "@server"
    assert answer_of(end, "x") == "X@end"
    assert metric(end, f'pliant_requests_total{{outcome="ok",target="{gateway.url}"}}') == 1
    assert metric(gateway, f'pliant_requests_total{{outcome="ok",target="{server.url}"}}') == 1
    assert metric(server, 'pliant_requests_total{outcome="ok",target="local"}') == 1


def test_a_node_says_why_it_chooses(chain: tuple[Running, Running, Running]) -> None:
    """`pliant route explain`: way and answer add up to the total, and the least total is chosen."""
    end, gateway, _ = chain
    about = explained(end, 300)
    here, above = about["candidates"]
    assert about["target"] == gateway.url == above["target"]
    assert (here["target"], here["is_chosen"], above["is_chosen"]) == ("local", False, True)
    assert above["node"] == "gateway"
    assert above["total_s"] == pytest.approx(above["transfer_s"] + above["answer_s"])
    assert above["total_s"] < here["total_s"]
    assert above["age_s"] >= 0
    assert above["reason"] is None


def test_predecessors_hear_of_a_change_without_asking() -> None:
    """CRIME 4.3.3: a server that turns out to be quick tells the gateway, which tells the end node."""
    options = [fixed((0, 900.0), refit_every=5), fixed((0, 500.0)), fixed((0, 700.0))]
    names, above, nodes = ("server", "gateway", "end"), (), []
    with ExitStack() as stack:
        for name, option in zip(names, options, strict=True):
            nodes.append(stack.enter_context(running(Upper(), name=name, upstreams=above, **option)))
            above = (nodes[-1].url,)
        server, gateway, end = nodes
        until(lambda: explained(gateway, 400)["candidates"][1]["total_s"] is not None)
        until(lambda: target_of(end, 400) == gateway.url)
        assert target_of(gateway, 400) == "local"
        for _ in range(5):
            server.post("x")
        until(lambda: target_of(gateway, 400) == server.url)
        until(lambda: explained(end, 400)["candidates"][1]["answer_s"] < 400)
        told = 'pliant_broadcasts_total{outcome="ok"}'
        # More than once where a slow ping moved the way between two of them as well.
        until(lambda: min(metric(server, told), metric(gateway, told)) >= 1)
        assert metric(end, told) == 0
        assert metric(server, "pliant_refits_total") >= 1


@pytest.mark.usefixtures("lingering")
def test_a_node_that_dies_costs_no_answer_and_is_used_again_when_it_is_back() -> None:
    """Nobody restarts anything: the end node answers by itself, and finds the gateway when it returns."""
    with reserved() as where, end_below(url := f"http://{where}") as end:
        assert answer_of(end, "x") == "X@end"  # it is not there yet
        for mark in ("@one", "@two"):
            with running(Upper(mark=mark), name="gateway", listen=where, **fixed(*HONEST)):
                until(lambda: target_of(end, 200) == url)
                assert answer_of(end, "x") == f"X{mark}"
            assert answer_of(end, "x") == "X@end"
            assert explained(end, 200)["candidates"][1]["reason"] is not None


def test_an_upstream_that_fails_a_request_is_replaced_by_the_next_best() -> None:
    """It was chosen, and answers with an error of its own: the client notices nothing but the time."""
    with running(Upper(mark="@good"), name="good", **fixed(*HONEST)) as good, Liar(status=500) as bad:
        both = (bad.url, good.url)
        with running(Upper(mark="@end"), name="end", upstreams=both, **fixed(*LATE)) as end:
            until(lambda: all(row["total_s"] is not None for row in explained(end, 200)["candidates"]))
            assert target_of(end, 200) == bad.url
            assert answer_of(end, "x") == "X@good"
            assert bad.n_asked == 1
            assert metric(end, f'pliant_fallbacks_total{{upstream="{bad.url}"}}') == 1


@pytest.mark.parametrize(
    "lie",
    [
        {"content": b"{}"},
        {"content": b"\xff" * 100},
        {"content": OTHER},
        {"inference_header": "99999"},
        {"content": b"x" * (1 << 17)},
        {"is_silent": True},
    ],
)
def test_an_upstream_that_answers_nonsense_is_not_believed(
    lie: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """[crime.damage] every request is answered correctly; the liar is not asked again."""
    if "is_silent" in lie:
        monkeypatch.setattr("pliant.route.choice.request_progress.SHORTEST_S", 2.0)
    options = {"limits": Limits(body_bytes=1 << 16), **fixed(*LATE, retry_s=1e5, retry_limit_s=1e5)}
    with Liar(**lie) as liar, end_below(liar.url, **options) as end:
        until(lambda: target_of(end, 100) == liar.url)
        assert answer_of(end, "x") == "X@end"
        assert target_of(end, 100) == "local"
        assert answer_of(end, "x") == "X@end"
        assert liar.n_asked == 1


def test_a_node_gives_up_on_the_next_before_it_is_given_up_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else both time out at once, both answer by themselves, and the end node blames the gateway."""
    # The gateway has half of it for its own answer: more than a busy machine keeps a thread waiting.
    monkeypatch.setattr("pliant.route.choice.request_progress.SHORTEST_S", 8.0)
    options = fixed(*HONEST, retry_s=1e5, retry_limit_s=1e5)
    with (
        Liar(is_silent=True) as silent,
        running(Upper(mark="@gateway"), name="gateway", upstreams=(silent.url,), **options) as gateway,
    ):
        until(lambda: target_of(gateway, 100) == silent.url)
        with end_below(gateway.url) as end:
            until(lambda: target_of(end, 100) == gateway.url)
            assert answer_of(end, "x") == "X@gateway"
            assert metric(end, f'pliant_fallbacks_total{{upstream="{gateway.url}"}}') == 0


WRONG_CURVES = (
    "[[0,NaN]]",
    "[[0,-1.0]]",
    "[[0,1e999]]",
    "[[5,1.0],[3,1.0]]",
    "[[0,1.0],[0,2.0]]",
    "[]",
    "{}",
    "[[0]]",
    "[[0,null]]",
    "[[0.5,1.0]]",
    "[[-1,1.0]]",
    json.dumps([[n, 1.0] for n in range(2000)]),
)


@pytest.mark.parametrize("points", WRONG_CURVES)
def test_curves_that_cannot_be_set_their_node_aside(points: str) -> None:
    """[crime.damage] lying curves, in answers to pings: it is never a candidate, and nothing breaks."""
    with Liar(points=points) as liar, end_below(liar.url) as end:
        until(lambda: metric(end, f'pliant_pings_total{{outcome="misbehaved",upstream="{liar.url}"}}') >= 1)
        assert target_of(end, 100) == "local"
        assert "excluded for" in explained(end, 100)["candidates"][1]["reason"]
        assert answer_of(end, "x").endswith("@end")


@pytest.mark.parametrize("points", WRONG_CURVES)
def test_curves_that_cannot_be_in_answers_set_their_node_aside(points: str) -> None:
    """[crime.damage] the answer is right and is given; what came beside it ends the trust."""
    liar_of_answers = Liar(points=json.dumps(HONEST), content=GOOD, answer_points=points)
    with liar_of_answers as liar, end_below(liar.url) as end:
        until(lambda: target_of(end, 100) == liar.url)
        assert answer_of(end, "x") == "X@liar"
        assert target_of(end, 100) == "local"
        assert "excluded for" in explained(end, 100)["candidates"][1]["reason"]
        assert answer_of(end, "x") == "X@end"


def test_broadcasts_that_cannot_be_are_refused() -> None:
    """[crime.damage] lying curves, sent by somebody: 4xx with a reason."""
    with running(Upper(), name="end") as end:
        for body in (b"", b"{", b"[]", b'{"node":"x","points":[[0,-1]],"through":["x"]}', b"x" * 9000):
            response = httpx.post(f"{end.url}/v2/pliant/tell", content=body, timeout=PATIENCE_S)
            assert 400 <= response.status_code < 500
            assert response.json()["error"]
        stranger = b'{"node":"nobody","points":[[0,1.0]],"through":["nobody"]}'
        response = httpx.post(f"{end.url}/v2/pliant/tell", content=stranger, timeout=PATIENCE_S)
        assert response.status_code == 404


def test_a_node_that_takes_longer_than_it_tells_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """[crime.damage] a curve that is a lie, not a wrong form: no wrong route lasts."""
    monkeypatch.setattr("pliant.route.choice.request_progress.SHORTEST_S", PATIENCE_S)
    with Liar(points="[[0,0.0]]", content=GOOD, spent_s=7.0) as liar, end_below(liar.url) as end:
        until(lambda: target_of(end, 50) == liar.url)
        for _ in range(6):
            assert answer_of(end, "x").startswith("X@")
        assert target_of(end, 50) == "local"
        assert liar.n_asked == 3


class SlowReader(Upper):
    """Takes its time before it knows what is asked."""

    def request(self, feeds: AnswerArrays) -> Request:
        time.sleep(0.2)
        return super().request(feeds)


def test_what_reading_a_request_takes_is_part_of_the_way_to_a_node() -> None:
    """Its curve does not tell of it, so what it says it spent does not either (CRIME 4.3.1)."""
    with running(SlowReader()) as node:
        start_s = time.monotonic()
        response = node.post("x", headers=route(sender="below"))
        away_s = time.monotonic() - start_s
        spent = decode_advert(response.headers[CURVE_HEADER])[1]
        assert spent is not None
        assert 0.0 < spent.seconds <= away_s - 0.2


def test_two_nodes_that_are_each_others_upstream_answer_all_the_same() -> None:
    """A circle is a mistake of the person who set it up, not a reason to hang."""
    with (
        reserved() as where,
        running(Upper(mark="@one"), name="one", upstreams=(f"http://{where}",), **fixed(*HONEST)) as one,
    ):
        two = running(Upper(mark="@two"), name="two", listen=where, upstreams=(one.url,), **fixed(*LATE))
        with two as other:
            until(lambda: target_of(other, 10) == one.url)
            # What comes back to its asker is left out of what that is told.
            until(lambda: explained(one, 10)["candidates"][1]["answer_s"] == 500.0)
            assert [answer_of(one, "x"), answer_of(other, "x")] == ["X@one", "X@one"]


def route(**more: Any) -> dict[str, str]:
    return {ROUTE_HEADER: encode_route(RouteMessage(**more)), **Identity().headers()}


def test_a_request_that_comes_back_is_refused() -> None:
    """Its path names this node: whoever sent it tries somebody else."""
    with running(Upper(), name="end") as end:
        response = end.post("a", headers=route(path=("first", "end", "second"), hops_left=3, sender="second"))
        assert response.status_code == 508
        assert "circle" in response.json()["error"]
        assert CURVE_HEADER in response.headers


def test_a_request_without_hops_left_is_answered_where_it_is(chain: tuple[Running, Running, Running]) -> None:
    """The hop limit guards where paths do not."""
    _, gateway, _ = chain
    headers = route(path=("a", "b"), hops_left=0, sender="b")
    response = gateway.post("x" * 400, headers=headers)
    assert response.json()["outputs"][0]["data"][0].endswith("@gateway")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"path":["a","a"]}', '{"hops_left":-1}', "x" * 9000])
def test_routes_that_cannot_be_read_are_refused(text: str) -> None:
    """[crime.damage] headers of another node."""
    with running(Upper(), name="end", limits=Limits(head_bytes=16000)) as end:
        response = end.post("a", headers={ROUTE_HEADER: text})
        assert response.status_code == 400
        assert response.json()["error"]


def test_a_request_that_arrives_twice_runs_once() -> None:
    """While it runs, and when it was just answered; another body is another request."""
    served = Upper()
    with running(served, name="end") as end:
        headers = {REQUEST_HEADER: "abc"}
        served.gate.clear()
        with ThreadPoolExecutor(2) as pool:
            both = [pool.submit(end.post, "same", headers=headers) for _ in range(2)]
            until(lambda: end.node is not None and end.node.n_open == 2)
            served.gate.set()
            answers = [future.result().content for future in both]
        answers.append(end.post("same", headers=headers).content)
        assert len(set(answers)) == 1
        assert served.answered == [b"same"]
        assert end.post("other", headers=headers).json()["outputs"][0]["data"] == ["OTHER"]
        assert end.post("same").status_code == 200
        assert served.answered == [b"same", b"other", b"same"]


def test_a_full_queue_says_when_to_come_again() -> None:
    """Back-pressure: one runs, one waits, the third is told 503 at once; later all is well."""
    served = Upper()
    served.gate.clear()
    with running(served, queue=1) as node:
        with ThreadPoolExecutor(2) as pool:
            first = [pool.submit(node.post, "a"), pool.submit(node.post, "b")]
            until(lambda: node.node is not None and node.node.n_open == 2)
            third = node.post("c")
            assert third.status_code == 503
            assert int(third.headers["retry-after"]) >= 1
            assert metric(node, "pliant_queue_length") == 1
            served.gate.set()
            assert all(future.result().status_code == 200 for future in first)
        assert node.post("c").status_code == 200
        assert metric(node, 'pliant_requests_total{outcome="refused",target="local"}') == 1


def test_where_the_queue_is_full_others_are_asked() -> None:
    """A short input would stay; while there is no room for it, it goes up."""
    served = Upper(mark="@end")
    with (
        running(Upper(mark="@up"), name="up", **fixed(*LATE)) as up,
        ThreadPoolExecutor(1) as pool,
        running(served, name="end", queue=0, upstreams=(up.url,), **fixed(*AT_ONCE)) as end,
    ):
        until(lambda: explained(end, 1)["candidates"][1]["total_s"] is not None)
        served.gate.clear()
        first = pool.submit(answer_of, end, "x")
        until(lambda: end.node is not None and end.node.n_open == 1)
        assert answer_of(end, "x") == "X@up"
        served.gate.set()
        assert first.result() == "X@end"
