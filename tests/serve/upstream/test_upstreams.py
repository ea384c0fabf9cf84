"""What upstreams and clients may do without harm to a node, and to its other upstreams."""

import asyncio
import json
from collections.abc import Callable
from math import inf
from unittest.mock import Mock

import httpx
import pytest

from pliant.errors import NodeError, RouteError
from pliant.ir.curve import Curve
from pliant.ir.link import Link
from pliant.route.choice.request_terms import Terms
from pliant.route.curve_advert import CurveAdvert, Trail
from pliant.route.node_messages import decode_advert
from pliant.route.router import Router
from pliant.route.router_settings import RouterSettings
from pliant.route.router_tasks import BroadcastTask, RouterTask
from pliant.serve.http.limits import Limits
from pliant.serve.protocol.inference import InferBody
from pliant.serve.upstream.slots import UpstreamSlot
from pliant.serve.upstream.upstreams import REQUEST_HEADER, Upstreams
from tests.route.routers import only
from tests.serve.liars import Liar
from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, fixed, running
from tests.serve.test_routing import (
    GOOD,
    HONEST,
    LATE,
    answer_of,
    end_below,
    explained,
    metric,
    route,
    target_of,
    until,
)

HANGS, ANSWERS = "http://hangs", "http://answers"
STAYS_DOWN = fixed(*LATE, retry_s=1e5, retry_limit_s=1e5)


def test_the_slowest_curve_that_is_believed_breaks_nothing() -> None:
    """The way to that node comes on top of it: pings, metrics and requests are answered nevertheless.

    Times that no answer takes say that there is no memory for the input.
    """
    with Liar(points="[[0,1e7]]") as liar, end_below(liar.url) as end:
        until(lambda: explained(end, 1)["candidates"][1]["constraint"] == "memory")
        for path in ("/v2/pliant/curve", "/metrics"):
            assert httpx.get(end.url + path, timeout=PATIENCE_S).status_code == 200
        assert end.post("x", headers=route(sender="below")).status_code == 200


def test_upstreams_are_pinged_even_after_something_due_could_not_be_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a node that failed once would never again hear of any other."""
    due = Router.take_due_tasks
    failures: list[Exception] = [RouteError("it cannot be"), ZeroDivisionError()]

    def flawed(self: Router, now_s: float) -> tuple[RouterTask, ...]:
        if failures:
            raise failures.pop()
        return due(self, now_s)

    monkeypatch.setattr(Router, "take_due_tasks", flawed)
    with Liar() as liar, end_below(liar.url) as end:
        until(lambda: explained(end, 1)["candidates"][1]["total_s"] is not None)
        assert not failures


def test_a_node_below_is_shown_the_token_that_it_showed() -> None:
    """Whoever has a token says where it is told of changes: another token would be given away there."""
    tokens = ("first-token-0123", "second-token-0123")
    options = fixed((0, 900.0), refit_every=2)
    shown = {"authorization": f"bearer  {tokens[1]}"}
    with Liar() as below, running(Upper(), peer_tokens=tokens, **options) as node:
        headers = shown | route(sender="below", address=below.url)
        pinged = httpx.get(f"{node.url}/v2/pliant/curve", headers=headers, timeout=PATIENCE_S)
        assert pinged.status_code == 200  # and told 900 s
        assert node.post("x", headers=shown).status_code == 200
        until(lambda: below.shown)
        assert below.shown == [f"Bearer {tokens[1]}"]


@pytest.mark.parametrize(
    ("text", "headers", "status"),
    [("no", {}, 400), ("bug", {}, 500), ("x", route(sender="below", patience_s=0.0), 200)],
)
def test_a_client_cannot_take_an_upstream_from_others(
    text: str, headers: dict[str, str], status: int
) -> None:
    """An input that no node answers is its sender's fault, and so is a wait that none could keep."""
    with running(Upper(), name="up", **fixed(*HONEST)) as up, end_below(up.url, **STAYS_DOWN) as end:
        until(lambda: target_of(end, 1) == up.url)
        assert end.post(text, headers=headers).status_code == status
        assert explained(end, 1)["candidates"][1]["reason"] is None


@pytest.mark.parametrize("status", [400, 500])
def test_an_upstream_that_fails_on_what_others_answer_is_left_out(status: int) -> None:
    """Then it was not the input, whatever it says."""
    with Liar(status=status) as liar, end_below(liar.url, **STAYS_DOWN) as end:
        until(lambda: target_of(end, 1) == liar.url)
        assert answer_of(end, "x") == "X@end"
        assert "does not answer" in explained(end, 1)["candidates"][1]["reason"]


@pytest.mark.parametrize("accuracy", [7.0, -0.1, "high", True, None, [0.9]])
def test_an_accuracy_that_cannot_be_is_no_answer(accuracy: object) -> None:
    """It would be passed on to whoever asked, and chosen by."""
    content = json.dumps({**json.loads(GOOD), "parameters": {"accuracy": accuracy}}).encode()
    with Liar(content=content) as liar, end_below(liar.url, **STAYS_DOWN) as end:
        until(lambda: target_of(end, 1) == liar.url)
        assert answer_of(end, "x") == "X@end"
        assert "an accuracy of" in explained(end, 1)["candidates"][1]["reason"]


@pytest.mark.parametrize("id", ["\u00e9", "a\tb", "x" * 65, ""])
def test_ids_that_cannot_be_passed_on_are_refused(id: str) -> None:
    """They would break the request to the next node, as nobody's fault but the client's."""
    with Liar() as liar, end_below(liar.url) as end:
        until(lambda: target_of(end, 1) == liar.url)
        answer = end.post("x", headers={REQUEST_HEADER: id.encode("latin-1")})
        assert answer.status_code == 400
        assert REQUEST_HEADER in answer.json()["error"]
        assert liar.n_asked == 0


def test_a_node_says_why_an_upstream_is_none(caplog: pytest.LogCaptureFixture) -> None:
    """A wrong token looks like a node that is down otherwise; it is logged once, not with every ping."""
    with running(Upper(), name="up", tokens=("first-token-0123",)) as up, end_below(up.url) as end:
        failed = f'pliant_pings_total{{outcome="failed",upstream="{up.url}"}}'
        until(lambda: metric(end, failed) >= 3)
        assert "401" in explained(end, 1)["candidates"][1]["reason"]
    assert [record.levelname for record in caplog.records if "401" in record.message] == ["WARNING"]


def test_a_node_says_what_cannot_be_of_what_an_upstream_tells() -> None:
    """Whoever set it up sees which number it is, and it is over once a ping is right."""
    with Liar(points="[[0,-1.0]]") as liar, end_below(liar.url) as end:
        until(lambda: "-1.0 seconds" in (explained(end, 1)["candidates"][1]["reason"] or ""))


def test_a_node_below_that_does_not_answer_has_one_call_at_a_time() -> None:
    """Each change made another, which took a descriptor for 10 s; the last one is told in the end."""
    sent: list[bytes] = []

    async def work() -> None:
        gate = asyncio.Event()

        async def call(method: str, url: str, headers: object, body: bytes, *_: object) -> Mock:
            sent.append(body)
            await gate.wait()
            return Mock(status=200)

        router, client = Mock(), Mock(call=call)
        router.next_due_s.return_value = inf
        router.take_due_tasks.return_value = ()
        upstreams = Upstreams(router, client, (), "m", None, None, Mock(), Mock(), Limits(), 1)
        running = asyncio.create_task(upstreams.run())

        async def tell(wait_s: float) -> None:
            told = CurveAdvert("here", only(Curve(((0, 1.0),))), frozenset(), wait_s=wait_s)
            n_before, router.take_due_tasks.side_effect = (
                router.take_due_tasks.call_count,
                [[BroadcastTask(("below",), told)]],
            )
            upstreams.changed()
            await soon(lambda: router.take_due_tasks.call_count > n_before)
            router.take_due_tasks.side_effect = None

        for wait_s in (1.0, 2.0, 3.0):
            await tell(wait_s)
        assert len(sent) == 1
        gate.set()
        await soon(lambda: len(sent) == 2)
        await tell(4.0)  # the call has ended: there may be another
        await soon(lambda: len(sent) == 3)
        running.cancel()

    async def soon(is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                await asyncio.sleep(0.001)

    asyncio.run(work())
    assert [decode_advert(body)[0].wait_s for body in sent] == [1.0, 3.0, 4.0]


def test_an_upstream_that_lets_deadlines_pass_is_left_for_another_that_is_slower() -> None:
    """It answers pings, so that nothing but requests in a hurry could tell; each of them was sent there."""
    router = Router("here", RouterSettings(100))
    for url, seconds in ((HANGS, 0.01), (ANSWERS, 0.1)):
        router.add_successor(url, Link(0.01, 1e7))
        router.record_ping(
            url, 0.01, 0.0, CurveAdvert(url[7:], only(Curve(((0, seconds),))), frozenset()), 0.0
        )
    terms = Terms(deadline_s=0.5)

    async def call(*_: object) -> None:
        raise NodeError("it did not answer.", status=504)

    async def work() -> None:
        upstreams = Upstreams(router, Mock(call=call), (), "m", None, None, Mock(), Mock(), Limits(), 1)
        choice = router.choose(5, 0.0, terms=terms, exclude=("local",))
        assert choice.target == HANGS
        slot = UpstreamSlot(router.enter(HANGS, 5, 0.0), 0.0)
        with pytest.raises(NodeError):
            await upstreams.ask(
                HANGS, 5, choice.seconds, Trail().visit("here"), "id", InferBody(b"", None), slot, terms, 0.5
            )
        router.leave(HANGS, slot.ticket, 0.0)

    for _ in range(3):
        asyncio.run(work())
        assert router.choose(5, 0.0, terms=terms, exclude=("local",)).target == ANSWERS, "no word came since"
        router.record_ping(
            HANGS, 0.01, 0.0, CurveAdvert(HANGS[7:], only(Curve(((0, 0.01),))), frozenset()), 0.0
        )
    assert router.choose(5, 0.0, terms=terms, exclude=("local",)).target == ANSWERS
    assert router.choose(5, 0.0, terms=Terms(60.0), exclude=("local",)).target == HANGS, "in no hurry it is"


def test_a_request_without_time_left_is_not_sent() -> None:
    """It was sent with a negative patience, which the upstream refused as invalid."""
    router = Router("here", RouterSettings(100))
    router.add_successor(ANSWERS, Link(0.01, 1e7))
    told = CurveAdvert(ANSWERS[7:], only(Curve(((0, 0.1),))), frozenset())
    router.record_ping(ANSWERS, 0.01, 0.0, told, 0.0)
    client = Mock()

    async def work() -> None:
        upstreams = Upstreams(router, client, (), "m", None, None, Mock(), Mock(), Limits(), 1)
        slot = UpstreamSlot(router.enter(ANSWERS, 5, 0.0), 0.02)
        trail, body = Trail().visit("here"), InferBody(b"", None)
        for patience_s in (-2.29e-05, 0.0):
            with pytest.raises(NodeError, match="no time is left") as late:
                await upstreams.ask(ANSWERS, 5, 0.1, trail, "id", body, slot, Terms(0.02), patience_s)
            assert late.value.status == 504

    asyncio.run(work())
    client.call.assert_not_called()
    assert router.choose(5, 0.0, exclude=("local",)).target == ANSWERS, "it is not to blame"
