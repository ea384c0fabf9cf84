"""Ray Data and Ray Serve on this machine, with actors that are killed while they answer.

All in one file: Ray takes seconds to start, and each of its actors imports pliant anew.
"""

import os
import signal
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socket import socket
from threading import Barrier
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

import pliant
from pliant.cli.app import app
from pliant.errors import InputError
from tests.serve.test_routing import until

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'pliant[ray]'")
from pliant.cli import eval_ray  # noqa: E402
from pliant.ray import Predictor  # noqa: E402
from tests.ray.fragile import MARKER, FragileEvaluator, FragilePredictor, unequal  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ray\..*"),  # of Ray's own options
]
INFER = "/v2/models/sst2/infer"
CLIENTS = 8
TEXTS = [f"{'a dull and' if i % 3 else 'a charming'} film, number {i}" for i in range(96)]


def test_rows_of_a_killed_actor_are_repeated_once(cluster: Path) -> None:
    """Every row is answered once, and as in one process; the actor is replaced."""
    from ray.data import ActorPoolStrategy

    marker = cluster / "killed-predictor"
    data = ray.data.from_items(
        [{"id": i, "text": text} for i, text in enumerate(TEXTS)], override_num_blocks=8
    )
    found = data.map_batches(
        FragilePredictor,
        fn_constructor_args=(str(marker),),
        batch_size=8,
        compute=ActorPoolStrategy(size=2),
        num_cpus=0.5,
    ).take_all()
    assert marker.exists()
    rows = sorted(found, key=lambda row: row["id"])
    assert [row["id"] for row in rows] == list(range(len(TEXTS)))
    alone = Predictor("sst2")({"text": np.array(TEXTS, object)})
    assert [row["label"] for row in rows] == alone["label"].tolist()
    np.testing.assert_allclose([row["logits"] for row in rows], alone["logits"], rtol=1e-4, atol=1e-5)


def test_eval_on_ray_says_what_one_machine_says(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the digit, although an actor is killed in the middle: its examples count once."""
    lines = [f"{'marked ' if i == 50 else ''}{text}\t{i % 2}" for i, text in enumerate(TEXTS)]
    table = cluster / "dev.tsv"
    table.write_text("\n".join(["sentence\tlabel", *lines]) + "\n", encoding="utf-8")
    verb = ["eval", "sst2", str(table), "--threads", "1", "--json"]
    here = _report(verb)
    monkeypatch.setattr(eval_ray, "Evaluator", FragileEvaluator)
    there = _report([*verb, "--on", "ray", "--actors", "2"])
    assert Path(os.environ[MARKER]).exists()
    timed = ("seconds", "peak_rss_bytes")
    assert {k: v for k, v in there.items() if k not in timed} == {
        k: v for k, v in here.items() if k not in timed
    }
    assert there["n"] == len(TEXTS)


def test_eval_names_what_an_actor_could_not_do(cluster: Path) -> None:
    """Ray's account of where an error was raised is forty lines long."""
    table = cluster / "dev.tsv"
    done = CliRunner().invoke(app, ["eval", "sst2", str(table), "--actors", "2"])
    assert (done.exit_code, done.stderr) == (
        1,
        "pliant: --actors are Ray's: add --on ray, or leave it out.\n",
    )


@pytest.fixture(scope="module")
def served(cluster: Path) -> Iterator[str]:
    """Two replicas of sst2, one four times slower, at a URL."""
    with warnings.catch_warnings():  # of pydantic, about Ray's models
        warnings.simplefilter("ignore")
        from ray import serve

        from pliant.ray import Deployment
    with socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port}, logging_config={"log_level": "ERROR"})
    options = {"num_replicas": 2, "ray_actor_options": {"num_cpus": 0.5}}
    serve.run(Deployment.options(**options).bind("sst2", per_replica=unequal))
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()


def test_a_deployment_answers_as_a_node_does(served: str) -> None:
    """The same paths and answers, over HTTP and by handle; the quick replica gets single requests."""
    from ray import serve

    with pliant.open("sst2", preload="100MB") as session:
        right = [session(text) for text in TEXTS[:8]]
    with httpx.Client(base_url=served, timeout=60.0) as client:
        assert client.get("/v2/health/ready").json() == {"ready": True}
        assert client.get("/v2/models/sst2").json()["inputs"][0]["name"] == "text"
        answers = [client.post(INFER, content=_body(text)) for text in TEXTS[:8]]
        refused = client.post(INFER, content=b"{}")
    for answer, reply in zip(answers, right, strict=True):
        outputs = {output["name"]: output["data"] for output in answer.json()["outputs"]}
        assert outputs["label"] == [reply.label]
        np.testing.assert_allclose(outputs["logits"], reply.logits, rtol=1e-4, atol=1e-5)
    assert (refused.status_code, list(refused.json())) == (400, ["error"])
    assert Counter(answer.headers["pliant-node"] for answer in answers).most_common(1)[0][1] >= 6
    handle = serve.get_app_handle("default")
    found = handle.answer.remote(TEXTS[0], deadline_s=60.0).result()
    assert found["label"].tolist() == [str(right[0].label).encode()]
    assert handle.answer.remote({"ids": [[101, 102]]}).result()["logits"].shape == (1, 2)
    with pytest.raises(InputError, match="sst2 has no input mask: it reads text, ids"):
        handle.answer.remote({"mask": [1]}).result()


def test_no_request_is_lost_with_a_replica(served: str, cluster: Path) -> None:
    """Of many clients, each gets an answer or a refusal while a replica dies; another takes its place."""
    first = {path.stem: int(path.read_text()) for path in cluster.glob("*.?")}
    assert len(first) == 2
    half = Barrier(CLIENTS + 1, timeout=60.0)

    def ask(client: httpx.Client) -> list[tuple[int, str | None]]:
        found = []
        for i, text in enumerate(TEXTS[:12]):
            if i == 3:
                half.wait()
            answer = client.post(INFER, content=_body(text))
            label = answer.json()["outputs"][1]["data"][0] if answer.status_code == 200 else None
            found.append((answer.status_code, label))
        return found

    with ThreadPoolExecutor(CLIENTS) as pool, httpx.Client(base_url=served, timeout=60.0) as client:
        asked = [pool.submit(ask, client) for _ in range(CLIENTS)]
        half.wait()
        os.kill(next(iter(first.values())), signal.SIGKILL)
        found = [one.result() for one in asked]
        until(lambda: len(list(cluster.glob("*.?"))) > 2, "the replica was not replaced")
    labels = [str(reply) for reply in Predictor("sst2")({"text": np.array(TEXTS[:12], object)})["label"]]
    statuses = Counter(status for answers in found for status, _ in answers)
    assert statuses[200] >= CLIENTS * 10
    assert set(statuses) <= {200, 500, 503}
    for answers in found:
        assert len(answers) == len(labels)
        assert all(label in (None, wanted) for (_, label), wanted in zip(answers, labels, strict=True))


def _body(text: str) -> bytes:
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}
    return msgspec.json.encode({"inputs": [tensor]})


def _report(verb: list[str]) -> dict[str, Any]:
    done = CliRunner().invoke(app, verb)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = msgspec.json.decode(done.stdout)
    return found
