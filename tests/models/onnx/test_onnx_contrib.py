"""Operators that onnxruntime's quantizer writes, against onnxruntime."""

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from pliant.api.compile_onnx import compile as compile_model
from pliant.errors import GraphError

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is the reference")

RNG = np.random.default_rng(0)
SCALE, ZERO = np.float32(0.05), np.uint8(120)


def codes(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def quantized(*shape: int) -> list[np.ndarray]:
    return [codes(*shape), np.array(SCALE), np.array(ZERO)]


def quantized_columns(*shape: int, axis: int) -> list[np.ndarray]:
    """Scale and zero point for each position of `axis`."""
    scales = RNG.uniform(0.01, 0.1, shape[axis]).astype(np.float32)
    return [codes(*shape), scales, RNG.integers(100, 150, shape[axis]).astype(np.uint8)]


TO = [np.array(np.float32(0.08)), np.array(np.uint8(100))]
SOFT = [np.array(np.float32(1 / 256)), np.array(np.uint8(0))]
BIAS = RNG.integers(-99, 99, 5).astype(np.int32)
CASES: list[tuple[str, list[np.ndarray], dict[str, Any]]] = [
    ("QLinearAdd", [*quantized(3, 4), *quantized(4), *TO], {}),
    ("QLinearMul", [*quantized(3, 4), *quantized(3, 1), *TO], {}),
    ("QLinearSigmoid", [*quantized(3, 4), *SOFT], {}),
    ("QLinearLeakyRelu", [*quantized(3, 4), *TO], {"alpha": 0.2}),
    ("QLinearSoftmax", [*quantized(3, 4), *SOFT], {"axis": 1, "opset": 13}),
    ("QLinearSoftmax", [*quantized(2, 3, 4), *SOFT], {"axis": 1, "opset": 12}),
    ("QLinearSoftmax", [*quantized(2, 3, 4), *SOFT], {"axis": 1, "opset": 13}),
    ("QLinearSoftmax", [*quantized(2, 3, 4), *SOFT], {"opset": 11}),
    ("QLinearAveragePool", [*quantized(1, 2, 6, 6), *TO], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("QLinearAveragePool", [*quantized(1, 6, 5, 3), *TO], {"kernel_shape": [2, 3], "channels_last": 1}),
    ("QLinearGlobalAveragePool", [*quantized(2, 4, 5, 3), *TO], {"channels_last": 1}),
    ("QLinearGlobalAveragePool", [*quantized(1, 2, 6, 6), *TO], {}),
    ("QLinearConcat", [*TO, *quantized(3, 4), *quantized(3, 2)], {"axis": 1}),
    ("QLinearWhere", [RNG.random((3, 4)) > 0.5, *quantized(3, 4), *quantized(3, 4), *TO], {}),
    ("QGemm", [*quantized(3, 4), *quantized(5, 4), BIAS, *TO], {"transB": 1}),
    ("QGemm", [*quantized(3, 4), *quantized_columns(5, 4, axis=0), BIAS, *TO], {"transB": 1}),
    ("QGemm", [*quantized(3, 5), *quantized_columns(5, 5, axis=0), BIAS, *TO], {"transB": 1}),
    ("QGemm", [*quantized(3, 4), *quantized_columns(4, 5, axis=1), BIAS, *TO], {}),
    ("QGemm", [*quantized(3, 4), *quantized(5, 4), BIAS * 99, *TO], {"transB": 1, "alpha": 0.25}),
]


def model(op: str, inputs: list[np.ndarray], n_fed: int, n_outputs: int = 1, **attributes: Any) -> bytes:
    """One node; the first `n_fed` inputs are fed, the others are constants."""
    names = [f"x{i}" for i in range(len(inputs))]
    kind = 1 if op == "DynamicQuantizeLSTM" else 2
    fed = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in zip(names[:n_fed], inputs, strict=False)
    ]
    held = [
        numpy_helper.from_array(a, name)
        for name, a in zip(names[n_fed:], inputs[n_fed:], strict=True)
        if a.size
    ]
    outputs = [f"y{i}" for i in range(n_outputs)]
    given = [name if a.size else "" for name, a in zip(names, inputs, strict=True)]
    node = helper.make_node(op, given, outputs, domain="com.microsoft", **attributes)
    graph = helper.make_graph(
        [node], "g", fed, [helper.make_tensor_value_info(y, kind, None) for y in outputs], held
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    whole = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return bytes(whole.SerializeToString())


@pytest.mark.parametrize(("op", "inputs", "attributes"), CASES)
def test_a_quantized_operator_is_within_a_code_of_onnxruntimes(
    op: str, inputs: list[np.ndarray], attributes: dict[str, Any]
) -> None:
    """onnxruntime rounds some of these in tables; more than one code off would be another meaning."""
    data = model(op, inputs, 3 if op == "QLinearConcat" else 1, **attributes)
    feeds = {f"x{i}": a for i, a in enumerate(inputs[: 3 if op == "QLinearConcat" else 1])}
    wanted = ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    with compile_model(data, threads=1) as session:
        got = session.run(feeds)["y0"]
    assert got.shape == wanted.shape
    assert np.abs(got.astype(int) - wanted.astype(int)).max() <= 1


@pytest.mark.parametrize("is_per_gate", [False, True])
@pytest.mark.parametrize("are_fed", [False, True], ids=["constant", "fed"])
def test_a_dynamically_quantized_lstm_is_the_lstm_of_its_weights(is_per_gate: bool, are_fed: bool) -> None:
    """Activations stay floats: the answer is that of the dequantized weights, nearer than onnxruntime's."""
    steps, batch, width, hidden = 5, 2, 6, 8
    x = RNG.standard_normal((steps, batch, width)).astype(np.float32)
    w, r = (RNG.integers(0, 256, (1, n, 4 * hidden)).astype(np.uint8) for n in (width, hidden))
    shape = (1, 4 * hidden) if is_per_gate else (1,)
    scales = [(RNG.random(shape) * 0.004 + 0.002).astype(np.float32) for _ in range(2)]
    zeros = [RNG.integers(100, 150, shape).astype(np.uint8) for _ in range(2)]
    bias, none = RNG.standard_normal((1, 8 * hidden)).astype(np.float32), np.empty(0, np.float32)
    inputs = [x, w, r, bias, none, none, none, none, scales[0], zeros[0], scales[1], zeros[1]]
    data = model("DynamicQuantizeLSTM", inputs, 4 if are_fed else 1, 3, hidden_size=hidden)
    real = [
        np.ascontiguousarray(
            ((codes.astype(np.float32) - zero[:, None]) * scale[:, None]).reshape(codes.shape)
            if is_per_gate
            else (codes.astype(np.float32) - zero) * scale
        ).transpose(0, 2, 1)
        for codes, scale, zero in zip((w, r), scales, zeros, strict=True)
    ]
    plain = helper.make_graph(
        [helper.make_node("LSTM", ["x", "w", "r", "b"], ["y0", "y1", "y2"], hidden_size=hidden)],
        "g",
        [helper.make_tensor_value_info(n, 1, None) for n in "xwrb"],
        [helper.make_tensor_value_info(f"y{i}", 1, None) for i in range(3)],
    )
    float_model = helper.make_model(plain, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    reference = ort.InferenceSession(float_model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = reference.run(None, dict(zip("xwrb", (x, *real, bias), strict=True)))
    feeds = {f"x{i}": a for i, a in enumerate(inputs[: 4 if are_fed else 1])}
    with compile_model(data, threads=1) as session:
        got = session.run(feeds)
    for i, y in enumerate(wanted):
        np.testing.assert_allclose(got[f"y{i}"], y, rtol=1e-4, atol=1e-5)


def test_an_operator_of_onnxruntimes_that_is_not_known_is_named() -> None:
    """The others of its domain are refused like any operator."""
    with pytest.raises(GraphError, match=r"com\.microsoft\.QLinearReduceMean"):
        compile_model(model("QLinearReduceMean", [*quantized(3, 4), *TO], 1, axes=[1]), threads=1)
