"""Ray Data and Ray Serve on this machine, with actors that are killed while they answer.

All in one file: Ray takes seconds to start, and each of its actors imports pliant anew.
"""

import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from socket import socket
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
from tests.ray.killed_actor import MARKER, FragileEvaluator  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ray\..*"),  # of Ray's own options
]
PAGE = (Path(__file__).parents[2] / "docs" / "ray.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
INFER = "/v2/models/sst2/infer"
CLIENTS = 8
TEXTS = [f"{'a dull and' if i % 3 else 'a charming'} film, number {i}" for i in range(96)]


def test_the_example_for_ray_data_runs(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it stands in docs/ray.md, with the output that it shows."""
    exec(EXAMPLES[0], {"__name__": "__main__"})
    assert "['negative', 'positive']" in capsys.readouterr().out.splitlines()
    assert "prints `['negative', 'positive']`" in PAGE


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
    # Which weights stay in memory follows what answers took, so it is timed as well.
    timed = ("seconds", "peak_rss_bytes", "resident_weight_bytes")
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
        "pliant: --actors needs --on ray: add it, or leave --actors out.\n",
    )


@pytest.fixture(scope="module")
def served(cluster: Path) -> Iterator[str]:
    """The example of docs/ray.md, at a URL: two replicas of sst2, one four times slower."""
    with warnings.catch_warnings():  # of pydantic, about Ray's models
        warnings.simplefilter("ignore")
        from ray import serve
    with socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port}, logging_config={"log_level": "ERROR"})
    example = EXAMPLES[1].replace('{"num_cpus": 1}', '{"num_cpus": 1}, health_check_period_s=0.5')
    exec(example, {"__name__": "__main__"})  # functions of __main__ are sent with their code
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()


def replicas() -> set[str]:
    """The actors' names."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return {one["name"] for one in named if one["name"].startswith("SERVE_REPLICA::")}


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


def test_no_request_is_lost_with_a_replica(served: str) -> None:
    """Each is answered once: calls by handle without more, requests over HTTP when they are asked again."""
    from ray import serve

    handle, first = serve.get_app_handle("default"), replicas()
    long = [f"{text}, {'and on it goes ' * 60}" for text in TEXTS[:CLIENTS]]
    labels = [str(reply) for reply in Predictor("sst2")({"text": np.array(long, object)})["label"]]
    with ThreadPoolExecutor(2 * CLIENTS) as pool, httpx.Client(base_url=served, timeout=60.0) as client:
        quick = client.post(INFER, content=_body(TEXTS[0])).headers["pliant-node"].removeprefix("replica-")
        [victim] = [name for name in first if name.endswith(quick)]
        responses = [handle.answer.remote(text) for text in long]
        asked = [pool.submit(client.post, INFER, content=_body(text)) for text in long]
        next(as_completed(asked))  # the others are at work, or wait
        ray.kill(ray.get_actor(victim, namespace="serve"))
        answers = [one.result() for one in asked]
        lost = [answer for answer in answers if answer.status_code != 200]
        assert {answer.status_code for answer in lost} == {503}
        for answer in lost:
            assert answer.headers["retry-after"] == "0"
            assert "died before it answered: try again" in answer.json()["error"]
        again = [
            answer if answer.status_code == 200 else client.post(INFER, content=answer.request.content)
            for answer in answers
        ]
        assert [answer.json()["outputs"][1]["data"][0] for answer in again] == labels
        found = [response.result(timeout_s=60.0)["label"][0].decode() for response in responses]
    assert found == labels
    until(lambda: len(replicas() - {victim}) == 2, "the replica was not replaced")


def _body(text: str) -> bytes:
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}
    return msgspec.json.encode({"inputs": [tensor]})


def _report(verb: list[str]) -> dict[str, Any]:
    done = CliRunner().invoke(app, verb)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = msgspec.json.decode(done.stdout)
    return found
