"""Real models that are loaded, unloaded and evicted while many clients ask for them."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pliant.api.open_endpoint import open_endpoint
from pliant.cli.shared.model_arguments import ModelArguments, parse_model
from pliant.run.process_memory import MemoryBudget
from pliant.serve.repository.model_entry import ModelEndpoints
from tests.serve.nodes import PATIENCE_S, Running, asking, running_models
from tests.serve.repository.test_repository_api import AS_OPERATOR, OPERATOR, change, index

TEXTS = ("a charming and often affecting journey", "dull, and far too long", "fine", "a mess of a film")
N_CLIENTS = 32
TRIANGLE = np.triu(np.ones((8, 8), np.float32))


def sums(folder: Path, name: str = "sums.onnx", scale: float = 1.0) -> Path:
    """An ONNX model of running sums: `x` FP32 [rows, 8] -> `y` likewise."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    ports = [helper.make_tensor_value_info(p, TensorProto.FLOAT, ["rows", 8]) for p in "xy"]
    weights = [numpy_helper.from_array(scale * TRIANGLE, "w")]
    graph = helper.make_graph([node], "sums", ports[:1], ports[1:], weights)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), folder / name)
    return folder / name


def entries(*texts: str, **options: Any) -> list[Any]:
    return [
        ModelArguments(threads=1, **options, **parse_model(text)).entry(ModelEndpoints()) for text in texts
    ]


def ask_sums(node: Running, x: np.ndarray) -> httpx.Response:
    tensor = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.ravel().tolist()}
    path = f"{node.url}/v2/models/search/infer"
    return httpx.post(path, json={"inputs": [tensor]}, timeout=PATIENCE_S)


def is_right(node: Running, want: dict[tuple[str, str], str], i: int) -> bool | None:
    """Whether the i-th request is answered by its own model; None where it was refused."""
    kind, text = i % 3, TEXTS[i // 3 % len(TEXTS)]
    if kind == 2:
        x = np.full((1 + i % 3, 8), i, np.float32)
        answer = ask_sums(node, x)
        if answer.status_code == 503:
            return None
        assert answer.status_code == 200, answer.text
        about, data = answer.json(), answer.json()["outputs"][0]["data"]
        return about["model_name"] == "search" and np.allclose(np.reshape(data, x.shape), x @ TRIANGLE)
    name = ("sst2", "imdb-lstm")[kind]
    path = f"{node.url}/v2/models/{name}/infer"
    answer = httpx.post(path, content=asking(text), timeout=PATIENCE_S)
    if answer.status_code == 503:
        return None
    assert answer.status_code == 200, answer.text
    outputs = {one["name"]: one["data"] for one in answer.json()["outputs"]}
    assert len(outputs["logits"]) == 2
    return answer.json()["model_name"] == name and outputs["label"] == [want[name, text]]


@pytest.mark.slow
def test_32_clients_lose_nothing_while_models_come_and_go(tmp_path: Path) -> None:
    """Every answer is that of the model which was asked; what is refused is refused as it is unloaded."""
    want = {}
    for name in ("sst2", "imdb-lstm"):
        with open_endpoint(name, threads=1) as alone:
            want |= {(name, text): alone(text).label for text in TEXTS}
    found: list[bool | None] = []
    served = entries("sst2", "imdb-lstm", f"search={sums(tmp_path)}")
    with running_models(served, operator_tokens=(OPERATOR,), queue=N_CLIENTS) as node:
        done = threading.Event()

        def ask(client: int) -> None:
            i = client
            while not done.is_set():
                found.append(is_right(node, want, i))
                i += N_CLIENTS

        with ThreadPoolExecutor(N_CLIENTS) as pool:
            clients = [pool.submit(ask, client) for client in range(N_CLIENTS)]
            try:
                for name in ("search", "imdb-lstm"):
                    for verb in ("unload", "load"):
                        assert change(node, name, verb).status_code == 200
                    assert set(index(node).values()) == {"READY"}
            finally:
                done.set()
            for client in clients:
                client.result()
    assert False not in found
    assert found.count(True) > N_CLIENTS
    assert None in found


@pytest.mark.slow
def test_models_that_do_not_fit_together_take_turns_in_memory(tmp_path: Path) -> None:
    """The budget holds at any time, and each is answered: it is loaded again when it is asked."""
    budget = MemoryBudget(3_000_000)
    served = entries("sst2", f"search={sums(tmp_path)}") + entries(
        f"big={sums(tmp_path, 'big.onnx', 2.0)}", memory="2MB"
    )
    x = np.ones((1, 8), np.float32)
    with running_models(served, budget, operator_tokens=(OPERATOR,)) as node:
        assert index(node)["big:1"] == "UNAVAILABLE"
        for name, tensor in (("big", None), ("sst2", TEXTS[0])):
            body: Any = (
                {"content": asking(tensor)}
                if tensor
                else {
                    "json": {
                        "inputs": [{"name": "x", "shape": [1, 8], "datatype": "FP32", "data": [1.0] * 8}]
                    }
                }
            )
            answer = httpx.post(f"{node.url}/v2/models/{name}/infer", timeout=PATIENCE_S, **body)
            assert answer.status_code == 200, answer.text
            assert index(node)[f"{name}:1"] == "READY"
            assert budget.least_bytes <= budget.total_bytes
            assert budget.free_bytes >= 0
        assert np.allclose(ask_sums(node, x).json()["outputs"][0]["data"], x @ TRIANGLE)
    assert budget.least_bytes == 0  # all was given back


def test_a_broken_file_is_refused_and_the_model_goes_on(tmp_path: Path) -> None:
    """An upload that was cut off must not take the model away."""
    path = sums(tmp_path)
    x = np.ones((2, 8), np.float32)
    with running_models(entries(f"search={path}"), operator_tokens=(OPERATOR,)) as node:
        whole = path.read_bytes()
        other = tmp_path / "other.onnx"
        other.write_bytes(whole[: len(whole) // 2])
        other.replace(path)
        failed = change(node, "search", "load")
        assert failed.status_code == 400, failed.text
        assert "search" in failed.text or "sums.onnx" in failed.text
        assert index(node) == {"search:1": "READY"}
        assert np.allclose(ask_sums(node, x).json()["outputs"][0]["data"], (x @ TRIANGLE).ravel())
        sums(tmp_path, "next.onnx", 3.0).replace(path)
        assert change(node, "search", "load").status_code == 200
        assert np.allclose(ask_sums(node, x).json()["outputs"][0]["data"], (3 * x @ TRIANGLE).ravel())


def test_models_are_named_as_they_are_given(tmp_path: Path) -> None:
    """`NAME=MODEL`, `NAME:VERSION=MODEL`; a path with a slash before its `=` is a path."""
    assert parse_model("search=model.onnx") == {"name": "search", "source": "model.onnx"}
    assert parse_model("m:2=a=b.onnx") == {"name": "m", "version": "2", "source": "a=b.onnx"}
    assert parse_model("./a=b.onnx") == {"source": "./a=b.onnx"}
    assert parse_model("random:cove-200:1") == {"source": "random:cove-200:1"}
    path = sums(tmp_path)
    served = entries(f"search:2={path}", f"search:1={path}", str(path))
    with running_models(served, operator_tokens=(OPERATOR,)) as node:
        about = httpx.get(f"{node.url}/v2/models/search", timeout=PATIENCE_S).json()
        assert (about["name"], about["versions"], about["platform"]) == (
            "search",
            ["1", "2"],
            "pliant_compiled",
        )
        assert about["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 8]}]
        assert httpx.get(f"{node.url}/v2/models/sums", timeout=PATIENCE_S).json()["versions"] == ["1"]
        rows = httpx.post(f"{node.url}/v2/repository/index", headers=AS_OPERATOR, timeout=PATIENCE_S).json()
        assert [(row["name"], row["version"]) for row in rows] == [
            ("search", "2"), ("search", "1"), ("sums", "1")
        ]  # fmt: skip
