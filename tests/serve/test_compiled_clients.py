"""Clients of a compiled directory at a real node: requests of one shape, beside each other on workers."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import pliant
from pliant.compiler.aot.compiled_directory import save
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import make_image
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.emit.isa import host_isa
from tests.serve.nodes import PATIENCE_S, running

N_CLIENTS, N_REQUESTS = 16, 96
SIDE = 32


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The third power of a matrix."""
    types = dict.fromkeys("xay", TensorType("float32", (SIDE, SIDE)))
    nodes = (Node("MatMul", ("x", "x"), ("a",)), Node("MatMul", ("a", "x"), ("y",)))
    save(make_image(Graph(nodes, ("x",), ("y",), types), Target(host_isa(), 2)), tmp_path / "graph")
    return tmp_path / "graph"


def _body(x: np.ndarray, **terms: Any) -> dict[str, Any]:
    tensor = {"name": "x", "shape": [*x.shape], "datatype": "FP32", "data": x.ravel().tolist()}
    return {"inputs": [tensor], "parameters": terms}


@pytest.mark.parametrize("is_limited", [False, True], ids=["without a limit", "within a limit"])
def test_clients_with_deadlines_get_their_own_answers(directory: Path, is_limited: bool) -> None:
    """Where deadlines are long, where they cannot be kept, and where the shape is wrong; all of it counts."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((SIDE, SIDE)).astype(np.float32) / 4 for _ in range(N_REQUESTS)]
    memory = pliant.load(directory, threads=2).memory.predicted_bytes if is_limited else None
    session = pliant.load(directory, threads=2, memory=memory)
    with (
        running(session, compute_workers=2, queue=256, learn_s=0.5) as run,
        ThreadPoolExecutor(N_CLIENTS) as clients,
    ):
        assert session.most_beside == 2
        assert session.together(session.request(session.sample(1))) is not None
        url = f"{run.url}/v2/models/graph/infer"

        def ask(i: int) -> httpx.Response:
            x = arrays[i] if i % 8 != 5 else arrays[i][:-1]
            terms = {"deadline_s": 1e-7 if i % 8 == 3 else PATIENCE_S}
            return httpx.post(url, json=_body(x, **terms), timeout=PATIENCE_S)

        found = list(clients.map(ask, range(N_REQUESTS)))
        explained = httpx.post(url, json=_body(arrays[0], explain=True), timeout=PATIENCE_S).json()
        lines = httpx.get(f"{run.url}/metrics").text.splitlines()
        (statistics,) = httpx.get(f"{run.url}/v2/models/graph/stats").json()["model_stats"]
        if memory is not None:
            assert session.memory.measured_bytes <= session.memory.predicted_bytes <= memory
    statuses = {3: 503, 5: 400}
    for i, (x, reply) in enumerate(zip(arrays, found, strict=True)):
        assert reply.status_code == statuses.get(i % 8, 200), reply.text
        if reply.status_code == 200:
            assert reply.json()["parameters"]["met"]
            y = np.array(reply.json()["outputs"][0]["data"]).reshape(SIDE, SIDE)
            wanted = np.linalg.matrix_power(x.astype(np.float64), 3)
            np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4)
    n = Counter(reply.status_code for reply in found)
    assert statistics["inference_count"] == n[200] + 1
    assert statistics["inference_stats"]["fail"]["count"] >= n[503]
    (met,) = (
        line for line in lines if line.startswith("pliant_attainment_total") and 'outcome="met"' in line
    )
    assert float(met.split()[-1]) == n[200]
    assert explained["parameters"]["endpoint"] == "local"
    assert explained["parameters"]["reason"]
