"""Two models behind nodes of one process: new shapes in every request, JSON and binary, clients who leave."""

import json
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import pliant
from pliant.api.compile_onnx import compile
from pliant.models.recurrent.recurrent_source import random_recurrent
from pliant.run.session.session import Session
from tests.combined.crowd import crowd
from tests.conformance.array_kinds import SYMBOLIC
from tests.recurrent_models import torchs_answer
from tests.serve.http.connections.raw_sockets import connect
from tests.serve.nodes import PATIENCE_S, Running, running
from tests.serve.test_routing import metric, until

pytestmark = pytest.mark.filterwarnings("ignore:.*is compiled again:UserWarning")

N_CLIENTS, N_EACH, N_WORDS = 12, 8, 50
TOLERANCE = 1e-5  # of numbers about 1


@pytest.fixture
def arrays(kernel_cache: Path) -> Iterator[Session[Any]]:
    with compile(SYMBOLIC, threads=2, images=2, cache=kernel_cache) as session:
        yield session


@pytest.fixture
def words(kernel_cache: Path) -> Iterator[Session[Any]]:
    pytest.importorskip("torch", reason="recurrent models are compared with torch's answers")
    with pliant.open("random:cove-200", threads=2, cache=kernel_cache) as session:
        yield session


def wanted_of(x: np.ndarray) -> np.ndarray:
    """What SYMBOLIC gives: exp(softmax(x)) + x."""
    shares = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return np.asarray(np.exp(shares / shares.sum(-1, keepdims=True)) + x)


def body_of(name: str, array: np.ndarray, is_binary: bool) -> tuple[bytes, dict[str, str]]:
    """A request for binary outputs, its tensor in binary or as JSON."""
    datatype = {"float32": "FP32", "int64": "INT64"}[str(array.dtype)]
    tensor: dict[str, Any] = {"name": name, "shape": array.shape, "datatype": datatype}
    tensor |= {"parameters": {"binary_data_size": array.nbytes}} if is_binary else {"data": array.tolist()}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return (
        (head + array.tobytes(), {"inference-header-content-length": str(len(head))})
        if is_binary
        else (head, {})
    )


def asked(http: httpx.Client, model: str, name: str, array: np.ndarray, is_binary: bool) -> np.ndarray:
    content, headers = body_of(name, array, is_binary)
    response = http.post(f"/v2/models/{model}/infer", content=content, headers=headers)
    assert response.status_code == 200, response.text
    n_json = int(response.headers["inference-header-content-length"])
    (output,) = json.loads(response.content[:n_json])["outputs"]
    return np.frombuffer(response.content[n_json:], np.float32).reshape(output["shape"])


def leave_amid(node: Running, model: str, array: np.ndarray) -> None:
    """Send half of a request, and go."""
    content, _ = body_of("x", array, False)
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    with connect(node) as sock:
        sock.sendall(head.encode() + content[: len(content) // 2])
        sock.shutdown(socket.SHUT_WR)


def test_answers_are_those_to_the_shapes_of_each_client(arrays: Session[Any], words: Session[Any]) -> None:
    """Images are evicted and forms made while others wait for theirs, and half of a request is nobody's.

    An operator reads what the sessions tell of themselves meanwhile.
    """
    source = random_recurrent("cove-200")
    with running(arrays) as first, running(words) as second:

        def ask(client: int) -> None:
            rng = np.random.default_rng(client)
            with (
                httpx.Client(base_url=first.url, timeout=PATIENCE_S) as to_arrays,
                httpx.Client(base_url=second.url, timeout=PATIENCE_S) as to_words,
            ):
                for n in range(N_EACH):
                    x = rng.standard_normal((1 + int(rng.integers(40)), 8)).astype(np.float32)
                    y = asked(to_arrays, arrays.name, "x", x, n % 2 == 0)
                    np.testing.assert_allclose(y, wanted_of(x), atol=TOLERANCE)
                    leave_amid((first, second)[n % 2], (arrays, words)[n % 2].name, x)
                    ids = rng.integers(0, words.vocab, (1, 1 + int(rng.integers(N_WORDS))))
                    z = asked(to_words, words.name, "ids", ids, n % 2 == 1)
                    np.testing.assert_allclose(z[0], torchs_answer(source, ids[0]), atol=TOLERANCE)

        def look(n: int) -> None:
            for session in (arrays, words):
                assert session.weight_bytes >= 0
                assert session.memory.measured_bytes <= session.memory.predicted_bytes
                assert str(session.plan)
                assert repr(session)
            for node in (first, second):
                assert httpx.get(f"{node.url}/metrics", timeout=PATIENCE_S).status_code == 200

        crowd([partial(ask, client) for client in range(N_CLIENTS)], look)
        for node, session in ((first, arrays), (second, words)):
            path = f"/v2/models/{session.name}/infer"
            for status, n in ((200, N_CLIENTS * N_EACH), (499, N_CLIENTS * N_EACH // 2)):
                line = f'pliant_responses_total{{path="{path}",status="{status}"}}'
                until(lambda line=line, n=n, node=node: metric(node, line) == n)  # type: ignore[misc]
            assert metric(node, 'pliant_requests_total{outcome="ok",target="local"}') == N_CLIENTS * N_EACH
            assert metric(node, "pliant_body_bytes") == 0
