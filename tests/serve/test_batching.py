"""Requests that wait at a real node run together, and each gets its own answer, whatever the others do."""

import socket
import threading
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from pliant.api.compile_onnx import compile
from pliant.errors import InputError
from pliant.ir.endpoint import Request
from pliant.ir.reply import Reply
from pliant.run.array_sessions.onnx_session import OnnxSession
from tests.run.batches.test_feed_batcher import ENCODER
from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, Running, asking, fixed, running
from tests.serve.telemetry.test_request_context import lines_of, logged
from tests.serve.test_routing import until


class Company(Upper):
    """Upper, which answers up to eight texts together; `sizes` and `seconds` are those of its batches."""

    most_together = 8

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.seconds: list[float] = []
        self.may_fail = False

    def together(self, request: Request) -> Hashable:
        return "texts"

    def answers(self, requests: Sequence[Request]) -> list[Reply[None]]:
        self.sizes.append(len(requests))
        texts = [request.tensors["text"][0] for request in requests]
        if self.may_fail and {b"no", b"bug"} & {*texts}:
            raise ZeroDivisionError("one of them")
        start_s = time.monotonic()
        replies = super().answers(requests)
        time.sleep(0.02)  # longer than the curve of a text alone says
        self.seconds.append(time.monotonic() - start_s)
        return replies


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
        ids = [{"X-Request-Id": f"id-{text}"} for text in texts]
        answers = [
            clients.submit(httpx.post, url, content=body, headers=id, timeout=PATIENCE_S)
            for body, id in zip(bodies, ids, strict=True)
        ]
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
        (statistics,) = httpx.get(f"{run.url}/v2/models/upper/stats").json()["model_stats"]
    assert (statistics["inference_count"], statistics["execution_count"]) == (12, 3)
    told = {row["batch_size"]: row["compute_infer"] for row in statistics["batch_stats"]}
    assert {size: row["count"] for size, row in told.items()} == {1: 1, 3: 1, 8: 1}
    for size, seconds in zip(served.sizes, served.seconds, strict=True):  # as the session itself timed them
        assert seconds <= told[size]["ns"] / 1e9 < seconds + PATIENCE_S
    assert [_upper(answer) for answer in answers] == [text.upper() for text in texts]
    assert served.sizes == [8, 3]
    assert 'pliant_batch_size_sum{model="upper",model_version="1",target="local"} 12.0' in metrics
    assert 'pliant_batch_size_count{model="upper",model_version="1",target="local"} 3.0' in metrics


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
@pytest.mark.usefixtures("lingering")
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


@pytest.fixture(scope="module")
def encoder_texts() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((1, int(n), 8)).astype(np.float32) for n in rng.integers(1, 65, 96)]


def _prepared(threads: int = 2) -> OnnxSession:
    """A model whose batches run on workers, made ready before a node serves."""
    session = compile(ENCODER, threads=threads)
    session.answer(session.request(session.sample(3)))
    assert session.prepare_together(64)
    return session


def _ask_encoder(run: Running, name: str, x: np.ndarray, **terms: object) -> httpx.Response:
    feeds = {"x": x, "mask": np.ones(x.shape[:2], np.float32)}
    inputs = [
        {"name": name, "shape": a.shape, "datatype": "FP32", "data": a.ravel().tolist()}
        for name, a in feeds.items()
    ]
    body = {"inputs": inputs, **({"parameters": terms} if terms else {})}
    return httpx.post(f"{run.url}/v2/models/{name}/infer", json=body, timeout=PATIENCE_S)


def _check_encoder(texts: Sequence[np.ndarray], answers: Sequence[httpx.Response]) -> int:
    """How many were answered, each as alone."""
    alone, n = compile(ENCODER, threads=1), 0
    for x, answer in zip(texts, answers, strict=True):
        if answer.status_code == 200:
            output = answer.json()["outputs"][0]
            wanted = alone.run({"x": x, "mask": np.ones(x.shape[:2], np.float32)})["y"]
            found = np.array(output["data"], np.float32).reshape(output["shape"])
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
            n += 1
    return n


@pytest.mark.parametrize(
    ("n_threads", "n_workers", "n_beside"), [(2, 1, 1), (2, 4, 2), (6, None, 3), (6, 2, 2)]
)
def test_a_model_from_onnx_answers_64_clients_as_it_answers_one(
    encoder_texts: list[np.ndarray], n_threads: int, n_workers: int | None, n_beside: int
) -> None:
    """Real batches of texts of several lengths, in turns or beside each other."""
    session = _prepared(n_threads)
    with running(session, compute_workers=n_workers) as run, ThreadPoolExecutor(64) as clients:
        found = list(clients.map(lambda x: _ask_encoder(run, session.name, x), encoder_texts))
        assert session.most_beside == n_beside
    assert _check_encoder(encoder_texts, found) == len(encoder_texts)


@pytest.mark.filterwarnings("ignore:.* is compiled again for shapes")  # as the limit may ask for
def test_a_model_with_a_memory_limit_runs_batches_within_it(encoder_texts: list[np.ndarray]) -> None:
    """`pliant node model.onnx --memory`: one request at a time would be the slowest choice under load."""
    limit, session = 1_000_000, compile(ENCODER, threads=2, memory=1_000_000)
    with running(session, learn_s=2.0) as run, ThreadPoolExecutor(64) as clients:
        node, answer, begun, gate = run.node, session.answer, threading.Event(), threading.Event()
        assert node is not None

        def held(request: Request) -> Reply[None]:
            begun.set()
            gate.wait(PATIENCE_S)
            return answer(request)

        session.answer = held  # type: ignore[method-assign]
        asked = [clients.submit(_ask_encoder, run, session.name, encoder_texts[0])]
        assert begun.wait(PATIENCE_S)
        asked += [clients.submit(_ask_encoder, run, session.name, x) for x in encoder_texts[1:64]]
        until(lambda: node.local.n_waiting == 63)
        gate.set()
        found = [one.result() for one in asked]
        lines = httpx.get(f"{run.url}/metrics").text.splitlines()
        assert session.memory.measured_bytes <= session.memory.predicted_bytes <= limit
    n, n_batches = (
        sum(float(line.split()[-1]) for line in lines if line.startswith(f"pliant_batch_size_{name}"))
        for name in ("sum", "count")
    )
    assert n == len(found)
    assert n_batches < n
    assert _check_encoder(encoder_texts[:64], found) == len(found)


def test_a_model_is_unloaded_while_two_workers_run_it(encoder_texts: list[np.ndarray]) -> None:
    """With deadlines that can be kept, cannot, and none: what is answered is right, the rest was refused."""
    session, token = _prepared(), "operator-of-this-test"
    terms: list[dict[str, object]] = [{}, {"deadline_s": 60.0}, {"deadline_s": 0.004}]
    with running(session, operator_tokens=(token,)) as run, ThreadPoolExecutor(32) as clients:
        asked = [
            clients.submit(_ask_encoder, run, session.name, x, **terms[i % 3])
            for i, x in enumerate(encoder_texts)
        ]
        asked[40].result()
        url = f"{run.url}/v2/repository/models/{session.name}/unload"
        gone = httpx.post(url, headers={"authorization": f"Bearer {token}"}, timeout=PATIENCE_S)
        assert gone.status_code == 200
        found = [one.result() for one in asked]
    assert _check_encoder(encoder_texts, found) >= 20
    assert {answer.status_code for answer in found} == {200, 503}
    with pytest.raises(InputError, match="closed"):
        session.answers_beside([session.request(session.sample(3))])


def test_a_failure_in_a_batch_is_logged_with_the_id_of_its_own_request() -> None:
    """The batch runs in the context of one of its requests, which need not be the one that failed."""
    served, texts = Company(), ["a", "bug", "c"]
    served.may_fail = True
    with logged() as stream, running(served, **fixed((0, 1e-3), (1000, 1e-3))) as run:
        _behind(served, run, texts)
    lines = [line for line in lines_of(stream) if "exception" in line]
    assert [(line["request_id"], "ZeroDivisionError" in line["exception"]) for line in lines] == [
        ("id-bug", True)
    ]
