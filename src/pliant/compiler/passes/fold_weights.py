"""Step before the passes: convert weights stored as integers or half floats to float32 once, or never.

Without this step (codes - zero) * scale of a constant would be computed in every run. A lookup (Gather along
the first axis) picks rows of the codes and scales only those; a product keeps the nodes, which pass `scales`
fuses; every other node reads a float32 constant. Contract: the same values, bit for bit except for divisions;
a constant is computed once for all shapes of a model, and not at all above `LARGEST_BYTES`.
"""

import weakref
from dataclasses import replace
from typing import final

import numpy as np

from pliant.compiler.fusion.fuse_scales import takes_codes
from pliant.compiler.rewrite.affine import AffineWeights, affine_weights
from pliant.compiler.rewrite.rewrite import rebuild_graph, unused_name
from pliant.ir.graph import Graph, Node, TensorType
from pliant.models.onnx.bind.onnx_fold import LARGEST_BYTES

_FLOAT = 1  # ONNX's element type


@final
class FoldedWeightCache:
    """Float32 constants computed from a model's weights and shared by all shapes of the model."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, tuple[str, ...]], tuple[weakref.ref[np.ndarray], np.ndarray]] = {}

    def get(self, weights: AffineWeights, constant: np.ndarray) -> np.ndarray:
        """The values, computed at the first call for this constant."""
        key = (id(constant), weights.how)
        known = self._known.get(key)
        if known is None or known[0]() is not constant:
            known = self._known[key] = (weakref.ref(constant), weights.values(constant))
        return known[1]


def fold_weights(graph: Graph, cache: FoldedWeightCache) -> Graph:
    """`graph` without weights that every run would compute again; `graph` itself if there are none."""
    found = affine_weights(graph)
    work = _WeightFolder(graph, found, cache)
    nodes = [new for node in graph.nodes for new in work.replace_node(node)]
    if not work.constants and not work.types:
        return graph
    return rebuild_graph(graph, nodes, work.constants, work.types)


class _WeightFolder:
    def __init__(self, graph: Graph, found: dict[str, AffineWeights], cache: FoldedWeightCache) -> None:
        self.graph, self.found, self.cache = graph, found, cache
        self.constants: dict[str, np.ndarray] = {}
        self.types: dict[str, TensorType] = {}
        self._named: dict[str, str] = {}

    def replace_node(self, node: Node) -> list[Node]:
        """The nodes that replace this node."""
        if node.outputs[0] in self.found:
            return [node]  # removed later if nothing reads it
        if _looks_up(self.graph, node, self.found):
            return self._looked_up(node)
        inputs = tuple(
            self._constant(x) if x in self.found and self._is_folded(node, i, x) else x
            for i, x in enumerate(node.inputs)
        )
        return [node if inputs == node.inputs else replace(node, inputs=inputs)]

    def _is_folded(self, node: Node, i: int, x: str) -> bool:
        is_small = self.graph.types[x].n_bytes <= LARGEST_BYTES
        return is_small and not takes_codes(self.graph, node, i, self.found[x])

    def _constant(self, x: str) -> str:
        """The name under which tensor x is a constant."""
        if x not in self._named:
            self._named[x] = unused_name(self.graph, f"{x}.folded")
            weights = self.found[x]
            self.constants[self._named[x]] = self.cache.get(
                weights, self.graph.constants[weights.codes.tensor]
            )
        return self._named[x]

    def _looked_up(self, node: Node) -> list[Node]:
        """Nodes that pick rows of the codes, then nodes that convert these to weights."""
        weights, ids, y = self.found[node.inputs[0]], node.inputs[1], node.outputs[0]
        shape = self.graph.types[y].shape
        lead = shape[: len(shape) - len(weights.shape) + 1]
        codes, value = (unused_name(self.graph, f"{y}.{part}") for part in ("codes", "values"))
        self.types |= {codes: TensorType(weights.dtype, shape), value: TensorType("float32", shape)}
        nodes = [
            Node("Gather", (weights.codes.tensor, ids), (codes,), {"axis": 0}, node.name),
            Node("Cast", (codes,), (value,), {"to": _FLOAT}, node.name),
        ]
        for op, parameter in (("Sub", weights.zero), ("Mul", weights.scale), ("Add", weights.offset)):
            if parameter is None:
                continue
            name = unused_name(self.graph, f"{y}.{op.lower()}")
            if len(parameter) == 1:
                self.constants[name] = parameter.reshape(parameter.shape[1:])
            else:
                self.constants[name] = parameter
                rows = unused_name(self.graph, f"{name}.rows")
                self.types[rows] = TensorType("float32", (*lead, *parameter.shape[1:]))
                nodes.append(Node("Gather", (name, ids), (rows,), {"axis": 0}, node.name))
                name = rows
            made = unused_name(self.graph, f"{y}.{op.lower()}ed")
            self.types[made] = TensorType("float32", shape)
            nodes.append(Node(op, (value, name), (made,), {}, node.name))
            value = made
        return [*nodes[:-1], replace(nodes[-1], outputs=(y,))]


def _looks_up(graph: Graph, node: Node, found: dict[str, AffineWeights]) -> bool:
    """Whether a node picks rows of weights whose parameters have length 1 or full length along each axis."""
    if node.op != "Gather" or node.inputs[0] not in found or node.inputs[0] == node.inputs[1]:
        return False
    weights = found[node.inputs[0]]
    axis = node.integer("axis", 0) % len(weights.shape)
    if axis or not weights.codes.is_dense or weights.shape != graph.types[weights.codes.tensor].shape:
        return False
    parameters = [p for p in (weights.zero, weights.scale, weights.offset) if p is not None]
    return all(p.shape[0] in (1, weights.shape[0]) for p in parameters) and all(
        own in (1, n) for p in parameters for own, n in zip(p.shape[1:], weights.shape[1:], strict=True)
    )
