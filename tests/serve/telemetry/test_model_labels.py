"""Metrics, log lines and headers name the model that a request is for, and no other."""

import io
import logging
import threading
from typing import Any

import httpx
import pytest

from pliant.run.process_memory import MemoryBudget
from pliant.serve.telemetry.log_lines import log_to
from tests.serve.models import texts
from tests.serve.nodes import ANY_PORT, PATIENCE_S, Running, running_models
from tests.serve.repository.test_repository_api import AS_OPERATOR, Shelf, asked, change, serving
from tests.serve.telemetry.test_request_context import lines_of, logged
from tests.serve.test_routing import metric, until


def responses(node: Running, **labels: str) -> float:
    shown = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return metric(node, f"pliant_responses_total{{{shown}}}")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v2/models/nope/infer", 404),
        ("GET", "/v2", 200),
        ("GET", "/openapi.json", 200),
        ("GET", "/nowhere", 404),
        ("GET", "/v2/pliant/route?length=4&model=nope", 404),
        ("GET", "/v2/pliant/route?length=4&model=first&version=9", 404),
        ("GET", "/v2/pliant/peers?model=nope", 404),
        ("POST", "/v2/repository/models/second/load", 200),
    ],
)
def test_what_is_for_no_model_is_not_counted_for_the_first(method: str, path: str, status: int) -> None:
    """Strangers' errors diluted or raised the share of failures of the first model."""
    with logged() as stream, serving(Shelf("first"), Shelf("second")) as node:
        answer = httpx.request(method, f"{node.url}{path}", headers=AS_OPERATOR, timeout=PATIENCE_S)
        assert answer.status_code == status, answer.text
        assert "pliant-model-version" not in answer.headers
        assert responses(node, model="", status=str(status)) >= 1  # 2, if the scrape before counts as well
        assert responses(node, model="first") == responses(node, model="second") == 0
    (line,) = [line for line in lines_of(stream) if line.get("path") == path.partition("?")[0]]
    assert "model" not in line


def test_a_model_that_is_not_loaded_counts_its_own_refusals() -> None:
    """They were counted for the first model, with its version in the header."""
    with logged() as stream, serving(Shelf("first"), Shelf("second", "7")) as node:
        assert change(node, "second", "unload").status_code == 200
        refused = asked(node, "second")
        assert refused.status_code == 503
        assert refused.headers["pliant-model-version"] == "7"
        assert responses(node, status="503") == responses(node, model="second", status="503") == 1
    (line,) = [line for line in lines_of(stream) if line.get("status") == 503]
    assert (line["model"], line["model_version"]) == ("second", "7")


def test_calls_over_grpc_for_no_model_are_not_counted_for_the_first() -> None:
    """Metadata of the server and the index of the repository are nobody's inference."""
    client = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    from tritonclient.utils import InferenceServerException

    with logged() as stream, serving(Shelf("first"), Shelf("second", "7"), grpc=ANY_PORT) as node:
        assert change(node, "second", "unload").status_code == 200
        with client.InferenceServerClient(str(node.grpc)) as grpc:
            grpc.get_server_metadata(headers=AS_OPERATOR)
            tensor = client.InferInput("text", [1], "BYTES")
            tensor.set_data_from_numpy(texts("ab"))
            for name in ("nope", "second"):
                with pytest.raises(InferenceServerException):
                    grpc.infer(name, [tensor], headers=AS_OPERATOR)
        service = "/inference.GRPCInferenceService"
        assert responses(node, path=f"{service}/ServerMetadata", model="") == 1
        assert responses(node, path=f"{service}/ModelInfer", model="", status="NOT_FOUND") == 1
        assert responses(node, path=f"{service}/ModelInfer", model="second", status="UNAVAILABLE") == 1
    (line,) = [line for line in lines_of(stream) if line.get("grpc_status") == "UNAVAILABLE"]
    assert (line["model"], line["model_version"]) == ("second", "7")


def test_an_operators_loads_and_unloads_are_logged_by_default_with_their_model() -> None:
    """Without --verbose they left no trace; with it, lines of loads and evictions named no model. The initial
    models are told by the node's own line."""
    stream = io.StringIO()
    handler = log_to(stream, "json", is_verbose=False)
    try:
        with serving(Shelf("first"), Shelf("multi", "2")) as node:
            for verb in ("unload", "load", "load"):
                path = f"{node.url}/v2/repository/models/multi/{verb}"
                headers = {**AS_OPERATOR, "x-request-id": f"order-{verb}"}
                assert httpx.post(path, headers=headers, timeout=PATIENCE_S).status_code == 200
    finally:
        logging.captureWarnings(False)
        logging.getLogger().removeHandler(handler)
    lines = [line for line in lines_of(stream) if line.get("model") == "multi"]
    assert all(line["model_version"] == "2" for line in lines)
    said = [(line.get("request_id"), line["message"]) for line in lines]
    assert said == [
        ("order-unload", "multi version 2 is unloaded"),
        ("order-load", "multi version 2 is loaded"),
        ("order-load", "multi version 2 was loaded already"),
    ]


def test_a_model_that_is_being_unloaded_says_so() -> None:
    """The reason in the refusal was empty until its last request ended."""
    shelf = Shelf("slow")
    with serving(shelf, Shelf("other")) as node:
        repository = node.repository
        assert repository is not None
        (session,) = shelf.opened
        session.gate.clear()
        calls: list[Any] = [
            threading.Thread(target=asked, args=(node, "slow")),
            threading.Thread(target=change, args=(node, "slow", "unload")),
        ]
        calls[0].start()
        until(lambda: session.answered)
        calls[1].start()
        until(lambda: not repository.is_served("slow"))
        refused = asked(node, "slow")
        session.gate.set()
        for call in calls:
            call.join()
    assert refused.status_code == 503
    assert "(it is being unloaded, after its pending requests)" in refused.json()["error"]


def test_a_path_that_was_not_found_lists_every_model() -> None:
    """Those that are not loaded were left out of the list."""
    late = Shelf("late", is_initial=False)
    with running_models([Shelf("first").entry], find=lambda: [late.entry]) as node:
        for path in ("/nowhere", "/v2/models/nope/infer"):
            told = httpx.get(f"{node.url}{path}", timeout=PATIENCE_S)
            assert told.status_code == 404
            assert "'first', 'late'" in told.json()["error"], path


def test_a_line_of_an_eviction_names_the_evicted_model_and_the_request_that_caused_it() -> None:
    """With --verbose it named no model, and without there was none."""
    shelves = [Shelf(name, n_bytes=6) for name in ("first", "second")]
    with logged() as stream, serving(*shelves, memory=MemoryBudget(10)) as node:
        asked(node, "second", **{"x-request-id": "order-8"})
    lines = [line for line in lines_of(stream) if line["logger"] == "pliant.serve.repository"]
    said = {line["message"]: (line["request_id"], line["model"]) for line in lines if "request_id" in line}
    assert said["first is evicted for second"] == ("order-8", "first")
    assert said["second is loaded"] == ("order-8", "second")


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("model=nope", "this node has no model 'nope'; it has 'first', 'late'."),
        ("model=first&version=9", "first has no version '9'; it has 1."),
        ("model=late", "the model late is not loaded (not loaded yet)"),
    ],
)
def test_a_query_for_an_unavailable_model_says_why(query: str, why: str) -> None:
    """The first model answered for it, or its own path was not found."""
    late = Shelf("late", is_initial=False)
    with serving(Shelf("first"), late) as node:
        for path in ("/v2/pliant/route", "/v2/pliant/peers"):
            url = f"{node.url}{path}?length=4&{query}"
            told = httpx.get(url, headers=AS_OPERATOR, timeout=PATIENCE_S)
            assert (told.status_code, told.json()["error"][: len(why)]) == (404, why)
            labels = {"path": path, "status": "404", "model": "late" if "late" in query else ""}
            assert responses(node, **labels) == 1


def test_refusals_of_a_model_that_was_never_loaded_are_its_own() -> None:
    """They had no model and the path `other`; so did calls over gRPC."""
    client = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    from tritonclient.utils import InferenceServerException

    late = Shelf("late", "3", is_initial=False)
    with serving(Shelf("first"), late, grpc=ANY_PORT) as node:
        assert asked(node, "late").status_code == 503
        assert asked(node, "late/versions/4").status_code == 404
        path = "/v2/models/late/infer"
        assert responses(node, model="late", model_version="3", path=path, status="503") == 1
        assert responses(node, model="", path="other", status="404") == 1
        tensor = client.InferInput("text", [1], "BYTES")
        tensor.set_data_from_numpy(texts("ab"))
        with client.InferenceServerClient(str(node.grpc)) as grpc, pytest.raises(InferenceServerException):
            grpc.infer("late", [tensor])
        assert responses(node, model="late", status="UNAVAILABLE") == 1
        assert change(node, "late", "load").status_code == 200
        assert asked(node, "late").status_code == 200
        assert responses(node, model="late", path=path, status="503") == 1, "counters continue"
