"""What the shape of an input needs, memory or compiling, decides where it is answered."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import pliant
from pliant.api.open_endpoint import open_endpoint
from pliant.ir.endpoint import Request
from pliant.ir.times.timing import Timing
from pliant.run.session.text_feeds import AnswerArrays
from tests.run.array_sessions.attention_model import WIDTH, ids, write_attention
from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, Running, asking, fixed, running
from tests.serve.test_routing import AT_ONCE, LATE, explained, metric, until

N_CLIENTS, MOST_N = 32, 60


class Shaped(Upper):
    """It compiles for each length in `compiling_s`. Only a shape tells that it has memory up to length
    `most_n`.
    """

    def __init__(self, mark: str = "", most_n: int | None = None, compiling_s: float = 30.0) -> None:
        super().__init__(mark=mark)
        self._compiling = Timing(compiling_s, compiling_s)
        self._ready: set[int] = set()
        self._most_n = most_n

    def compiling(self, request: Request) -> Timing | None:
        return None if request.length in self._ready else self._compiling

    def most_length(self, like: Request | None = None) -> int | None:
        return None if like is None else self._most_n

    def _answer(self, request: Request) -> AnswerArrays:
        self._ready.add(request.length)
        return super()._answer(request)


def ask(node: Running, text: str, **parameters: Any) -> httpx.Response:
    body = json.loads(asking(text)) | {"parameters": parameters}
    return httpx.post(f"{node.url}/v2/models/upper/infer", json=body, timeout=PATIENCE_S)


def test_a_shape_that_is_not_ready_is_refused_and_then_prepared() -> None:
    """The deadline cannot be kept; no answer would be late, and a later one is in time."""
    served = Shaped()
    with running(served, **fixed((0, 1e-6))) as node:
        text = "a text of some length"
        row = explained(node, len(text))["candidates"][0]
        assert row["compiling_s"] == 30.0
        assert row["total_s"] == pytest.approx(30.0, abs=1e-3)
        assert text.encode() not in served.answered
        refused = ask(node, text, deadline_s=10.0)
        assert refused.status_code == 503
        assert "takes 3e+04 ms" in refused.text
        until(lambda: served.compiling(served.request({"text": [text.encode()]})) is None)
        assert ask(node, text, deadline_s=10.0).status_code == 200
        row = explained(node, len(text))["candidates"][0]
        assert (row["compiling_s"], row["total_s"]) == (None, pytest.approx(0.0, abs=1e-3))
    assert served.answered.count(text.encode()) == 2


def test_a_shape_that_is_not_ready_is_answered_by_a_node_where_it_is() -> None:
    """Also without a deadline: compiling would take longer."""
    served, above = Shaped("@here"), Upper(mark="@above")
    with (
        running(above, name="above", **fixed((0, 1.0))) as upstream,
        running(served, name="here", upstreams=(upstream.url,), **fixed(*AT_ONCE)) as node,
    ):
        text = "a text of some length"
        until(lambda: explained(node, len(text))["target"] == upstream.url)
        response = ask(node, text, deadline_s=20.0, explain=True).json()
        assert response["outputs"][0]["data"] == [text.upper() + "@above"]
        rows = json.loads(response["parameters"]["endpoints"])
        assert {row["target"]: row["compiling_s"] for row in rows} == {"local": 30.0, upstream.url: None}
        until(lambda: served.compiling(served.request({"text": [text.encode()]})) is None)
        assert ask(node, text, deadline_s=20.0).json()["outputs"][0]["data"] == [text.upper() + "@here"]
        assert metric(node, "pliant_fallbacks_total") == 0


def test_a_request_that_is_answered_here_is_not_answered_again() -> None:
    """Its own run made the shape ready, so nothing is left to prepare."""
    served, above = Shaped("@here", compiling_s=0.01), Upper(mark="@above")
    with (
        running(above, name="above", **fixed(*LATE)) as upstream,
        running(served, name="here", upstreams=(upstream.url,), **fixed(*AT_ONCE)) as node,
    ):
        until(lambda: explained(node, 20)["candidates"][-1]["total_s"] is not None)
        given = [letter * 20 for letter in "abcd"] + [letter * 21 for letter in "efgh"]
        for text in given:
            assert ask(node, text, deadline_s=PATIENCE_S).status_code == 200
        assert node.node is not None
        local = node.node.local
        until(lambda: local.n_waiting == 0 and local.backlog_s == 0.0)
        assert ask(node, "i" * 20).status_code == 200
        assert sorted(text for text in served.answered if text[:1] in b"bcdefgh") == sorted(
            text.encode() for text in given[1:]
        )


def test_a_shape_without_memory_is_answered_above_at_once() -> None:
    """Its levels cannot tell, since they are by length alone."""
    served, above = Shaped("@here", most_n=12), Upper(mark="@above")
    with (
        running(above, name="above", **fixed(*LATE)) as upstream,
        running(served, name="here", upstreams=(upstream.url,), **fixed(*AT_ONCE)) as node,
    ):
        until(lambda: explained(node, 20)["target"] == upstream.url)
        row = explained(node, 20)["candidates"][0]
        assert (row["constraint"], row["most_n"]) == ("memory", 12)
        assert ask(node, "a" * 20).json()["outputs"][0]["data"] == ["A" * 20 + "@above"]
        assert ask(node, "a" * 12).json()["outputs"][0]["data"] == ["A" * 12 + "@here"]
        assert metric(node, "pliant_fallbacks_total") == 0
    assert b"a" * 20 not in served.answered
    with running(Shaped(most_n=12), **fixed(*AT_ONCE)) as node:
        refused = ask(node, "a" * 20)
        assert refused.status_code == 422
        assert "takes the longest, up to 12" in refused.text


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.filterwarnings("ignore:.* is compiled again")
@pytest.mark.parametrize("batch", [1, "batch"])
def test_arrays_too_long_for_the_memory_are_answered_above(tmp_path: Path, batch: int | str) -> None:
    """From many clients at once: half of them fit, none fails, and none is tried here in vain."""
    onnxruntime = pytest.importorskip("onnxruntime")
    path = write_attention(tmp_path / "attention.onnx", batch)
    with pliant.open(path, threads=1, memory="1GB") as session:
        session.run(ids(1, MOST_N))
        memory = session.memory.predicted_bytes
    little = open_endpoint(str(path), threads=1, memory=memory)
    reference = onnxruntime.InferenceSession(path)
    lengths = [MOST_N + (1 + i if i % 2 else -i) for i in range(N_CLIENTS)]
    with (
        running(open_endpoint(str(path), threads=1), name="large") as large,
        running(little, name="small", upstreams=(large.url,)) as small,
        ThreadPoolExecutor(N_CLIENTS) as clients,
        httpx.Client(timeout=2 * PATIENCE_S) as http,
    ):
        until(lambda: explained(small, MOST_N + 1)["target"] == large.url)
        row = explained(small, MOST_N + 1)["candidates"][0]
        assert (row["constraint"], row["most_n"]) == ("memory", MOST_N)
        assert explained(small, MOST_N)["candidates"][0]["constraint"] is None

        def asked(n: int) -> Any:
            tensor = {"name": "ids", "datatype": "INT64", "shape": [1, n], "data": ids(1, n)["ids"].tolist()}
            body = {"inputs": [tensor], "parameters": {"explain": True}}
            return http.post(f"{small.url}/v2/models/attention/infer", json=body)

        for n, response in zip(lengths, clients.map(asked, lengths), strict=True):
            assert response.status_code == 200, response.text
            found = response.json()
            y = np.array(found["outputs"][0]["data"], np.float32).reshape(1, n, WIDTH)
            np.testing.assert_allclose(y, reference.run(None, ids(1, n))[0], rtol=0, atol=1e-4)
            rows = {row["target"]: row for row in json.loads(found["parameters"]["endpoints"])}
            if n > MOST_N:
                assert found["parameters"]["endpoint"] == "large"
                assert rows["local"]["constraint"] == "memory"
            else:
                assert rows["local"]["constraint"] is None
        assert metric(small, "pliant_fallbacks_total") == 0
        assert little.memory.predicted_bytes <= memory
