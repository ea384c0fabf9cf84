"""The same products in torch and onnxruntime."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from local_gemms import activations
from local_layers import Model, shape_of


def torch_products(model: Model, rows: int, n_threads: int) -> Callable[[], float]:
    """The same products by torch."""
    import torch

    torch.set_num_threads(n_threads)
    products = []
    for _, _, K, N in model.matrices():
        a, b = torch.randn(rows, K), torch.randn(K, N)
        products.append((a, b, torch.empty(rows, N)))

    def seconds() -> float:
        start = time.perf_counter()
        for a, b, c in products:
            torch.mm(a, b, out=c)
        return time.perf_counter() - start

    return seconds


def onnxruntime_products(
    model: Model, rows: int, folder: Path, n_threads: int
) -> dict[str, Callable[[], float]]:
    """One session per shape holds that product of all layers; the input is quantized once for all of them."""
    sessions: dict[str, list[tuple[onnxruntime.InferenceSession, np.ndarray]]] = {"fp32": [], "int8": []}
    chosen = onnxruntime.SessionOptions()
    chosen.intra_op_num_threads = n_threads
    chosen.log_severity_level = 3
    for m in model.geometry.matrices:
        K, N = shape_of(m, model.n_slices)
        path, path8 = folder / f"{m.name}.onnx", folder / f"{m.name}8.onnx"
        _products(path, len(model.layers), rows, K, N)
        quantize_dynamic(path, path8, weight_type=QuantType.QInt8)
        x = activations(rows, K, N)[0]
        for kind, file in (("fp32", path), ("int8", path8)):
            sessions[kind].append((onnxruntime.InferenceSession(str(file), chosen), x))

    def timer(kind: str) -> Callable[[], float]:
        def seconds() -> float:
            start = time.perf_counter()
            for session, x in sessions[kind]:
                session.run(None, {"x": x})
            return time.perf_counter() - start

        return seconds

    return {f"onnxruntime {kind}": timer(kind) for kind in sessions}


def _products(path: Path, n: int, rows: int, K: int, N: int) -> None:
    draw = np.random.default_rng(3)
    weights = [
        numpy_helper.from_array((draw.standard_normal((K, N)) * 0.04).astype(np.float32), f"w{i}")
        for i in range(n)
    ]
    nodes = [helper.make_node("MatMul", ["x", f"w{i}"], [f"y{i}"]) for i in range(n)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, K])
    ys = [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, [rows, N]) for i in range(n)]
    graph = helper.make_graph(nodes, "products", [x], ys, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
