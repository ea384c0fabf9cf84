"""Requests that wait here for a turn at an upstream, and what becomes of them."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from pliant.route.router import Router
from tests.serve.liars import Liar
from tests.serve.models import Upper
from tests.serve.nodes import fixed, running
from tests.serve.test_routing import GOOD, HONEST, answer_of, end_below, explained, metric, target_of, until


def in_flight(url: str) -> str:
    return f'pliant_upstream_in_flight{{upstream="{url}"}}'


def test_what_would_only_queue_above_waits_here_and_all_is_answered() -> None:
    """32 clients: some are at the upstream, the others wait for a turn, and nobody is refused."""
    served = Upper(mark="@up")
    with running(served, name="up", queue=8, **fixed(*HONEST)) as up, end_below(up.url) as end:
        until(lambda: target_of(end, 1) == up.url)
        served.gate.clear()
        with ThreadPoolExecutor(32) as pool:
            answers = [pool.submit(answer_of, end, "x") for _ in range(32)]
            waiting = f'pliant_upstream_waiting{{upstream="{up.url}"}}'
            until(lambda: metric(end, waiting) + metric(end, in_flight(up.url)) >= 16)
            assert metric(end, in_flight(up.url)) <= 4
            served.gate.set()
            assert {answer.result() for answer in answers} <= {"X@up", "X@end"}
        assert metric(end, in_flight(up.url)) == metric(end, waiting) == 0
        assert explained(end, 1)["candidates"][1]["reason"] is None


def test_requests_that_wait_for_an_upstream_that_fails_are_answered_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They learn at once that it failed, and not by a timeout each."""
    monkeypatch.setattr("pliant.route.choice.request_progress.SHORTEST_S", 0.5)
    monkeypatch.setattr("pliant.route.choice.request_progress.PATIENCE", 0.0)
    monkeypatch.setattr(Router, "has_room", lambda self, name: self.state(name, 0.0).n_in_flight < 1)
    options = fixed(*HONEST, retry_s=1e5, retry_limit_s=1e5)
    with (
        Liar(is_silent=True, points="[[0,0.0]]") as silent,
        running(Upper(mark="@end"), name="end", upstreams=(silent.url,), **options) as end,
    ):
        until(lambda: target_of(end, 1) == silent.url)
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(lambda _: answer_of(end, "x"), range(8))) == {"X@end"}
        assert silent.n_asked == 1


def test_no_more_than_the_queue_holds_wait_for_an_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else 1,000 clients of a slow upstream would fill the memory of the node below it."""
    monkeypatch.setattr("pliant.route.choice.request_progress.SHORTEST_S", 60.0)  # a busy machine is no fault
    up_model, end_model = Upper(mark="@up"), Upper(mark="@end")
    options = {**fixed(*HONEST), "queue": 1}
    with (
        running(up_model, name="up", **fixed((0, 1e-3))) as up,
        running(end_model, name="end", upstreams=(up.url,), **options) as end,
    ):
        until(lambda: target_of(end, 1) == up.url)
        up_model.gate.clear()
        end_model.gate.clear()
        with ThreadPoolExecutor(16) as pool:
            answers = [pool.submit(end.post, "x") for _ in range(16)]
            refused = 'pliant_requests_total{outcome="refused",target="local"}'
            until(lambda: metric(end, refused) == 16 - 4 - 1 - 2)  # in flight, waiting, at the local model
            up_model.gate.set()
            end_model.gate.set()
            statuses = [answer.result().status_code for answer in answers]
        assert sorted(statuses) == [200] * 7 + [503] * 9


def test_an_upstream_that_is_no_longer_used_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Else a node answers by itself, 100 times slower, and nobody knows why."""
    options = {"points": "[[0,0.0]]", "content": GOOD, "answer_points": "[[0,-1.0]]"}
    with Liar(**options) as liar, end_below(liar.url) as end:  # type: ignore[arg-type]
        until(lambda: target_of(end, 1) == liar.url)
        assert answer_of(end, "x") == "X@liar"
        assert answer_of(end, "x") == "X@end"
        assert "-1.0 seconds" in explained(end, 1)["candidates"][1]["reason"]
        assert metric(end, f'pliant_exclusions_total{{state="aside",upstream="{liar.url}"}}') == 1
    assert [record.levelname for record in caplog.records if "-1.0 seconds" in record.message] == ["WARNING"]
