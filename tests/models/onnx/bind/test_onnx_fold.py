"""Folding constants, against onnxruntime: operators for which ONNX's reference is wrong are not folded."""

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from pliant.api.compile_onnx import compile as compile_model

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is the reference")

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def recurrent(n_gates: int) -> list[np.ndarray]:
    """Input, weights of both kinds, bias and the lengths of a batch of two, for a hidden size of 5."""
    weights = [floats(1, 5 * n_gates, n) for n in (3, 5)]
    return [floats(4, 2, 3), *weights, floats(1, 10 * n_gates), np.int32([2, 4])]


NORMS = [floats(2, 3, 4, 4), floats(3), floats(3), floats(3), np.float32([0.5, 1, 2])]
CASES: list[tuple[str, list[np.ndarray], dict[str, Any], int]] = [
    ("BatchNormalization", NORMS, {}, 9),
    ("BatchNormalization", NORMS, {}, 13),
    ("LRN", [floats(3, 5, 4, 4)], {"size": 3}, 13),
    ("LSTM", recurrent(4)[:4], {"hidden_size": 5, "clip": 0.1}, 14),
    ("LSTM", recurrent(4), {"hidden_size": 5}, 14),
    ("GRU", recurrent(3), {"hidden_size": 5}, 14),
    ("RNN", recurrent(1), {"hidden_size": 5}, 14),
    ("RNN", recurrent(1)[:4], {"hidden_size": 5, "activations": ["Relu"]}, 14),
    (
        "MaxPool",
        [floats(1, 2, 6, 6)],
        {"kernel_shape": [4, 5], "strides": [1, 2], "auto_pad": "SAME_LOWER"},
        13,
    ),
    (
        "Resize",
        [floats(1, 1, 8, 8), floats(0), np.float32([1, 1, 0.125, 2])],
        {"mode": "cubic", "coordinate_transformation_mode": "pytorch_half_pixel"},
        13,
    ),
    ("OneHot", [np.array([0, 2]), np.array(3), np.float32([-np.inf, 0])], {}, 13),
]


@pytest.mark.parametrize(("op", "inputs", "attributes", "opset"), CASES)
def test_a_node_of_constants_gives_onnxruntimes_numbers(
    op: str, inputs: list[np.ndarray], attributes: dict[str, Any], opset: int
) -> None:
    """Exporters leave such nodes, and a wrong constant shows nowhere."""
    names = [f"x{i}" for i in range(len(inputs))]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes)],
        "g",
        [],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(a, name) for name, a in zip(names, inputs, strict=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    data = model.SerializeToString()
    (wanted,) = ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {})
    with compile_model(model, threads=1) as session:
        np.testing.assert_allclose(session.run({})["y"], wanted, rtol=1e-4, atol=1e-5)
