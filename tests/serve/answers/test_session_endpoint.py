"""What a node's own answers tell its router."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from pliant.errors import BudgetError
from pliant.ir.endpoint import Estimate, Request
from pliant.ir.reply import Reply
from pliant.ir.times.timing import Timing
from pliant.serve.protocol.pending_request import PendingRequest
from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, asking, fixed, running
from tests.serve.test_routing import until


class Slow(Upper):
    """It says that an answer takes a second."""

    def estimate(self, request: Request) -> Estimate:
        return Estimate(1.0, None)


class Slowed(Upper):
    """It notes the deadlines of requests, and whether it was to count on devices as measured."""

    def __init__(self, *, may_be_quicker: bool) -> None:
        super().__init__()
        self.deadlines_s: list[float | None] = []
        self.is_evicted = False
        self.n_reconsidered = 0
        self._may_be_quicker = may_be_quicker

    @property
    def loading_s(self) -> float:
        return float(self.is_evicted)

    def reconsider(self) -> bool:
        self.n_reconsidered += 1
        return self._may_be_quicker

    def answer(self, request: Request) -> Reply[None]:
        self.deadlines_s.append(request.deadline_s)
        return super().answer(request)


@pytest.mark.parametrize("may_be_quicker", [True, False])
def test_a_probe_asks_for_the_quickest_answer_where_one_may_be_quicker(may_be_quicker: bool) -> None:
    """No request waits for it, but those that come meanwhile do."""
    served = Slowed(may_be_quicker=may_be_quicker)
    with running(served, **fixed((0, 1.0), (1000, 1.0))) as run:
        node = run.node
        assert node is not None
        assert run.loop is not None
        run.loop.call_soon_threadsafe(node.probe, 7)
        until(lambda: served.n_reconsidered == 1 and node.local.backlog_s == 0.0)
    asked = [deadline_s for deadline_s in served.deadlines_s if deadline_s is not None]
    assert len(asked) == may_be_quicker
    assert all(deadline_s < 0.1 for deadline_s in asked)


def test_a_probe_does_not_load_a_model_that_was_evicted_meanwhile() -> None:
    """It evicted the model that had just been loaded for a request."""
    served = Slowed(may_be_quicker=True)
    with running(served, **fixed((0, 1.0), (1000, 1.0))) as run:
        node = run.node
        assert node is not None
        assert run.loop is not None
        before, begun = len(served.deadlines_s), threading.Event()

        def probe() -> None:
            node.probe(7)
            served.is_evicted = True
            begun.set()

        run.loop.call_soon_threadsafe(probe)
        assert begun.wait(PATIENCE_S)
        until(lambda: node.local.backlog_s == 0.0)
        assert run.post("text").status_code == 200  # after the probe
        assert len(served.deadlines_s) == before + 1
        assert not served.n_reconsidered


def test_a_queue_that_drained_is_not_told_as_a_wait() -> None:
    """The wait was noted when a request came, not when one left: after a burst, an idle node told nodes below
    of a queue that was gone, and they answered themselves, seconds after, more slowly."""
    served = Slow()
    with (
        running(served, **fixed((0, 1.0), (1000, 1.0), wait_memory_s=1e-9)) as run,
        ThreadPoolExecutor(3) as clients,
    ):
        node = run.node
        assert node is not None
        served.gate.clear()
        answers = [clients.submit(run.post, "text") for _ in range(3)]
        until(lambda: node.local.backlog_s > 2.0)
        served.gate.set()
        assert all(answer.result().status_code == 200 for answer in answers)
        until(lambda: node.n_open == 0)
        assert node.router.advertise(node.clock()).wait_s == 0.0


def test_a_request_is_refused_when_its_deadline_passes_before_its_turn_comes() -> None:
    """It waited behind a run that hung, and was told so long after anybody cared."""
    served = Upper()
    with running(served) as run, ThreadPoolExecutor(2) as clients:
        node = run.node
        assert node is not None
        served.gate.clear()
        first = clients.submit(run.post, "text")
        until(lambda: node.n_open == 1)
        body = json.loads(asking("other")) | {"parameters": {"deadline_s": 0.3}}
        url = f"{run.url}/v2/models/upper/infer"
        refused = httpx.post(url, json=body, timeout=PATIENCE_S)
        assert refused.status_code == 503
        assert "no answer is in time" in refused.text
        assert not first.done()
        served.gate.set()
        assert first.result().status_code == 200
    assert b"other" not in served.answered


class Freed(Slow):
    """Another thread always frees what was ready for a shape after its time was estimated."""

    def compiling(self, request: Request) -> Timing:
        return Timing(2.0, 3.0)


def test_requests_are_answered_where_a_shape_is_freed_while_they_are_queued() -> None:
    """Such a request seemed to need less time than its preparation alone; the negative rest ended the compute
    thread, and the request, and all after it, waited for ever: a worker of a cluster had just died."""
    with running(Freed()) as run:
        for _ in range(2):
            assert run.post("text").status_code == 200


@pytest.mark.parametrize("kind", [BudgetError, ValueError])
def test_a_waiting_request_whose_floor_is_out_of_reach_is_refused(kind: type[Exception]) -> None:
    """The error was raised instead of returned: it ended the compute thread, and no later request was
    answered; or the others that were refused with it were never answered. An unexpected one failed them."""

    class Unreached(Upper):
        is_unreached = False

        def estimate(self, request: Request) -> Estimate:
            if self.is_unreached:
                raise kind("no level is as accurate as the floor")
            return super().estimate(request)

    served = Unreached()
    with running(served) as run:
        assert run.node is not None
        local = run.node.local
        asked = PendingRequest(served.request(served.sample(3)), due_s=local.clock() + 1.0, floor=0.9)
        served.is_unreached = True
        for is_contended in (False, True):
            assert isinstance(local.refusal(asked, is_contended), kind)
        late = local.lateness(asked, 0.5)
        assert late.status == 503
        assert "this one takes 500 ms" in str(late)
