"""Older operators, and types without kernels: the same node in float32 between casts."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from pliant.api.compile_onnx import compile as compile_model

torch = pytest.importorskip("torch", reason="torch is the reference")
ort = pytest.importorskip("onnxruntime", reason="onnxruntime is the reference")

IMAGE = {"x": (1, 4, 6, 6)}
REGIONS = {"x": (1, 2, 8, 8), "r": (2, 4), "b": (2,)}
OTHERS: list[tuple[str, dict[str, tuple[int, ...]], dict[str, Any], int]] = [
    ("MaxPool", IMAGE, {"kernel_shape": [2, 2]}, 2),
    ("AveragePool", IMAGE, {"kernel_shape": [3, 2], "pads": [1, 0, 1, 0]}, 1),
    ("LpPool", IMAGE, {"kernel_shape": [2, 2]}, 1),
    ("GlobalLpPool", IMAGE, {}, 1),
    ("LRN", IMAGE, {"size": 3}, 1),
    ("LSTM", {"x": (4, 2, 3), "w": (1, 20, 3), "q": (1, 20, 5)}, {"hidden_size": 5}, 3),
    ("GRU", {"x": (4, 2, 3), "w": (1, 15, 3), "q": (1, 15, 5)}, {"hidden_size": 5}, 2),
    ("RNN", {"x": (4, 2, 3), "w": (1, 5, 3), "q": (1, 5, 5)}, {"hidden_size": 5}, 2),
    ("GridSample", {"x": (1, 2, 4, 4), "g": (1, 3, 3, 2)}, {}, 1),
    ("RoiAlign", REGIONS, {"output_height": 2, "output_width": 2}, 1),
]


def _one(
    op: str, feeds: dict[str, Any], attributes: dict[str, Any], n_outputs: int, dtype: str, opset: int = 17
) -> onnx.ModelProto:
    """A model of one node whose floats are of `dtype`."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    whole = onnx.TensorProto.INT64
    kinds = {n: whole if a.dtype == np.int64 else kind for n, a in feeds.items()}
    outputs = [f"y{i}" for i in range(n_outputs)]
    y_kinds = [whole if op == "MaxPool" and i else kind for i in range(n_outputs)]
    graph = helper.make_graph(
        [helper.make_node(op, list(feeds), outputs, **attributes)],
        "g",
        [helper.make_tensor_value_info(n, kinds[n], a.shape) for n, a in feeds.items()],
        [helper.make_tensor_value_info(y, k, None) for y, k in zip(outputs, y_kinds, strict=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _feeds(shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    random = np.random.default_rng(0)
    feeds: dict[str, Any] = {n: random.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    if "r" in feeds:
        feeds["r"] = np.array([[1, 1, 6, 5], [0.5, 2, 2.5, 2.25]], np.float32)
        feeds["b"] = np.zeros(2, np.int64)
    return feeds


def _asked(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[np.ndarray]:
    options = ["CPUExecutionProvider"]
    found = ort.InferenceSession(model.SerializeToString(), providers=options).run(None, feeds)
    return [np.asarray(y) for y in found]


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize(("op", "shapes", "attributes", "n_outputs"), OTHERS, ids=[one[0] for one in OTHERS])
def test_what_has_no_kernel_of_a_type_runs_in_float32(
    op: str, shapes: dict[str, tuple[int, ...]], attributes: dict[str, Any], n_outputs: int, dtype: str
) -> None:
    """As the element types of docs/operators.md say; every output has the type that was asked for."""
    feeds = {n: a.astype(dtype) if a.dtype == np.float32 else a for n, a in _feeds(shapes).items()}
    plain = {n: a.astype(np.float32) if a.dtype == np.dtype(dtype) else a for n, a in feeds.items()}
    wanted = _asked(_one(op, plain, attributes, n_outputs, "float32"), plain)
    with compile_model(_one(op, feeds, attributes, n_outputs, dtype), threads=1) as session:
        got = session.run(feeds)
    tolerance = 2e-3 if dtype == "float16" else 2e-5
    for y, (name, found) in zip(wanted, got.items(), strict=True):
        assert found.dtype == (dtype if y.dtype == np.float32 else y.dtype), name
        np.testing.assert_allclose(found, y, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize(
    ("shape", "blocks", "axis"), [((192, 64), (2, 64), 0), ((8192,), (64,), 0), ((3, 200), (3, 2), -1)]
)
def test_the_last_block_may_be_shorter(
    shape: tuple[int, ...], blocks: tuple[int, ...], axis: int, is_constant: bool
) -> None:
    """ONNX rounds the number of blocks up; a vector has blocks too."""
    random = np.random.default_rng(0)
    q = random.integers(-128, 128, shape).astype(np.int8)
    s, z = random.uniform(0.5, 2, blocks).astype(np.float32), random.integers(-9, 9, blocks).astype(np.int8)
    held = [numpy_helper.from_array(a, n) for n, a in (("q", q), ("s", s), ("z", z))]
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=axis, block_size=128),
            helper.make_node("MatMul", ["x", "w"], ["y"])
            if len(shape) > 1
            else helper.make_node("Add", ["x", "w"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", 1, (2, shape[0]))]
        + ([] if is_constant else [helper.make_tensor_value_info("q", onnx.TensorProto.INT8, shape)]),
        [helper.make_tensor_value_info("y", 1, None)],
        held if is_constant else held[1:],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    feeds = {"x": random.standard_normal((2, shape[0])).astype(np.float32)} | (
        {} if is_constant else {"q": q}
    )
    (wanted,) = ReferenceEvaluator(model).run(None, feeds)
    with compile_model(model, threads=1) as session:
        np.testing.assert_allclose(session.run(feeds)["y"], wanted, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("opset", [11, 16])
def test_regions_of_older_models_are_not_shifted(opset: int, mode: str) -> None:
    """Before opset 16 there was no half pixel, and no region was smaller than 1."""
    feeds = _feeds(REGIONS)
    attributes = {"output_height": 2, "output_width": 3, "sampling_ratio": 2, "mode": mode}
    model = _one("RoiAlign", feeds, attributes, 1, "float32", opset)
    (wanted,) = _asked(model, feeds)
    with compile_model(model, threads=1) as session:
        np.testing.assert_allclose(session.run(feeds)["y0"], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize(
    ("op", "dtype"), [("Conv", "float16"), ("ConvTranspose", "float16"), ("Conv", "float64")]
)
def test_a_convolution_of_other_floats_is_computed_in_float32(op: str, dtype: str, is_constant: bool) -> None:
    """Exports of `model.half()` hold them; float32 is more than float16 asks and what float64 gets."""
    random = np.random.default_rng(0)
    shapes = {"x": (1, 3, 6, 6), "w": (4, 3, 3, 3) if op == "Conv" else (3, 4, 3, 3), "b": (4,)}
    feeds: dict[str, Any] = {n: random.standard_normal(s).astype(dtype) for n, s in shapes.items()}
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    fed = ["x"] if is_constant else ["x", "w", "b"]
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w", "b"], ["y"])],
        "g",
        [helper.make_tensor_value_info(n, kind, shapes[n]) for n in fed],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(feeds[n], n) for n in ("w", "b") if n not in fed],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    convolve = torch.nn.functional.conv2d if op == "Conv" else torch.nn.functional.conv_transpose2d
    wanted = convolve(*(torch.from_numpy(feeds[n]).double() for n in "xwb")).numpy()
    with compile_model(model, threads=1) as session:
        got = session.run({n: feeds[n] for n in fed})["y"]
    assert got.dtype == dtype
    # Half an ulp of float16 at the largest output, 10 or so; float32 sums of 27 terms are far below.
    np.testing.assert_allclose(got, wanted, rtol=1e-3 if dtype == "float16" else 1e-5, atol=4e-3)


@pytest.mark.parametrize("factors", [(0.7, 1.7), (1.5, 0.45), (0.3, 0.9), (0.5, 2.0), (1.0, 0.6)])
def test_a_resize_of_opset_10_chooses_as_onnxruntime(factors: tuple[float, float]) -> None:
    """It had no nearest_mode: onnxruntime rounds up along an axis that shrinks, and down along others."""
    x = np.arange(70, dtype=np.float32).reshape(1, 1, 7, 10)
    graph = helper.make_graph(
        [helper.make_node("Resize", ["x", "s"], ["y"], mode="nearest")],
        "g",
        [helper.make_tensor_value_info("x", 1, x.shape)],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(np.float32([1, 1, *factors]), "s")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=5)
    (wanted,) = _asked(model, {"x": x})
    with compile_model(model, threads=1) as session:
        np.testing.assert_array_equal(session.run({"x": x})["y"], wanted)


@pytest.mark.parametrize("n", [17, 40])
@pytest.mark.parametrize("op", ["Sum", "Max", "Min", "Mean"])
def test_any_number_of_tensors_is_read(op: str, n: int) -> None:
    """One kernel reads at most 16; densely connected networks add more, of several shapes too."""
    shapes = [((3, 4), (4,), (3, 1), (2, 1, 4))[i % 4] for i in range(n)]
    feeds = _feeds({f"x{i}": shape for i, shape in enumerate(shapes)})
    model = _one(op, feeds, {}, 1, "float32")
    (wanted,) = _asked(model, feeds)
    with compile_model(model, threads=1) as session:
        np.testing.assert_allclose(session.run(feeds)["y0"], wanted, rtol=1e-5, atol=1e-6)
