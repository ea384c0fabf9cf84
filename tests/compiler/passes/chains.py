"""Small graphs for tests of passes: built by operator, run in numpy through onnx, printed line by line."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import make_image
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.emit.isa import vector_isa
from pliant.run.graph.array_stage import open_image
from tests.compiler.rules.run_node import machine


class Chain:
    """Collects nodes; every tensor's type is what onnx's reference implementation makes of it."""

    def __init__(self, seed: int = 0, **inputs: tuple[int, ...]) -> None:
        random = np.random.default_rng(seed)
        self.feeds = {x: random.standard_normal(shape).astype(np.float32) for x, shape in inputs.items()}
        self.constants: dict[str, np.ndarray] = {}
        self.values = dict(self.feeds)
        self.nodes: list[Node] = []

    def constant(self, name: str, value: Any, dtype: str = "float32") -> str:
        self.constants[name] = self.values[name] = np.asarray(value, dtype)
        return name

    def add(self, output: str, op: str, *inputs: Any, **attributes: Any) -> str:
        """A node; numbers and lists among the inputs become constants."""
        names = []
        for i, x in enumerate(inputs):
            if isinstance(x, float):
                x = self.constant(f"{output}.{i}", x)
            elif isinstance(x, list):
                x = self.constant(f"{output}.{i}", x, "int64")
            names.append(x)
        outputs = output.split()
        made = helper.make_node(op, names, outputs, **attributes)
        known = {x: self.values[x] for x in names if x}
        infos = [
            helper.make_tensor_value_info(x, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for x, a in known.items()
        ]
        graph = helper.make_graph([made], "one", infos, [onnx.ValueInfoProto(name=y) for y in outputs])
        opset = helper.make_opsetid("", onnx.defs.onnx_opset_version())
        results = ReferenceEvaluator(helper.make_model(graph, opset_imports=[opset])).run(None, known)
        self.values |= {y: np.asarray(a) for y, a in zip(outputs, results, strict=True)}
        plain = {k: tuple(v) if isinstance(v, list) else v for k, v in attributes.items()}
        self.nodes.append(Node(op, tuple(names), tuple(outputs), plain, outputs[0]))
        return outputs[0]

    def graph(self, *outputs: str) -> Graph:
        types = {x: TensorType(a.dtype.name, a.shape) for x, a in self.values.items()}
        read = {x for node in self.nodes for x in node.inputs}
        constants = {x: a for x, a in self.constants.items() if x in read}
        return Graph(tuple(self.nodes), tuple(self.feeds), outputs, types, constants)


def lines(graph: Graph) -> list[str]:
    """A graph's nodes as text."""
    return [str(node) for node in graph.nodes]


def assert_same(graph: Graph, chain: Chain, tolerance: float = 1e-5) -> None:
    """A pass's graph, compiled, answers what the chain's own nodes answer in the reference implementation."""
    library, pool = machine(vector_isa())
    session = open_image(make_image(graph, Target(vector_isa(), 2)), pool, library)
    feeds: Mapping[str, np.ndarray] = {x: chain.feeds[x] for x in graph.inputs}
    for y, got in session.run(feeds).items():
        np.testing.assert_allclose(got, chain.values[y], rtol=tolerance, atol=tolerance)
