"""A routed session by itself: how it ends, its many callers, and its objective."""

import asyncio
import gc
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

from pliant.errors import DeadlineError, InputError
from pliant.ir.curve import Curve
from pliant.ir.endpoint import Request, ServiceLevel
from pliant.ir.port import Port
from pliant.serve.node.routed_session import RoutedSession
from pliant.serve.node.routing import Routing
from tests.serve.answers.dispatch_fakes import DEADLINE_S, LONG_S
from tests.serve.answers.test_answer_parameters import objective_above
from tests.serve.models import Fake, Upper
from tests.serve.nodes import PATIENCE_S, running
from tests.serve.relay import Relay
from tests.serve.test_routing import until


def test_a_session_that_is_closed_amid_a_ping_leaves_no_task_and_no_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The event loop ended before what it had under way: sockets stayed open until they were collected."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        session = RoutedSession(Upper(), upstreams=[f"http://{host}:{port}"])
        connection, _ = silent.accept()
        with connection:
            session.close()
            connection.settimeout(PATIENCE_S)
            with suppress(ConnectionError):
                while connection.recv(4096):
                    pass
    assert not [record for record in caplog.records if record.name == "asyncio"]


class Double(Fake):
    """`x` FP32 [1] -> `y`, twice that, once `gate` lets it; says that this takes `says_s`."""

    name, identity, max_length = "double", "double", 1

    def __init__(self, says_s: float) -> None:
        super().__init__()
        self.inputs, self.outputs = (Port("x", "float32", (1,)),), (Port("y", "float32", (1,)),)
        self.gate, self.begun = threading.Event(), threading.Event()
        self._said = (ServiceLevel(Curve(((0, says_s),))),)

    def levels(self) -> tuple[ServiceLevel, ...]:
        return self._said

    def request(self, feeds: Mapping[str, np.ndarray]) -> Request:
        return Request(1, tensors=feeds)

    def _answer(self, request: Request) -> dict[str, np.ndarray]:
        self.begun.set()
        assert self.gate.wait(PATIENCE_S)
        return {"y": 2 * request.tensors["x"]}

    def sample(self, length: int) -> dict[str, np.ndarray]:
        return {"x": np.ones(1, np.float32)}

    def close(self) -> None:
        pass


def test_a_session_that_is_closed_amid_an_answer_that_came_too_late_leaves_no_task(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer here was begun beside one from above, which came first; its task is cancelled meanwhile."""
    ending, close = threading.Event(), asyncio.Runner.close

    def ends(runner: asyncio.Runner) -> None:
        ending.set()
        close(runner)

    monkeypatch.setattr(asyncio.Runner, "close", ends)
    local, above = Double(LONG_S), Double(1e-3)
    with running(above, name="above") as node, ThreadPoolExecutor(2) as pool:
        session = RoutedSession(local, upstreams=[node.url])
        until(lambda: session.explain(1, latency=DEADLINE_S).target == node.url)
        request = Request(1, tensors=local.sample(1), deadline_s=DEADLINE_S)
        asked = pool.submit(session.answer, request)
        assert local.begun.wait(PATIENCE_S)
        above.gate.set()
        assert asked.result(PATIENCE_S).outputs["y"] == [2.0]
        closed = pool.submit(session.close)
        assert ending.wait(PATIENCE_S)
        local.gate.set()
        closed.result(PATIENCE_S)
    gc.collect()
    assert not [r.message for r in caplog.records if r.name in ("asyncio", "concurrent.futures")]


def test_however_many_threads_ask_each_gets_its_turn() -> None:
    """A node refuses what its queue cannot hold; a session's callers wait, as those of other sessions do."""
    local = Double(1e-3)
    with RoutedSession(local) as session, ThreadPoolExecutor(150) as pool:
        feeds = [{"x": np.full(1, i, np.float32)} for i in range(150)]
        asked = [pool.submit(session, one) for one in feeds]
        assert local.begun.wait(PATIENCE_S)
        until(lambda: pool._work_queue.empty())  # noqa: SLF001 - each has a thread
        local.gate.set()
        assert [one.result(PATIENCE_S).outputs["y"][0] for one in asked] == [2.0 * i for i in range(150)]


def test_an_objective_is_text_for_a_session_and_for_a_call() -> None:
    """Upstreams get that of a call; joules need the power of this device."""
    above, local = Double(1e-3), Double(LONG_S)
    for one in (above, local):
        one.gate.set()
    feeds = local.sample(1)
    with running(above, name="above") as node, Relay(node.url) as between:
        options = {"upstreams": [between.url], "routing": Routing(objective="mix:0.3", power="1000")}
        with RoutedSession(local, **options) as session:  # type: ignore[arg-type]
            until(lambda: session.explain(1).target == between.url)
            for objective, weights, cost in ((None, None, "cost"), ("energy", [0.0, 1.0], "energy")):
                reply = session(feeds, objective=objective)
                assert (reply.endpoint, reply.details.is_hedged) == ("above", False)
                assert reply.details.reason == f"the most accurate, then the least {cost}"
                assert objective_above(between) == weights
                assert session.explain(1, objective=objective).reason == reply.details.reason
            with pytest.raises(InputError, match="is not an objective"):
                session(feeds, objective="cheap")
            with pytest.raises(InputError, match="is not an objective"):
                session.explain(1, objective="cheap")
    with RoutedSession(local) as session, pytest.raises(InputError, match=r"Routing\(power=\.\.\.\)"):
        session(feeds, objective="energy")
    with pytest.raises(InputError, match="is not an objective"):
        RoutedSession(local, routing=Routing(objective="cheap"))


def test_what_is_explained_is_checked_as_a_request_is() -> None:
    """A length beyond the model's was explained as possible; other mistakes were raw TypeErrors."""
    local = Double(1e-3)
    local.gate.set()
    feeds = local.sample(1)
    with RoutedSession(local) as session:
        for tokens in (-1, 2, 2.5, "x", True):
            with pytest.raises(InputError, match=f"tokens is {tokens!r}; give a whole number, 0 to 1"):
                session.explain(tokens)  # type: ignore[arg-type]
        assert [session.explain(tokens).target for tokens in (0, np.int64(1))] == ["local"] * 2
        mistakes = {"floor": "0.88", "best_effort": "yes", "objective": 3}
        for name, value in mistakes.items():
            with pytest.raises(InputError, match=f"{value!r}.*give"):
                session(feeds, **{name: value})
        with pytest.raises(InputError, match=r"accuracy_floor is '0\.88'; give a fraction"):
            session.explain(1, floor="0.88")  # type: ignore[arg-type]


def test_a_reply_lists_every_endpoint_and_why_it_did_not_answer() -> None:
    """Those that were down, busy or had failed were left out; HTTP lists them (`endpoints`)."""
    local = Double(1e-3)
    local.gate.set()
    with RoutedSession(local, upstreams=["http://127.0.0.1:9"]) as session:
        until(lambda: session.list_peers().upstreams[0].state == "down")
        here, above = session(local.sample(1)).details.endpoints
        assert (here.target, here.is_chosen, here.reason) == ("local", True, None)
        assert (above.target, above.is_chosen, above.total_s) == ("http://127.0.0.1:9", False, None)
        assert "does not answer" in (above.reason or "")


def test_a_refusal_names_the_deadline_that_was_given() -> None:
    """It named only what was left of it, a number that the caller had never seen."""
    local = Double(1.0)
    with RoutedSession(local) as session:
        with pytest.raises(
            DeadlineError, match="ms are left of the deadline of 10 ms, and the soonest, by local"
        ):
            session(local.sample(1), latency="10ms")
        session.retarget(latency="20ms")
        with pytest.raises(DeadlineError, match="ms are left of the deadline of 20 ms"):
            session(local.sample(1))
