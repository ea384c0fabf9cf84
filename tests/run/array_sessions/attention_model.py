"""An ONNX model of two attention layers, for tests of what lengths cost."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, WORDS, LAYERS = 64, 50, 2


def write_attention(
    path: Path, batch: int | str = 1, most_n: int | None = None, *, mixes: bool = True
) -> Path:
    """`ids` INT64 [batch, n] -> `y` FP32 [batch, n, WIDTH]; with a table of `most_n` positions, if given.

    Unless it `mixes` words, each is answered by itself, so that padding changes nothing.
    """
    rng = np.random.default_rng(0)

    def known(name: str, *shape: int) -> str:
        array = rng.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(shape[0]))
        weights.append(numpy_helper.from_array(array, name))
        return name

    weights: list[onnx.TensorProto] = []
    nodes = [helper.make_node("Gather", [known("words", WORDS, WIDTH), "ids"], ["h0"])]
    x = "h0"
    if most_n is not None:
        known("positions", most_n, WIDTH)
        weights += [numpy_helper.from_array(np.array([i]), f"at{i}") for i in (0, 1)]
        nodes += [
            helper.make_node("Shape", ["ids"], ["size"], start=1, end=2),
            helper.make_node("Slice", ["positions", "at0", "size", "at0", "at1"], ["place"]),
            helper.make_node("Add", ["h0", "place"], ["placed"]),
        ]
        x = "placed"
    for i in range(LAYERS):
        for name in "qkv":
            nodes.append(helper.make_node("MatMul", [x, known(f"{name}{i}", WIDTH, WIDTH)], [f"{name}x{i}"]))
        if not mixes:
            nodes += [
                helper.make_node("Tanh", [f"qx{i}"], [f"c{i}"]),
                helper.make_node("Add", [f"c{i}", x], [f"h{i + 1}" if i < LAYERS - 1 else "y"]),
            ]
            x = f"h{i + 1}"
            continue
        nodes += [
            helper.make_node("Transpose", [f"kx{i}"], [f"kt{i}"], perm=[0, 2, 1]),
            helper.make_node("MatMul", [f"qx{i}", f"kt{i}"], [f"s{i}"]),
            helper.make_node("Softmax", [f"s{i}"], [f"p{i}"], axis=-1),
            helper.make_node("MatMul", [f"p{i}", f"vx{i}"], [f"c{i}"]),
            helper.make_node("Add", [f"c{i}", x], [f"h{i + 1}" if i < LAYERS - 1 else "y"]),
        ]
        x = f"h{i + 1}"
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, [batch, "n"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, "n", WIDTH])]
    graph = helper.make_graph(nodes, "attention", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def ids(*shape: int) -> dict[str, np.ndarray]:
    return {"ids": np.random.default_rng(shape[-1]).integers(0, WORDS, shape)}
