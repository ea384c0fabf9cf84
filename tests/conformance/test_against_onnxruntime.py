"""Operators where ONNX's reference implementation, or its older shape inference, is no reference."""

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from pliant.api.compile_onnx import compile as compile_model
from pliant.errors import InputError

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is the reference")

RNG = np.random.default_rng(0)
INF, NAN = np.inf, np.nan


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def model(
    op: str, inputs: list[np.ndarray], fed: int, n_outputs: int = 1, opset: int = 17, **attributes: Any
) -> Any:
    """One node; the first `fed` inputs are inputs of the graph, the others are constants."""
    names = [f"x{i}" for i in range(len(inputs))]
    kinds = [helper.np_dtype_to_tensor_dtype(a.dtype) for a in inputs]
    outputs = [f"y{i}" for i in range(n_outputs)]
    made = {"DynamicQuantizeLinear": [2, 1, 2]}.get(op, [kinds[0], 7])[:n_outputs]  # TensorProto's types
    graph = helper.make_graph(
        [helper.make_node(op, names, outputs, **attributes)],
        "g",
        [helper.make_tensor_value_info(names[i], kinds[i], inputs[i].shape) for i in range(fed)],
        [helper.make_tensor_value_info(y, k, None) for y, k in zip(outputs, made, strict=True)],
        [numpy_helper.from_array(a, name) for a, name in zip(inputs[fed:], names[fed:], strict=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


LEAST = [np.zeros((1, 2, 4, 4), np.uint8), np.full((1, 2, 4, 4), -128, np.int8)]
LEAST.append(np.full((1, 2, 4, 4), -INF, np.float32))
CEIL = {"kernel_shape": [3, 2], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1}
SPARSE = {"kernel_shape": [3, 3], "strides": [2, 3], "dilations": [2, 1], "ceil_mode": 1}
NANS = np.array([[1, NAN, 3], [0, 5, NAN]], np.float32)
CASES: list[tuple[str, list[np.ndarray], dict[str, Any]]] = [
    *[("MaxPool", [x], {"kernel_shape": [2, 2], "strides": [2, 2], "n_outputs": 2}) for x in LEAST],
    ("MaxPool", [LEAST[0]], {"kernel_shape": [3, 3], "pads": [1] * 4, "storage_order": 1, "n_outputs": 2}),
    *[
        (op, [floats(1, 1, 9, 10)], {**CEIL, "opset": n})
        for op in ("MaxPool", "AveragePool", "LpPool")
        for n in (12, 18, 19)
        if op != "LpPool" or n >= 18
    ],
    ("MaxPool", [floats(1, 1, 4, 4)], {"kernel_shape": [1, 1], "strides": [2, 2], "ceil_mode": 1}),
    ("AveragePool", [floats(2, 3, 9, 10)], {**SPARSE, "opset": 19}),
    ("LpPool", [floats(2, 3, 9, 10)], {**SPARSE, "opset": 18}),
    (
        "ConvTranspose",
        [floats(1, 3, 8, 7), floats(3, 2, 3, 3)],
        {"output_shape": [16, 21], "strides": [2, 3], "auto_pad": "SAME_UPPER"},
    ),
    (
        "ScatterElements",
        [floats(2, 3), np.array([[0, 1, 1], [1, 0, 1]]), NANS],
        {"reduction": "max", "opset": 18},
    ),
    ("DynamicQuantizeLinear", [np.zeros((2, 3), np.float32)], {"n_outputs": 3}),
    ("LogSoftmax", [np.array([[1, INF, 2]], np.float32)], {}),
    ("LogSoftmax", [np.array([[-INF, -INF, -INF], [NAN, 1, 2], [-INF, 0, 1]], np.float32)], {}),
    ("LogSoftmax", [np.array([[[1, 2], [INF, 0], [2, -INF]]], np.float32)], {"axis": 1}),
]


@pytest.mark.parametrize("are_fed", [True, False], ids=["fed", "constant"])
@pytest.mark.parametrize(("op", "inputs", "attributes"), CASES, ids=[case[0] for case in CASES])
def test_a_node_gives_onnxruntimes_answer_whether_fed_or_constant(
    op: str, inputs: list[np.ndarray], attributes: dict[str, Any], are_fed: bool
) -> None:
    """What is computed during compilation is what would be computed in a run."""
    whole = model(op, inputs, len(inputs), **attributes)
    feeds = {f"x{i}": a for i, a in enumerate(inputs)}
    wanted = ort.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, feeds
    )
    if not are_fed:
        whole, feeds = model(op, inputs, 0, **attributes), {}
    with compile_model(whole, threads=1) as session:
        got = session.run(feeds)
    for y, found in zip(wanted, got.values(), strict=True):
        assert (found.shape, found.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(found, y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_amounts_of_a_pad_that_data_determine_may_be_negative(mode: str) -> None:
    """They take elements off, here as in a pad whose amounts are known."""
    x, pads = floats(3, 5, 6), np.array([0, -1, 2, 0, 1, -1])
    wanted = model("Pad", [x, pads], 1, mode=mode)
    graph = helper.make_graph(
        [
            helper.make_node("NonZero", ["one"], ["places"]),
            helper.make_node("ReduceSum", ["places"], ["nothing"], keepdims=0),
            helper.make_node("Add", ["nothing", "amounts"], ["pads"]),
            helper.make_node("Pad", ["x", "pads"], ["y"], mode=mode),
        ],
        "g",
        [helper.make_tensor_value_info("x", 1, x.shape), helper.make_tensor_value_info("one", 1, (1,))],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(pads, "amounts")],
    )
    late = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with compile_model(wanted, threads=1) as known, compile_model(late, threads=1) as session:
        got = session.run({"x": x, "one": np.ones(1, np.float32)})["y"]
        np.testing.assert_array_equal(got, known.run({"x0": x})["y0"])


def test_an_output_written_over_an_input_is_that_of_the_input() -> None:
    """A transpose would read what it has written; two outputs in one place are refused."""
    x = floats(5, 7)
    with compile_model(model("Transpose", [x], 1), threads=1) as session:
        held = x.copy()
        got = session.run({"x0": held}, {"y0": held.reshape(7, 5)})["y0"]
        assert np.shares_memory(got, held)
        np.testing.assert_array_equal(got, x.T)
    both = helper.make_graph(
        [helper.make_node("Softmax", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])],
        "g",
        [helper.make_tensor_value_info("x", 1, x.shape)],
        [helper.make_tensor_value_info(y, 1, x.shape) for y in "yz"],
    )
    two = helper.make_model(both, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with compile_model(two, threads=1) as session:
        held = x.copy()
        np.testing.assert_array_equal(session.run({"x": held}, {"y": held})["z"], -x)
        with pytest.raises(InputError, match="'y' and 'z' overlap"):
            session.run({"x": x}, {"y": held, "z": held})
