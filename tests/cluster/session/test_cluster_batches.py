"""Texts that run together over a cluster, from Python and behind a node, also when a worker is killed."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from pliant.api.open_cluster import Cluster
from pliant.api.open_encoder import open_encoder
from pliant.cluster.net.key import new_key
from pliant.cluster.session.cluster_session import ClusterSession
from pliant.plan.split.activation_bytes import whole_memory_bytes
from tests.cluster.processes import PATIENT, WAIT_S, WorkerProcess, workers
from tests.cluster.test_clustered import write_key
from tests.serve.nodes import PATIENCE_S, running

TOLERANCE = 1e-4  # float32 sums in another order
FILMS = ["a charming film", "no", "it is long and dull, and still I liked its end", "fine", "a bore " * 5]
N_CLIENTS, N_ROUNDS = 16, 4
LEAST_ROWS = 36


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("batches")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Cluster]:
    key = write_key(folder / "key", new_key())
    with Cluster("127.0.0.1:0", key=key, threads=1, shares="equal", patience=PATIENT) as made:
        yield made


@pytest.fixture(scope="module")
def model(tiny_model: Callable[..., Path]) -> str:
    return str(tiny_model("bert", max_tokens=64))


@pytest.fixture(scope="module")
def pair(cluster: Cluster, model: str, folder: Path) -> Iterator[dict[str, WorkerProcess]]:
    with workers(cluster.address, folder / "key", model, folder) as found:
        cluster.wait(2, WAIT_S)
        yield found


@pytest.fixture
def session(cluster: Cluster, pair: dict[str, WorkerProcess], model: str) -> ClusterSession:
    return cluster.open(model)


def test_a_list_of_texts_runs_together_and_is_answered_as_each_alone(
    cluster: Cluster, session: ClusterSession
) -> None:
    """The whole way over processes: their rows lie side by side, and workers are told where texts begin."""
    pairs = [*FILMS, ("is it good?", "it is")]
    replies = session(pairs)
    assert len({id(reply.details) for reply in replies}) == 1, "one run"
    details = replies[0].details
    assert set(details.partitions[0].participants) == {cluster.name, "a", "b"}
    assert details.partitions[0].tokens >= sum(reply.length for reply in replies)
    assert not details.faults
    for item, reply in zip(pairs, replies, strict=True):
        alone = session.alone(*item) if isinstance(item, tuple) else session.alone(item)
        assert reply.length == alone.length
        np.testing.assert_allclose(reply.outputs["logits"], alone.outputs["logits"], atol=TOLERANCE)
    assert session([]) == []
    (one,) = session(FILMS[:1])
    assert one.details.partitions[0].tokens == one.length


def test_more_texts_than_fit_a_batch_run_in_several(session: ClusterSession) -> None:
    """A batch has at most as many rows as the model reads."""
    asked = FILMS * 6
    replies = session(asked)
    runs = {id(reply.details): reply.details.partitions[0].tokens for reply in replies}
    assert 1 < len(runs) < len(asked)
    assert max(runs.values()) <= session.max_length
    once = {text: session.alone(text).outputs["logits"] for text in FILMS}
    for text, reply in zip(asked, replies, strict=True):
        np.testing.assert_allclose(reply.outputs["logits"], once[text], atol=TOLERANCE)


def test_texts_together_need_no_more_memory_than_there_is(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    """A batch counts its rows against the longest input; before that is known, its texts run alone."""
    model, key = str(tiny_model("bert", max_tokens=64)), write_key(tmp_path / "key", new_key())
    memory = whole_memory_bytes(open_encoder(model, tmp_path).spec, LEAST_ROWS)
    with (
        Cluster("127.0.0.1:0", key=key, threads=1, cache=tmp_path, memory=memory) as made,
        made.open(model) as short,
    ):
        once = {text: short.alone(text) for text in FILMS}
        assert max(reply.length for reply in once.values()) <= LEAST_ROWS < short.most_items_together
        assert [short(FILMS[0]).loaded_s for _ in range(2)][1] == 0.0
        searched = short(FILMS * 2)
        assert short.curve().at(LEAST_ROWS) > 0.0
        assert short.most_items_together == LEAST_ROWS
        replies = short(FILMS * 2)
        for text, *both in zip(FILMS * 2, searched, replies, strict=True):
            for reply in both:
                np.testing.assert_allclose(
                    reply.outputs["logits"], once[text].outputs["logits"], atol=TOLERANCE
                )
        runs = {id(reply.details): reply.details.partitions[0].tokens for reply in replies}
        assert len(runs) < len(replies)
        assert max(runs.values()) <= LEAST_ROWS


def test_16_clients_of_a_node_share_runs_and_each_gets_its_answer_when_a_worker_is_killed(
    cluster: Cluster, session: ClusterSession, model: str, folder: Path
) -> None:
    """Issue 18, part 3, for clusters: requests that wait together run together. A batch that loses a worker
    is continued by the others, and nobody gets the answer of another."""
    once = {text: session.alone(text).outputs["logits"] for text in FILMS}
    begun = threading.Barrier(N_CLIENTS)
    with (
        workers(cluster.address, folder / "key", model, folder, "c") as more,
        running(session) as node,
        httpx.Client(timeout=PATIENCE_S) as http,
    ):
        cluster.wait(3, WAIT_S)

        def ask(text: str) -> None:
            tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}
            response = http.post(f"{node.url}/v2/models/{session.name}/infer", json={"inputs": [tensor]})
            assert response.status_code == 200, response.text
            (logits, _) = response.json()["outputs"]
            np.testing.assert_allclose([logits["data"]], once[text], atol=TOLERANCE)

        def client(i: int) -> None:
            begun.wait(PATIENCE_S)
            for k in range(2 * N_ROUNDS):
                if (i, k) == (0, N_ROUNDS):  # while the others' requests wait or run
                    more["c"].kill()
                ask(FILMS[(i + k) % len(FILMS)])

        with ThreadPoolExecutor(N_CLIENTS) as threads:
            for asked in [threads.submit(client, i) for i in range(N_CLIENTS)]:
                asked.result()
        metrics = httpx.get(f"{node.url}/metrics", timeout=PATIENCE_S).text
    n, n_batches = (
        sum(float(x.split()[-1]) for x in metrics.splitlines() if x.startswith(f"pliant_batch_size_{name}"))
        for name in ("sum", "count")
    )
    assert n >= 2 * N_ROUNDS * N_CLIENTS
    assert n_batches < n / 3  # about 7 together: as many as 64 rows are
