"""Clients of a compiled directory at a real node: inputs of one shape, answered one after another."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np

import pliant
from pliant.compiler.aot.compiled_directory import save
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import make_image
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.emit.isa import host_isa
from tests.serve.nodes import PATIENCE_S, running

N_CLIENTS, N_REQUESTS = 16, 48


def test_16_clients_of_a_compiled_directory_get_their_own_answers(tmp_path: Path) -> None:
    """Also where the node has several compute workers; it has no batches, and none fails for want of one."""
    types = dict.fromkeys("xay", TensorType("float32", (8, 8)))
    nodes = (Node("MatMul", ("x", "x"), ("a",)), Node("MatMul", ("a", "x"), ("y",)))
    save(make_image(Graph(nodes, ("x",), ("y",), types), Target(host_isa(), 2)), tmp_path / "graph")
    arrays = [np.random.default_rng(i).standard_normal((8, 8)).astype(np.float32) for i in range(N_REQUESTS)]
    session = pliant.load(tmp_path / "graph", threads=2)
    with running(session, compute_workers=2, queue=256) as run, ThreadPoolExecutor(N_CLIENTS) as clients:

        def ask(x: np.ndarray) -> httpx.Response:
            tensor = {"name": "x", "shape": [8, 8], "datatype": "FP32", "data": x.ravel().tolist()}
            url = f"{run.url}/v2/models/graph/infer"
            return httpx.post(url, json={"inputs": [tensor]}, timeout=PATIENCE_S)

        found = list(clients.map(ask, arrays))
        (statistics,) = httpx.get(f"{run.url}/v2/models/graph/stats").json()["model_stats"]
    for x, reply in zip(arrays, found, strict=True):
        assert reply.status_code == 200, reply.text
        y = np.array(reply.json()["outputs"][0]["data"]).reshape(8, 8)
        np.testing.assert_allclose(y, np.linalg.matrix_power(x.astype(np.float64), 3), rtol=1e-4, atol=1e-4)
    assert statistics["inference_count"] == statistics["execution_count"] >= N_REQUESTS
