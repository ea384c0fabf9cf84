"""Clients of a recurrent model at a real node: texts that wait together run together."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from pliant.ir.endpoint import Request
from pliant.ir.reply import Reply
from pliant.kernels.emit.isa import AVX2
from pliant.models.recurrent.recurrent_source import open_recurrent_source
from pliant.models.recurrent.recurrent_spec import RecurrentSpec
from pliant.run.array_sessions.recurrent_session import RecurrentSession
from tests.compiler.rules.run_node import machine
from tests.recurrent_models import WORDS, torchs_answer, write_recurrent
from tests.serve.nodes import PATIENCE_S, asking, running
from tests.serve.test_routing import until

N_CLIENTS, N_REQUESTS = 16, 64
TERMS: tuple[dict[str, float], ...] = ({}, {"deadline_s": 60.0}, {"deadline_s": 90.0})


def test_16_clients_get_their_own_answers_from_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of different lengths and deadlines: one runs alone, those that came meanwhile follow together.

    Each answer is torch's for that text alone.
    """
    pytest.importorskip("torch")
    spec = RecurrentSpec("lstm", 10, 6, 20, pooling=("max", "mean"), labels=("bad", "good"))
    source = open_recurrent_source(write_recurrent(tmp_path, spec))
    session = RecurrentSession(source, *machine(AVX2), name="tiny")
    may_answer, sizes = threading.Event(), list[int]()
    alone, batch = session.answer, session.answers

    def answer(request: Request) -> Reply[None]:
        assert may_answer.wait(PATIENCE_S)
        return alone(request)

    def answers(requests: Sequence[Request]) -> list[Reply[None]]:
        sizes.append(len(requests))
        return batch(requests)

    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS[2:9], random.integers(1, 70))) for _ in range(N_REQUESTS)]
    with running(session, queue=256) as run, ThreadPoolExecutor(N_CLIENTS) as clients:
        monkeypatch.setattr(session, "answer", answer)
        monkeypatch.setattr(session, "answers", answers)

        def ask(i: int) -> httpx.Response:
            body = asking(texts[i], parameters=TERMS[i % len(TERMS)])
            return httpx.post(f"{run.url}/v2/models/tiny/infer", content=body, timeout=PATIENCE_S)

        waiting = [clients.submit(ask, i) for i in range(N_REQUESTS)]
        assert run.node is not None
        local = run.node.local
        until(lambda: local.n_waiting == N_CLIENTS - 1)
        may_answer.set()
        found = [one.result() for one in waiting]
    assert max(sizes) > N_CLIENTS / 2
    for text, reply in zip(texts, found, strict=True):
        assert reply.status_code == 200, reply.text
        want = torchs_answer(source, source.encode(text).ids)
        np.testing.assert_allclose(reply.json()["outputs"][0]["data"], want, rtol=0, atol=1e-5)
