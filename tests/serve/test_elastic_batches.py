"""Many clients of an elastic model at a real node: their requests run together, within terms and memory."""

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import pytest

from pliant.ir.endpoint import Request
from pliant.ir.reply import Reply
from pliant.models.tokenizer import TokenizedInput
from pliant.plan.plan import NO_TARGET_S
from pliant.run.process_memory import MemoryBudget
from pliant.run.submodel.elastic_details import ElasticDetails
from pliant.run.submodel.elastic_session import ElasticSession
from pliant.run.submodel.plans.submodel_planner import SessionOptions
from pliant.serve.repository.model_entry import session_entry
from pliant.store.read import open_store
from tests.graded_store import graded_store
from tests.run.conftest import kernel_cache as kernel_cache
from tests.run.conftest import paper_profile
from tests.run.submodel.submodel_reference import Reference
from tests.serve.nodes import PATIENCE_S, Running, asking, running, running_models
from tests.serve.repository.test_repository_api import OPERATOR, change, index
from tests.serve.test_routing import until

store = graded_store

TERMS: tuple[dict[str, float], ...] = (
    {},
    {"accuracy_floor": 0.7},
    {"accuracy_floor": 0.8},
    {"deadline_s": 60.0},
    {"deadline_s": 90.0, "accuracy_floor": 0.75},
)
WORDS = ("good", "not", "the", "story", "film", "a", "was")


class Recorder:
    """What a session answered together. It answers as often as `may_answer` says; `n_begun` runs began.

    Where it `fails`, runs of several fail, and that of the text with the number 4.
    """

    def __init__(self, session: ElasticSession, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[list[tuple[Request, Reply[ElasticDetails]]]] = []
        self.may_answer, self.n_begun, self.fails = threading.Semaphore(0), 0, False
        self._answers = session.answers
        monkeypatch.setattr(session, "answers", self._recorded)

    def _recorded(self, requests: Sequence[Request]) -> list[Reply[ElasticDetails]]:
        self.n_begun += 1
        assert self.may_answer.acquire(timeout=PATIENCE_S)
        if self.fails and (len(requests) > 1 or requests[0].length == 4 + 2):
            raise ZeroDivisionError("a bug")
        replies = self._answers(requests)
        self.batches.append(list(zip(requests, replies, strict=True)))
        return replies


@dataclass(slots=True)
class Crowd:
    """Requests at a node, whose model `recorder` holds."""

    recorder: Recorder
    run: Running
    clients: ThreadPoolExecutor
    waiting: "list[Future[httpx.Response]]" = field(default_factory=list)

    @property
    def n_waiting(self) -> int:
        assert self.run.node is not None
        return self.run.node.local.n_waiting

    def ask(self, text: str, **terms: float) -> "Future[httpx.Response]":
        url = f"{self.run.url}/v2/models/tiny/infer"
        return self.clients.submit(
            httpx.post, url, content=asking(text, parameters=terms), timeout=PATIENCE_S
        )

    def statuses(self) -> list[int]:
        return [one.result().status_code for one in self.waiting]


@contextmanager
def served(
    path: Path, cache: Path, preload: int | None, memory: MemoryBudget | None
) -> Iterator[tuple[ElasticSession, Running]]:
    options = SessionOptions(NO_TARGET_S, preload, length=24, n_threads=1, adapts=False)
    profile = paper_profile(lengths=(8, 24, 64))
    with open_store(path) as one:
        session = ElasticSession(one, profile, options, name="tiny", cache=cache, memory=memory)
        with running(session, memory=memory, queue=256) as run:
            yield session, run


@pytest.mark.parametrize("kind", ["in memory", "read while they run", "within a budget"])
def test_clients_of_mixed_terms_are_answered_together(
    kind: str, store: Path, kernel_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """48 requests of 16 clients: each has its own answer at the bits that ran for all, at its floor or
    above, those without terms the best there is, and the bound of memory is kept."""
    preload, memory = {
        "in memory": (10**9, None),
        "read while they run": (0, None),
        "within a budget": (None, MemoryBudget(700_000)),
    }[kind]
    rng = np.random.default_rng(0)
    asked = [(" ".join(rng.choice(WORDS, rng.integers(1, 8))), TERMS[i % len(TERMS)]) for i in range(48)]
    with served(store, kernel_cache, preload, memory) as (session, run):
        recorder = Recorder(session, monkeypatch)
        url = f"{run.url}/v2/models/tiny/infer"

        def ask(one: tuple[str, dict[str, float]]) -> httpx.Response:
            return httpx.post(url, content=asking(one[0], parameters=one[1]), timeout=PATIENCE_S)

        with ThreadPoolExecutor(len(asked)) as clients:
            waiting = [clients.submit(ask, asked[0])]
            until(lambda: recorder.n_begun == 1)
            waiting += [clients.submit(ask, one) for one in asked[1:]]
            assert run.node is not None
            local = run.node.local
            until(lambda: local.n_waiting == len(asked) - 1)
            recorder.may_answer.release(len(asked))
            answers = [one.result() for one in waiting]
        best, used = session.best, session.memory.predicted_bytes
        for (_, terms), answer in zip(asked, answers, strict=True):
            assert answer.status_code == 200, answer.text
            accuracy = answer.json()["parameters"]["accuracy"]
            assert accuracy >= terms.get("accuracy_floor", 0.0) - 1e-9
            assert terms or accuracy == pytest.approx(best)
        assert len(recorder.batches) < len(asked) / 2
        computed = []
        with open_store(store) as one:
            reference = Reference(one, kernel_cache)
            for request, reply in (pair for batch in recorder.batches for pair in batch):
                text = TokenizedInput(request.tensors["ids"], request.tensors["types"])
                found = reply.outputs["logits"][0]
                wanted = reference.logits(text, reply)  # near 0: differences of sums of about 1
                np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=5e-6)
                computed.append(found)
            reference.close()
        for answer in answers:  # a probe of the node's own is computed too, and is nobody's answer
            given = answer.json()["outputs"][0]["data"]
            assert any(np.allclose(given, found, rtol=1e-6) for found in computed)
    assert memory is None or used <= memory.total_bytes


@contextmanager
def crowded(path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crowd]:
    """A node whose first request is being answered, and four others with 1 to 4 words wait behind it."""
    options = SessionOptions(NO_TARGET_S, 10**9, length=24, n_threads=1, adapts=False)
    with open_store(path) as one, ThreadPoolExecutor(8) as clients:
        session = ElasticSession(one, paper_profile(lengths=(8, 24, 64)), options, name="tiny", cache=cache)
        recorder = Recorder(session, monkeypatch)
        recorder.may_answer.release(10**6)
        with running_models([session_entry(session)], operator_tokens=(OPERATOR,), queue=64) as run:
            recorder.may_answer, recorder.n_begun = threading.Semaphore(0), 0
            made = Crowd(recorder, run, clients)
            made.waiting = [made.ask("a")]
            until(lambda: recorder.n_begun == 1)
            made.waiting += [made.ask("good " * n) for n in (1, 2, 3, 4)]
            until(lambda: made.n_waiting == 4)
            try:
                yield made
            finally:
                recorder.may_answer.release(10**6)


def test_a_model_that_fails_on_a_batch_is_asked_for_each_of_it(
    store: Path, kernel_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the one that fails alone is told so."""
    with crowded(store, kernel_cache, monkeypatch) as crowd:
        crowd.recorder.fails = True
        crowd.recorder.may_answer.release(99)
        assert crowd.statuses() == [200, 200, 200, 200, 500]


def test_a_batch_is_answered_whatever_happens_to_its_model_and_its_members(
    store: Path, kernel_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member leaves while it runs, the node is told to read its files anew, and the model is unloaded; a
    deadline of a millisecond and a floor out of reach are refused meanwhile."""
    with crowded(store, kernel_cache, monkeypatch) as crowd:
        run, recorder = crowd.run, crowd.recorder
        host, port = run.address.split(":")
        with socket.create_connection((host, int(port))) as leaves:
            body = asking("the film")
            lines = ["POST /v2/models/tiny/infer HTTP/1.1", f"host: {run.address}"]
            head = "\r\n".join([*lines, f"content-length: {len(body)}", "", ""])
            leaves.sendall(head.encode() + body)
            until(lambda: crowd.n_waiting == 5)
            recorder.may_answer.release()
            until(lambda: recorder.n_begun == 2)  # the batch of five
        late = [crowd.ask("good", deadline_s=1e-3), crowd.ask("good", accuracy_floor=0.999)]
        assert [one.result().status_code for one in late] == [503, 422]
        assert run.reloads is not None
        assert run.loop is not None
        asyncio.run_coroutine_threadsafe(run.reloads.run(), run.loop).result(PATIENCE_S)
        unloading = crowd.clients.submit(change, run, "tiny", "unload")
        until(lambda: index(run)["tiny:1"] != "READY")
        assert crowd.ask("good").result().status_code == 503
        assert not unloading.done()
        recorder.may_answer.release(99)
        assert crowd.statuses() == [200] * 5
        assert unloading.result().status_code == 200
        assert [len(batch) for batch in recorder.batches[-2:]] == [1, 5]
