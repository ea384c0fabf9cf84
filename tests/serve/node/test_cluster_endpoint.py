"""A cluster behind a node: real workers on loopback, asked over HTTP as any other model."""

from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest

from pliant.api.open_cluster import Cluster
from pliant.cluster.net.key import new_key
from pliant.errors import BudgetError, InputError
from pliant.ir.endpoint import Endpoint, Request
from pliant.serve.node.cluster_endpoint import ClusterText, open_cluster_text
from tests.cluster.processes import small_model, workers
from tests.cluster.test_clustered import write_key
from tests.serve.models import texts
from tests.serve.nodes import PATIENCE_S, running

TEXT = "a charming film"
TOLERANCE = 1e-4  # float32 sums in another order


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_key(tmp_path_factory.mktemp("key") / "key", new_key())


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("PLIANT_CACHE", str(tmp_path_factory.getbasetemp() / "kernels"))


def test_a_node_answers_over_its_workers_and_without_them(
    key: Path, tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    """The same answer as one device gives, with two workers, and when both are gone."""
    model = str(tiny_model("bert"))
    cluster = Cluster("127.0.0.1:0", key=key, threads=1)
    with workers(cluster.address, key, model, tmp_path) as found:
        cluster.wait(2, PATIENCE_S)
        served = ClusterText("tiny", "hash", cluster, model)
        alone = cluster.run(model, TEXT, is_alone=True)
        with running(served) as node:

            def ask() -> tuple[list[float], str]:
                tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [TEXT]}
                url = f"{node.url}/v2/models/tiny/infer"
                response = httpx.post(url, json={"inputs": [tensor]}, timeout=PATIENCE_S)
                assert response.status_code == 200, response.text
                logits, label = response.json()["outputs"]
                return logits["data"], label["data"][0]

            for _ in range(2):
                logits, label = ask()
                np.testing.assert_allclose(logits, alone.answer, atol=TOLERANCE)
                assert label == alone.label
            for worker in found.values():
                worker.kill()
            logits, label = ask()
            np.testing.assert_allclose(logits, alone.answer, atol=TOLERANCE)
            assert label == alone.label


def test_before_the_first_answer_its_times_are_its_plans(key: Path, tiny_model: Callable[..., Path]) -> None:
    """At each predicted length; between them lines. No accuracy was measured, and none is promised."""
    model = str(tiny_model("bert"))
    with Cluster("127.0.0.1:0", key=key, threads=1) as cluster:
        served = ClusterText("tiny", "hash", cluster, model)
        assert isinstance(served, Endpoint)
        n = served.max_length
        expected_s = cluster.plan(model, n).predicted_s
        assert expected_s > 0
        assert served.curve().at(n) == pytest.approx(expected_s)
        assert served.estimate(Request(n, TEXT)).seconds == served.curve().at(n)
        with pytest.raises(BudgetError):
            served.curve(0.5)
        request = served.request({"text": texts(TEXT)})
        assert request.length == len(request.tensors["ids"])
        assert served.request(served.sample(7)).length == 7


def test_a_model_without_a_tokenizer_takes_words_by_number(
    key: Path, tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    """Its answer is what its head gives, by the encoder's own shape."""
    served = open_cluster_text(
        small_model(tmp_path),
        "127.0.0.1:0",
        key=key,
        n_workers=0,
        threads=1,
        dilation=1.0,
        on_event=lambda text: None,
    )
    try:
        assert [port.name for port in served.inputs] == ["ids"]
        (answer,) = served.answer(served.request(served.sample(5))).outputs.values()
        assert answer.dtype == np.float32
        with pytest.raises(InputError):
            served.answer(served.request({"ids": np.array([[1, 10**6]])}))
    finally:
        served.close()
