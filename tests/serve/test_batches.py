"""Several inputs in one request to a node, over REST and gRPC, here and above it."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.serve.models import Upper, texts
from tests.serve.nodes import ANY_PORT, PATIENCE_S, Running, fixed, running

WORDS = [f"word {i}" for i in range(40)]
UPPER = [word.upper() for word in WORDS]


def posted(node: Running, words: list[str], **more: object) -> httpx.Response:
    tensor = {"name": "text", "shape": [len(words)], "datatype": "BYTES", "data": words}
    body = {"inputs": [tensor], **more}
    return httpx.post(f"{node.url}/v2/models/upper/infer", json=body, timeout=PATIENCE_S)


def test_a_batch_is_answered_as_its_rows_are() -> None:
    """In order, each row counted as a request; a queue that is shorter than the batch is no limit to it."""
    served = Upper()
    with running(served, queue=4) as node:
        answer = posted(node, WORDS, id="7", parameters={"deadline_s": 60}).json()
        assert answer["outputs"][0] == {"name": "upper", "datatype": "BYTES", "shape": [40], "data": UPPER}
        assert answer["outputs"][1]["data"] == [len(word) for word in WORDS]
        assert (answer["id"], answer["parameters"]["met"]) == ("7", True)
        assert sorted(served.answered) == sorted(word.encode() for word in WORDS)
        stats = httpx.get(f"{node.url}/v2/models/upper/stats").json()["model_stats"][0]
        assert stats["inference_count"] == 40
        for kind in ("compute_input", "compute_output"):
            assert stats["inference_stats"][kind]["count"] == 40
        metadata = httpx.get(f"{node.url}/v2/models/upper").json()
        assert metadata["inputs"][0]["shape"] == [-1]


def test_a_row_that_fails_fails_its_batch() -> None:
    """Half an answer would look like a whole one."""
    with running(Upper()) as node:
        for word, status in (("no", 400), ("bug", 500), ("a" * 2000, 400)):
            assert posted(node, ["a", word, "b"]).status_code == status
        assert posted(node, ["a", "b"]).status_code == 200


def test_rows_go_up_as_other_requests_do() -> None:
    """The node above answers each once, and is named."""
    above, below = Upper(mark="^"), Upper()
    quick, slow = fixed((1, 0.0001)), fixed((1, 10.0))
    with (
        running(above, name="above", **quick) as upper,
        running(below, name="below", upstreams=(upper.url,), **slow) as node,
    ):
        assert node.node is not None
        assert node.node.upstreams is not None
        while not any(peer.state == "ready" for peer in node.node.router.states(node.node.clock())):
            httpx.get(f"{node.url}/v2/pliant/route?length=3")
        answer = posted(node, WORDS[:10])
        assert answer.json()["outputs"][0]["data"] == [f"{word}^" for word in UPPER[:10]]
        assert answer.headers["pliant-node"] == "above"
        assert len(above.answered) == 10
        assert not below.answered


def test_batches_over_grpc_and_from_many_clients() -> None:
    """The same path; batches of several clients do not mix."""
    triton = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    with running(Upper(), grpc=ANY_PORT) as node:
        assert node.node is not None
        with triton.InferenceServerClient(str(node.grpc)) as client:

            def ask(number: int) -> None:
                words = [f"{number} {word}" for word in WORDS[:5]]
                if number % 2:
                    found = posted(node, words).json()["outputs"][0]["data"]
                else:
                    tensor = triton.InferInput("text", [5], "BYTES")
                    tensor.set_data_from_numpy(texts(*words))
                    found = [t.decode() for t in client.infer("upper", [tensor]).as_numpy("upper")]
                assert found == [word.upper() for word in words]

            with ThreadPoolExecutor(8) as pool:
                list(pool.map(ask, range(16)))
