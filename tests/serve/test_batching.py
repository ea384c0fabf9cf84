"""Requests that wait at a real node run together, and each gets its own answer, whatever the others do."""

import socket
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from pliant.api.compile_onnx import compile
from pliant.ir.endpoint import Request
from pliant.ir.reply import Reply
from tests.run.batches.test_stacking import ENCODER
from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, Running, asking, fixed, running
from tests.serve.test_routing import until


class Company(Upper):
    """Upper, which answers up to eight texts together; `sizes` are those of its batches."""

    most_together = 8

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.may_fail = False

    def together(self, request: Request) -> Hashable:
        return "texts"

    def answers(self, requests: Sequence[Request]) -> list[Reply[None]]:
        self.sizes.append(len(requests))
        texts = [request.tensors["text"][0] for request in requests]
        if self.may_fail and {b"no", b"bug"} & {*texts}:
            raise ZeroDivisionError("one of them")
        return super().answers(requests)


def _behind(served: Company, run: Running, texts: Sequence[str], **terms: object) -> list[httpx.Response]:
    """Answers to texts that all wait behind another one."""
    node = run.node
    assert node is not None
    served.gate.clear()
    with ThreadPoolExecutor(len(texts) + 1) as clients:
        first = clients.submit(run.post, "first")
        until(lambda: served.answered == [b"first"])
        url = f"{run.url}/v2/models/upper/infer"
        bodies = [asking(text, **({"parameters": terms} if terms else {})) for text in texts]
        answers = [clients.submit(httpx.post, url, content=body, timeout=PATIENCE_S) for body in bodies]
        until(lambda: node.local.n_waiting == len(texts))
        served.gate.set()
        assert first.result().status_code == 200
        return [answer.result() for answer in answers]


def _upper(answer: httpx.Response) -> str:
    found: str = answer.json()["outputs"][0]["data"][0]
    return found


def test_requests_that_wait_together_run_together() -> None:
    """Each gets its own answer; the one that came to an idle node waited for nobody."""
    served, texts = Company(), [f"text {i}" for i in range(11)]
    with running(served, **fixed((0, 1e-3), (1000, 1e-3))) as run:
        answers = _behind(served, run, texts)
        metrics = httpx.get(f"{run.url}/metrics").text
    assert [_upper(answer) for answer in answers] == [text.upper() for text in texts]
    assert served.sizes == [8, 3]
    assert 'pliant_batch_size_sum{model="upper",target="local"} 12.0' in metrics
    assert 'pliant_batch_size_count{model="upper",target="local"} 3.0' in metrics


def test_one_that_fails_in_a_batch_fails_alone() -> None:
    """A text that the model cannot read (400), and a mistake of the model's own (500)."""
    served, texts = Company(), ["a", "no", "b", "bug", "c"]
    served.may_fail = True
    with running(served, **fixed((0, 1e-3), (1000, 1e-3))) as run:
        answers = _behind(served, run, texts)
    assert [answer.status_code for answer in answers] == [200, 400, 200, 500, 200]
    assert [_upper(answer) for answer in answers if answer.status_code == 200] == ["A", "B", "C"]


def test_a_client_that_leaves_is_left_out_of_the_batch() -> None:
    """Its place is free at once, and the others are answered."""
    served = Company()
    with running(served, **fixed((0, 1e-3), (1000, 1e-3))) as run, ThreadPoolExecutor(4) as clients:
        node = run.node
        assert node is not None
        served.gate.clear()
        first = clients.submit(run.post, "first")
        until(lambda: served.answered == [b"first"])
        stays = [clients.submit(run.post, text) for text in ("a", "b")]
        until(lambda: node.local.n_waiting == 2)
        with socket.create_connection(tuple(run.address.split(":"))) as leaves:  # type: ignore[arg-type]
            body = asking("leaves")
            lines = ["POST /v2/models/upper/infer HTTP/1.1", f"host: {run.address}"]
            head = "\r\n".join([*lines, f"content-length: {len(body)}", "", ""])
            leaves.sendall(head.encode() + body)
            until(lambda: node.local.n_waiting == 3, "the third request never waited")
        until(lambda: node.local.n_waiting == 2, "a client left, but its request still waits")
        served.gate.set()
        assert [_upper(answer.result()) for answer in (first, *stays)] == ["FIRST", "A", "B"]
    assert b"leaves" not in served.answered


@pytest.mark.parametrize("stops", [False, True], ids=["stays", "is told to end"])
def test_64_clients_at_once_get_their_own_answers(stops: bool) -> None:
    """Three requests each, of texts that nobody else asks; a node that ends under load answers what it let
    in, and refuses the rest."""
    served = Company()

    def asks(run: Running, client: int) -> list[tuple[str, httpx.Response | None]]:
        found: list[tuple[str, httpx.Response | None]] = []
        for i in range(3):
            text = f"{client} asks {'again ' * i}"
            try:
                found.append((text, run.post(text)))
            except httpx.TransportError:  # nobody listens any more
                assert stops
                found.append((text, None))
            if stops and client == i == 1:
                run.stop()
        return found

    with (
        running(served, queue=256, **fixed((0, 1e-4), (1000, 1e-4))) as run,
        ThreadPoolExecutor(64) as clients,
    ):
        every = [clients.submit(asks, run, client) for client in range(64)]
        found = [one for client in every for one in client.result()]
        if stops:
            run.join()
    answered = [(text, answer) for text, answer in found if answer is not None and answer.status_code == 200]
    assert all(_upper(answer) == text.upper() for text, answer in answered)
    assert len(answered) == len(found) or stops
    assert {answer.status_code for _, answer in found if answer is not None} <= (
        {200, 503} if stops else {200}
    )
    assert len(served.answered) == len({*served.answered})  # nothing ran twice
    assert len(served.answered) >= len(answered)


def test_a_model_from_onnx_answers_64_clients_as_it_answers_one() -> None:
    """Real batches of texts of several lengths, made ready before the node serves."""
    session = compile(ENCODER, threads=2)
    session.answer(session.request(session.sample(3)))
    assert session.prepare_together(64)
    alone = compile(ENCODER, threads=1)
    rng = np.random.default_rng(0)

    def asks(url: str, x: np.ndarray) -> np.ndarray:
        feeds = {"x": x, "mask": np.ones(x.shape[:2], np.float32)}
        inputs = [
            {"name": name, "shape": a.shape, "datatype": "FP32", "data": a.ravel().tolist()}
            for name, a in feeds.items()
        ]
        answer = httpx.post(url, json={"inputs": inputs}, timeout=PATIENCE_S).json()["outputs"][0]
        return np.array(answer["data"], np.float32).reshape(answer["shape"])

    texts = [rng.standard_normal((1, int(n), 8)).astype(np.float32) for n in rng.integers(1, 65, 192)]
    with running(session) as run, ThreadPoolExecutor(64) as clients:
        url = f"{run.url}/v2/models/{session.name}/infer"
        found = list(clients.map(lambda x: asks(url, x), texts))
    for x, y in zip(texts, found, strict=True):
        wanted = alone.run({"x": x, "mask": np.ones(x.shape[:2], np.float32)})["y"]
        np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4)
