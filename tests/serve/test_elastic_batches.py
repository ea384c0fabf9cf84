"""Many clients of an elastic model at a real node: their requests run together, within terms and memory."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from pliant.ir.endpoint import Request
from pliant.ir.reply import Reply
from pliant.models.tokenizer import Encoded
from pliant.plan.result import WHOLE_S
from pliant.run.process_memory import MemoryBudget
from pliant.run.submodel.details import ElasticDetails
from pliant.run.submodel.elastic_session import ElasticSession
from pliant.run.submodel.planning import SessionOptions
from pliant.store.build import build
from pliant.store.manifest import put_accuracy
from pliant.store.read import open_store
from tests.run.conftest import kernel_cache as kernel_cache
from tests.run.conftest import paper_profile
from tests.run.submodel.submodel_reference import Reference
from tests.run.submodel.test_elastic_requests import GRID
from tests.serve.nodes import PATIENCE_S, Running, asking, running
from tests.serve.test_routing import until

TERMS: tuple[dict[str, float], ...] = (
    {},
    {"accuracy_floor": 0.7},
    {"accuracy_floor": 0.8},
    {"deadline_s": 60.0},
    {"deadline_s": 90.0, "accuracy_floor": 0.75},
)
WORDS = ("good", "not", "the", "story", "film", "a", "was")


@pytest.fixture(scope="module")
def store(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of four layers that knows what its submodels answer."""
    from pliant.models.hf.checkpoint import open_checkpoint

    model = tiny_model("bert", n_layers=4, widths=(2, 4))
    path = build(open_checkpoint(model), tmp_path_factory.mktemp("served") / "store")
    put_accuracy(path, GRID)
    return path


class Recorder:
    """What a session answered together. `gate`, where it is cleared, holds answers back."""

    def __init__(self, session: ElasticSession, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[list[tuple[Request, Reply[ElasticDetails]]]] = []
        self.gate, self.is_held = threading.Event(), threading.Event()
        self._answers = session.answers
        monkeypatch.setattr(session, "answers", self._recorded)

    def _recorded(self, requests: Sequence[Request]) -> list[Reply[ElasticDetails]]:
        self.is_held.set()
        assert self.gate.wait(PATIENCE_S)
        replies = self._answers(requests)
        self.batches.append(list(zip(requests, replies, strict=True)))
        return replies


@contextmanager
def served(
    path: Path, cache: Path, preload: int | None, memory: MemoryBudget | None
) -> Iterator[tuple[ElasticSession, Running]]:
    options = SessionOptions(WHOLE_S, preload, length=24, n_threads=1, adapts=False)
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
            assert recorder.is_held.wait(PATIENCE_S)
            waiting += [clients.submit(ask, one) for one in asked[1:]]
            assert run.node is not None
            local = run.node.local
            until(lambda: local.n_waiting == len(asked) - 1)
            recorder.gate.set()
            answers = [one.result() for one in waiting]
        best, used = session.best, session.memory.predicted_bytes
        for (_, terms), answer in zip(asked, answers, strict=True):
            assert answer.status_code == 200, answer.text
            accuracy = answer.json()["parameters"]["accuracy"]
            assert accuracy >= terms.get("accuracy_floor", 0.0) - 1e-9
            assert terms or accuracy == pytest.approx(best)
        assert len(recorder.batches) < len(asked) / 2
        given = {tuple(answer.json()["outputs"][0]["data"]) for answer in answers}
        with open_store(store) as one:
            reference = Reference(one, kernel_cache)
            for request, reply in (pair for batch in recorder.batches for pair in batch):
                text = Encoded(request.tensors["ids"], request.tensors["types"])
                found = reply.outputs["logits"][0]
                np.testing.assert_allclose(found, reference.logits(text, reply), rtol=1e-5, atol=1e-6)
                assert any(np.allclose(found, numbers, rtol=1e-6) for numbers in given)
            reference.close()
    assert memory is None or used <= memory.total_bytes
