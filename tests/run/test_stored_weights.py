"""Models whose weights were stored as integers: onnxruntime's answers, no float copy of the weights."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import pliant
from pliant.compiler.aot.compiled_directory import save

onnxruntime = pytest.importorskip("onnxruntime")

WORDS, WIDTH, INNER = 4000, 96, 192


def _quantized(path: Path, style: str) -> Path:
    """Look-up, two layers with a residual, a tied output: every matrix stored in int8 or half floats."""
    random = np.random.default_rng(0)
    nodes, known = [], []

    def stored(name: str, *shape: int) -> None:
        real = random.standard_normal(shape) / np.sqrt(shape[0])
        steps = (np.abs(real).max(1, keepdims=True) / 127).astype(np.float32)
        codes, first = np.rint(real / steps).astype(np.int8), f"{name}_codes"
        if style == "half":
            known.append(numpy_helper.from_array(real.astype(np.float16), first))
            nodes.append(helper.make_node("Cast", [first], [name], to=TensorProto.FLOAT))
            return
        if name == "w2":  # by column, as the others are by row
            steps = (np.abs(real).max(0, keepdims=True) / 127).astype(np.float32)
            codes = np.rint(real / steps).astype(np.int8)
        known.append(numpy_helper.from_array(codes, first))
        if style == "linear":
            axis = int(name == "w2")
            known.append(numpy_helper.from_array(steps.reshape(-1), f"{name}_steps"))
            nodes.append(helper.make_node("DequantizeLinear", [first, f"{name}_steps"], [name], axis=axis))
            return
        known.append(numpy_helper.from_array(steps, f"{name}_steps"))
        nodes.append(helper.make_node("Cast", [first], [f"{name}_real"], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("Mul", [f"{name}_real", f"{name}_steps"], [name]))

    stored("table", WORDS, WIDTH)
    stored("w1", INNER, WIDTH)  # [out, in], as torch keeps it
    stored("w2", INNER, WIDTH)
    nodes += [
        helper.make_node("Gather", ["table", "ids"], ["h"]),
        helper.make_node("Transpose", ["w1"], ["w1_turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["h", "w1_turned"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["b"]),
        helper.make_node("Add", ["b", "h"], ["c"]),
        helper.make_node("Transpose", ["table"], ["head"], perm=[1, 0]),
        helper.make_node("MatMul", ["c", "head"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "stored",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "n", WORDS])],
        known,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def _ids(*shape: int) -> dict[str, np.ndarray]:
    return {"ids": np.random.default_rng(1).integers(0, WORDS, shape)}


@pytest.mark.parametrize("style", ["products", "linear", "half"])
def test_codes_are_read_as_they_are_stored_at_every_shape(style: str, tmp_path: Path) -> None:
    """A MiniLM stored so took 3.5 times onnxruntime's time: each run made floats of all weights."""
    path = _quantized(tmp_path / "m.onnx", style)
    options = onnxruntime.SessionOptions()
    # onnxruntime would round activations to int8 where a DequantizeLinear stands before a product.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    reference = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    session = pliant.compile(path, threads=2)
    for shape in ((1, 1), (2, 7)):
        (wanted,) = reference.run(None, _ids(*shape))
        got = session.run(_ids(*shape))["y"]
        assert np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max()
    feeds = _ids(2, 7)
    image = session.image(feeds)
    kernels = [c.kernel.name for c in image.calls]
    element = "float16" if style == "half" else "int8"
    assert sum(k.startswith(f"matmul_{element}") for k in kernels) == 3
    # What a run makes is as large as the input, not as the table.
    made = sum(life.n_bytes for life in image.tensors)
    assert made < 4 * WORDS * WIDTH
    held = sum(p.n_bytes for p in image.packed.values()) + sum(a.nbytes for a in image.constants.values())
    stored = (WORDS + 2 * INNER) * WIDTH + WORDS * WIDTH  # the table is read as rows and in panels
    assert held < 1.1 * stored * (2 if style == "half" else 1)


def test_weights_are_held_once_for_all_shapes(tmp_path: Path) -> None:
    """Two shapes, one set of packed codes."""
    session = pliant.compile(_quantized(tmp_path / "m.onnx", "products"), threads=1)
    held = []
    for shape in ((1, 1), (2, 7)):
        session.run(_ids(*shape))
        held.append(session.weight_bytes)
    packed = session.image(_ids(2, 7)).packed
    codes = [form.n_bytes for name, form in packed.items() if "|int8|" in name]
    assert len(codes) == 3
    assert held[1] - held[0] < sum(codes) / 2


@pytest.mark.parametrize("bits", [4, 6])
def test_fewer_bits_are_coded_from_what_is_stored(bits: int, tmp_path: Path) -> None:
    """`weights=6` of an int8 file found no matrix to code."""
    path = _quantized(tmp_path / "m.onnx", "products")
    exact = pliant.compile(path, threads=1).run(_ids(1, 5))["y"]
    session = pliant.compile(path, threads=1, weights=bits)
    error = session.run(_ids(1, 5))["y"] - exact
    assert np.sqrt((error**2).mean()) < {4: 0.2, 6: 0.06}[bits] * exact.std()
    assert sum(c.kernel.name.startswith(f"matmul_k{bits}") for c in session.image(_ids(1, 5)).calls) == 3


def test_a_directory_keeps_the_codes(tmp_path: Path) -> None:
    """What is saved is as large as what was stored, and answers to the bit."""
    session = pliant.compile(_quantized(tmp_path / "m.onnx", "products"), threads=1)
    save(session.image(_ids(2, 7)), tmp_path / "saved")
    loaded = pliant.load(tmp_path / "saved", threads=1)
    np.testing.assert_array_equal(loaded.run(_ids(2, 7))["y"], session.run(_ids(2, 7))["y"])
    assert (tmp_path / "saved" / "weights.safetensors").stat().st_size < 2.5 * WORDS * WIDTH


@pytest.mark.parametrize("schedule", ["none"])
def test_schedules_leave_such_products_as_they_are(schedule: str, tmp_path: Path) -> None:
    """Layouts are chosen around them."""
    path = _quantized(tmp_path / "m.onnx", "linear")
    wanted = pliant.compile(path, threads=1).run(_ids(1, 3))["y"]
    got = pliant.compile(path, threads=1, schedule=schedule).run(_ids(1, 3))["y"]  # type: ignore[arg-type]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
