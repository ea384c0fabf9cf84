"""Models are listed, loaded and unloaded by tritonclient, unmodified, over HTTP and over gRPC."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pliant.errors import ModelError
from pliant.run.process_memory import MemoryBudget
from tests.serve.models import texts
from tests.serve.nodes import ANY_PORT, Running
from tests.serve.repository.test_repository_api import AS_OPERATOR, Shelf, serving

pytest.importorskip("grpc", reason="grpcio is not installed")
http = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
grpc = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
from tritonclient.utils import InferenceServerException  # noqa: E402 - not without tritonclient


@contextmanager
def clients(node: Running) -> Iterator[dict[str, Any]]:
    """A client of each kind."""
    assert node.node is not None
    with (
        http.InferenceServerClient(node.address) as over_http,
        grpc.InferenceServerClient(str(node.grpc)) as over_grpc,
    ):
        yield {"http": over_http, "grpc": over_grpc}


def index(client: Any) -> dict[tuple[str, str], tuple[str, str]]:
    """(state, reason) of each (name, version)."""
    found = client.get_model_repository_index(headers=AS_OPERATOR)
    rows = (
        found
        if isinstance(found, list)
        else [
            {"name": one.name, "version": one.version, "state": one.state, "reason": one.reason}
            for one in found.models
        ]
    )
    return {(row["name"], row["version"]): (row["state"], row["reason"]) for row in rows}


def answer(client: Any, kind: str, model: str, version: str = "") -> tuple[str, str]:
    """The mark of a model's answer, and the version that it says."""
    module: Any = http if kind == "http" else grpc
    tensor = module.InferInput("text", [1], "BYTES")
    tensor.set_data_from_numpy(texts("ab"))
    result = client.infer(model, [tensor], model_version=version)
    said = result.get_response()
    said = said.get("model_version", "") if isinstance(said, dict) else said.model_version
    return result.as_numpy("upper")[0].decode().partition("@")[2], said


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_client_lists_loads_and_unloads_models(kind: str) -> None:
    """Those that are not loaded stand in the index as well, with why; versions are those of the models."""
    shelves = [Shelf("first"), Shelf("first", "2"), Shelf("late", is_initial=False)]
    with serving(*shelves, grpc=ANY_PORT) as node, clients(node) as every:
        client = every[kind]
        ready, never = ("READY", ""), ("UNAVAILABLE", "not loaded yet")
        assert index(client) == {("first", "1"): ready, ("first", "2"): ready, ("late", "1"): never}
        assert answer(client, kind, "first")[0] == "first:2:a"
        assert answer(client, kind, "first", "1")[0] == "first:1:a"
        with pytest.raises(InferenceServerException, match="is not loaded"):
            answer(client, kind, "late")
        assert not client.is_model_ready("late")
        client.load_model("late", headers=AS_OPERATOR)
        assert client.is_model_ready("late")
        assert answer(client, kind, "late")[0] == "late:1:a"
        client.unload_model("first", headers=AS_OPERATOR)
        assert [shelf.opened[0].is_closed for shelf in shelves] == [True, True, False]
        gone = ("UNAVAILABLE", "unloaded")
        assert index(client) == {("first", "1"): gone, ("first", "2"): gone, ("late", "1"): ready}
        assert not client.is_model_ready("first")
        client.load_model("first", headers=AS_OPERATOR)
        assert answer(client, kind, "first", "2")[0] == "first:2:a"


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_load_that_fails_says_why_to_a_client(kind: str) -> None:
    """And changes nothing; so do parameters that this node does not take, and callers that may not load."""
    first = Shelf("first")
    with serving(first, grpc=ANY_PORT) as node, clients(node) as every:
        client = every[kind]
        first.stamp, first.error = "b", ModelError("first.onnx is cut off.")
        for why, call in (
            ("cut off", lambda: client.load_model("first", headers=AS_OPERATOR)),
            ("no model 'other'", lambda: client.load_model("other", headers=AS_OPERATOR)),
            ("config is unknown", lambda: client.load_model("first", headers=AS_OPERATOR, config="{}")),
            ("role operator", lambda: client.load_model("first")),
            ("role operator", lambda: client.unload_model("first")),
            ("role operator", client.get_model_repository_index),
        ):
            with pytest.raises(InferenceServerException, match=why):
                call()
        assert index(client) == {("first", "1"): ("READY", "")}
        assert answer(client, kind, "first")[0] == "first:1:a"


def test_over_grpc_a_version_is_meant_by_its_parameter_and_is_said_in_answers() -> None:
    """As over HTTP; and metadata, statistics and answers name the version that there really is."""
    stub = pytest.importorskip("grpc", reason="grpcio is not installed")
    from pliant.serve.grpc.wire_messages import SERVICE, message

    shelves = [Shelf("first"), Shelf("first", "2")]
    with serving(*shelves, grpc=ANY_PORT) as node, clients(node) as every:
        client = every["grpc"]
        assert list(client.get_model_metadata("first").versions) == ["1", "2"]
        assert answer(client, "grpc", "first") == ("first:2:a", "2")
        assert answer(client, "grpc", "first", "1") == ("first:1:a", "1")
        stats = client.get_inference_statistics("first", "1").model_stats
        assert [(one.version, one.inference_count) for one in stats] == [("1", 1)]
        parameters = {"version": message("ModelRepositoryParameter")(string_param="2")}
        request = message("RepositoryModelUnloadRequest")(model_name="first", parameters=parameters)
        assert node.node is not None
        with stub.insecure_channel(str(node.grpc)) as channel:
            call = channel.unary_unary(f"/{SERVICE}/RepositoryModelUnload")
            call(request.SerializeToString(), metadata=tuple(AS_OPERATOR.items()), timeout=60)
        assert [shelf.opened[0].is_closed for shelf in shelves] == [False, True]
        assert answer(client, "grpc", "first") == ("first:1:a", "1")


def test_over_grpc_a_model_that_was_evicted_is_loaded_and_one_that_cannot_fit_is_refused() -> None:
    """The same lease as over HTTP; a model larger than all the memory has a status of its own."""
    small, other = Shelf("small", n_bytes=60), Shelf("other", n_bytes=60, is_initial=False)
    large = Shelf("large", n_bytes=200, is_initial=False)
    with (
        serving(small, other, large, memory=MemoryBudget(100), grpc=ANY_PORT) as node,
        clients(node) as every,
    ):
        client = every["grpc"]
        client.load_model("other", headers=AS_OPERATOR)
        assert index(client)["small", "1"][0] == "UNAVAILABLE"
        assert client.is_model_ready("small")
        assert answer(client, "grpc", "small")[0] == "small:1:a"
        with pytest.raises(InferenceServerException) as refused:
            client.load_model("large", headers=AS_OPERATOR)
        assert refused.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
        assert answer(client, "grpc", "small")[0] == "small:1:a"
