"""Small ONNX models whose edges have several layouts, and what they answer by onnx's reference."""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import make_image
from pliant.compiler.passes.passes import simplify
from pliant.compiler.rules.rules import RULES
from pliant.ir.graph import Graph
from pliant.kernels.emit.isa import Isa, host_isa
from pliant.models.onnx.onnx_file import open_onnx
from pliant.run.graph.array_stage import open_image
from tests.compiler.rules.run_node import machine
from tests.models.one_graph import bind

Feeds = Mapping[str, np.ndarray]


def a_model(
    nodes: list[tuple[str, str, str, dict[str, object]]],
    inputs: Mapping[str, tuple[int, ...]],
    weights: Mapping[str, np.ndarray],
    outputs: str,
) -> onnx.ModelProto:
    """Nodes as (op, inputs, outputs, attributes), all float32."""
    made = [helper.make_node(op, x.split(), y.split(), **more) for op, x, y, more in nodes]
    graph = helper.make_graph(
        made,
        "small",
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, shape) for x, shape in inputs.items()],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, None) for y in outputs.split()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    for y, value in zip(model.graph.output, expected(model, feeds_of(model)).values(), strict=True):
        y.CopyFrom(helper.make_tensor_value_info(y.name, TensorProto.FLOAT, value.shape))
    return model


def a_network() -> onnx.ModelProto:
    """Convolutions, one with groups and one along a residual, pools, a concatenation, a reduction."""
    rng = np.random.default_rng(1)

    def random(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32) / 4

    nodes: list[tuple[str, str, str, dict[str, object]]] = [
        ("Conv", "x w1 b1", "c1", {"pads": [1, 0, 1, 2], "strides": [1, 2]}),
        ("Relu", "c1", "r1", {}),
        ("Conv", "r1 w2", "c2", {"pads": [1, 1, 1, 1], "group": 3}),
        ("Add", "c2 scale", "a2", {}),
        ("Add", "a2 r1", "a3", {}),
        ("MaxPool", "a3", "p", {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 0, 1]}),
        ("Conv", "p w3 b3", "c3", {}),
        ("Concat", "p c3", "k", {"axis": 1}),
        ("Pad", "k pads", "q", {}),
        ("Slice", "q starts ends axes", "s", {}),
        ("Softmax", "s", "f", {"axis": 1}),
        ("Transpose", "f", "t", {"perm": [0, 2, 3, 1]}),
        ("Sigmoid", "t", "g", {}),
        ("ReduceMean", "g where", "m", {"keepdims": 0}),
        ("GlobalAveragePool", "s", "h", {}),
        ("Reshape", "h flat", "v", {}),
        ("Gemm", "v w4 b4", "y", {"transB": 1}),
    ]
    weights = {
        "w1": random(6, 2, 3, 4),
        "b1": random(6),
        "w2": random(6, 2, 3, 3),
        "scale": random(6, 1, 1),
        "w3": random(5, 6, 1, 1),
        "b3": random(5),
        "pads": np.array([0, 0, 1, 0, 0, 0, 2, 1], np.int64),
        "starts": np.array([1, 0], np.int64),
        "ends": np.array([99, 7], np.int64),
        "axes": np.array([2, -1], np.int64),
        "where": np.array([1, 3], np.int64),
        "flat": np.array([2, 11], np.int64),
        "w4": random(4, 11),
        "b4": random(4),
    }
    return a_model(nodes, {"x": (2, 2, 9, 15)}, weights, "m y")


def a_transformer() -> onnx.ModelProto:
    """Heads split and joined by reshapes and transposes, masked scores, norms, products of tensors."""
    rng = np.random.default_rng(2)

    def random(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32) / 4

    nodes: list[tuple[str, str, str, dict[str, object]]] = [
        ("MatMul", "x wq", "q0", {}),
        ("Add", "q0 bq", "q1", {}),
        ("Reshape", "q1 heads", "q2", {}),
        ("Transpose", "q2", "q", {"perm": [0, 2, 1, 3]}),
        ("MatMul", "x wk", "k0", {}),
        ("Reshape", "k0 heads", "k2", {}),
        ("Transpose", "k2", "k", {"perm": [0, 2, 3, 1]}),
        ("MatMul", "q k", "s0", {}),
        ("Mul", "s0 mask", "s1", {}),
        ("Softmax", "s1", "s", {"axis": -1}),
        ("MatMul", "s q", "o0", {}),
        ("Transpose", "o0", "o1", {"perm": [0, 2, 1, 3]}),
        ("Reshape", "o1 joined", "o2", {}),
        ("Add", "o2 x", "o", {}),
        ("LayerNormalization", "o g b", "n", {"axis": -1}),
        ("Split", "n", "n1 n2", {"axis": 2, "num_outputs": 2}),
        ("Mul", "n1 n2", "e", {}),
        ("Transpose", "e", "et", {"perm": [0, 2, 1]}),
        ("MatMul", "e et", "z", {}),
        ("ReduceSum", "z last", "y", {"keepdims": 1}),
    ]
    weights = {
        "wq": random(12, 12),
        "bq": random(12),
        "wk": random(12, 12),
        "heads": np.array([2, 5, 3, 4], np.int64),
        "joined": np.array([2, 5, 12], np.int64),
        "g": random(12),
        "b": random(12),
        "last": np.array([-1], np.int64),
    }
    return a_model(nodes, {"x": (2, 5, 12), "mask": (2, 1, 5, 5)}, weights, "y s")


def a_span_convolution() -> onnx.ModelProto:
    """ConvBERT's second half of attention: convolved keys make weights for windows of padded rows."""
    rng = np.random.default_rng(3)
    rows, width, heads, taps = 7, 32, 2, 3

    def random(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32) / 4

    nodes: list[tuple[str, str, str, dict[str, object]]] = [
        ("LayerNormalization", "x g b", "n", {"axis": -1}),
        ("Transpose", "n", "t", {"perm": [0, 2, 1]}),
        ("Conv", "t wd", "d", {"pads": [1, 1], "group": width}),
        ("Conv", "d wp bp", "p", {}),
        ("Relu", "p", "c", {}),
        ("Transpose", "c", "s", {"perm": [0, 2, 1]}),
        ("MatMul", "n wq", "q", {}),
        ("Mul", "s q", "m0", {}),
        ("Div", "m0 by", "m", {}),
        ("MatMul", "m wk", "k0", {}),
        ("Reshape", "k0 weights", "k1", {}),
        ("Softmax", "k1", "k", {"axis": 1}),
        ("MatMul", "n wv", "v", {}),
        ("Transpose", "v", "vt", {"perm": [0, 2, 1]}),
        ("Unsqueeze", "vt end", "vu", {}),
        ("Pad", "vu pads", "vp", {}),
        ("Gather", "vp at", "vw", {"axis": 2}),
        ("Gather", "vw first", "vx", {"axis": 4}),
        ("Reshape", "vx flat", "vf", {}),
        ("Transpose", "vf", "vr", {"perm": [0, 2, 1]}),
        ("Reshape", "vr windows", "vh", {}),
        ("MatMul", "vh k", "y", {}),
    ]
    weights = {
        "g": random(width),
        "b": random(width),
        "wd": random(width, 1, taps),
        "wp": random(width, width, 1),
        "bp": random(width),
        "wq": random(width, width),
        "by": 2 + random(width),
        "wk": random(width, heads * taps),
        "weights": np.array([-1, taps, 1], np.int64),
        "wv": random(width, width),
        "end": np.array([-1], np.int64),
        "pads": np.array([0, 0, 1, 0, 0, 0, 1, 0], np.int64),
        "at": np.arange(taps)[:, None] + np.arange(rows),
        "first": np.array([[0]], np.int64),
        "flat": np.array([1, -1, rows], np.int64),
        "windows": np.array([-1, width // heads, taps], np.int64),
    }
    return a_model(nodes, {"x": (1, rows, width)}, weights, "y")


def feeds_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Noise for every input."""
    rng = np.random.default_rng(0)
    return {
        x.name: rng.standard_normal([d.dim_value for d in x.type.tensor_type.shape.dim]).astype(np.float32)
        for x in model.graph.input
    }


def expected(model: onnx.ModelProto, feeds: Feeds) -> dict[str, np.ndarray]:
    """What onnx's reference implementation answers."""
    names = [y.name for y in model.graph.output]
    return dict(zip(names, ReferenceEvaluator(model).run(None, dict(feeds)), strict=True))


def graph_of(model: onnx.ModelProto, without: tuple[str, ...] = ()) -> Graph:
    """The graph after all passes but those named and the one that chooses layouts by itself."""
    return simplify(bind(open_onnx(model), {}, {}, supported=RULES), (*without, "channels_last"))


def run(graph: Graph, feeds: Feeds, isa: Isa | None = None) -> dict[str, np.ndarray]:
    """What the compiled graph answers."""
    isa = isa or host_isa()
    library, pool = machine(isa)
    return open_image(make_image(graph, Target(isa, 2)), pool, library).run(feeds)
