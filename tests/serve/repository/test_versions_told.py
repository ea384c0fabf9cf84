"""Answers and statistics tell the versions of a model, over REST and gRPC."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from pliant.serve.protocol.inference import HEADER_LENGTH
from tests.serve.models import Upper
from tests.serve.nodes import ANY_PORT, PATIENCE_S, asking, fixed, running
from tests.serve.repository.test_repository_api import Shelf, asked, serving
from tests.serve.test_routing import until


def statistics(url: str, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{url}/v2/models/{path}", timeout=PATIENCE_S).json()[
        "model_stats"
    ]
    return found


@pytest.mark.parametrize("path", ["multi", "multi/versions/1", "multi/versions/2"])
def test_an_answer_names_the_version_of_its_model(path: str) -> None:
    """The protocol has a field for it, which only gRPC filled."""
    with serving(Shelf("multi", "1"), Shelf("multi", "2")) as node:
        version = path.partition("/versions/")[2] or "2"
        assert asked(node, path).json()["model_version"] == version
        output = {"name": "upper", "parameters": {"binary_data": True}}
        url = f"{node.url}/v2/models/{path}/infer"
        binary = httpx.post(url, content=asking("ab", outputs=[output]), timeout=PATIENCE_S)
        head = binary.content[: int(binary.headers[HEADER_LENGTH])]
        assert f'"model_version":"{version}"'.encode() in head


def test_an_answer_of_another_node_has_the_version_of_this_one() -> None:
    """Versions are names that each node gives its models."""
    with (
        running(Upper(mark="@up"), name="up", **fixed((0, 0.001))) as up,
        running(Upper(), name="end", upstreams=(up.url,), **fixed((0, 100.0))) as end,
    ):
        until(lambda: end.post("ab").json()["outputs"][0]["data"] == ["AB@up"])
        assert end.post("ab").json()["model_version"] == "1"


def test_statistics_of_a_model_are_those_of_all_its_loaded_versions() -> None:
    """As Triton's clients expect; the path of a version has that one alone."""
    client = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    with serving(Shelf("multi", "1"), Shelf("other"), Shelf("multi", "2"), grpc=ANY_PORT) as node:
        asked(node, "multi/versions/2")
        counts = [(one["version"], one["inference_count"]) for one in statistics(node.url, "multi/stats")]
        assert counts == [("1", 0), ("2", 1)]
        (one,) = statistics(node.url, "multi/versions/1/stats")
        assert (one["name"], one["version"]) == ("multi", "1")
        with client.InferenceServerClient(str(node.grpc)) as grpc:
            told = grpc.get_inference_statistics("multi").model_stats
            assert [(one.version, one.inference_count) for one in told] == counts
            assert [one.version for one in grpc.get_inference_statistics("multi", "2").model_stats] == ["2"]
            assert len(grpc.get_inference_statistics().model_stats) == 3


def test_statistics_tell_batches_and_the_times_of_decoding_and_encoding() -> None:
    """They were always empty and 0; what a client measures bounds them."""
    slow = Shelf("m")
    with serving(slow, grpc=ANY_PORT) as node:
        start_s = time.monotonic()
        with ThreadPoolExecutor(4) as clients:
            answers = list(clients.map(lambda _: asked(node, "m").status_code, range(12)))
        assert answers == [200] * 12
        spent_ns = (time.monotonic() - start_s) * 1e9
        (one,) = statistics(node.url, "m/stats")
        for kind in ("compute_input", "compute_output"):
            found = one["inference_stats"][kind]
            assert found["count"] == 12
            assert 0 < found["ns"] < 4 * spent_ns
        assert sum(row["batch_size"] * row["compute_infer"]["count"] for row in one["batch_stats"]) == 12
        assert sum(row["compute_infer"]["count"] for row in one["batch_stats"]) == one["execution_count"]
        assert all(row["compute_infer"]["ns"] > 0 for row in one["batch_stats"])
        client = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
        with client.InferenceServerClient(str(node.grpc)) as grpc:
            (told,) = grpc.get_inference_statistics("m").model_stats
        shown = [(row.batch_size, row.compute_infer.count, row.compute_infer.ns) for row in told.batch_stats]
        rows = [(row["batch_size"], row["compute_infer"]) for row in one["batch_stats"]]
        assert shown == [(size, row["count"], row["ns"]) for size, row in rows]
        assert told.inference_stats.compute_input.ns == one["inference_stats"]["compute_input"]["ns"]


def test_statistics_of_a_model_called_versions_are_those_of_all_its_versions() -> None:
    """Its name was taken for a version in the path."""
    with serving(Shelf("versions", "1"), Shelf("versions", "2")) as node:
        assert [one["version"] for one in statistics(node.url, "versions/stats")] == ["1", "2"]
        assert [one["version"] for one in statistics(node.url, "versions/versions/1/stats")] == ["1"]
