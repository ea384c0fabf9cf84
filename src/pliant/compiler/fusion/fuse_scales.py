"""Pass `scales`: let a product read weights that are stored as integers or half floats.

MatMul, Gemm or FusedMatMul of rows with (codes - zero) * scale, all of them constants (compile.affine),
become `ScaledMatMul` (see compile.lower.scaled_matmul), which converts a block of codes to float32 just
before its use: a quarter or half of the memory, and of the reads of a short input. Contract: the same
products of the same float32 weights. Weights that the kernel does not support are unchanged: with non-integer
zero points, almost as many scales as weights, or offsets.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pliant.compiler.rewrite.affine import AffineWeights, affine_weights
from pliant.compiler.rewrite.operands import MatMulOperands, matmul_operands
from pliant.compiler.rewrite.rewrite import constant_type, rebuild_graph, unused_name
from pliant.compiler.rewrite.view import View, whole_view
from pliant.ir.graph import Attribute, Graph, Node
from pliant.kernels.product.scaled_block import WeightElement

_MIN_BLOCK = 16
"""Fewer rows of weights with one scale each would need almost as many scales as weights."""
_MIN_WEIGHTS = 4096
"""A smaller matrix is converted once."""


def fuse_scales(graph: Graph) -> Graph:
    """The graph with each such product as one node."""
    found = affine_weights(graph)
    constants: dict[str, np.ndarray] = {}
    nodes = [_fuse(graph, node, found, constants) for node in graph.nodes] if found else []
    if not constants:
        return graph
    return rebuild_graph(graph, nodes, constants, {x: constant_type(a) for x, a in constants.items()})


def takes_codes(graph: Graph, node: Node, i: int, weights: AffineWeights) -> bool:
    """Whether input i of `node`, which is `weights`, may stay codes."""
    if i != 1 or node.op not in ("MatMul", "Gemm", "FusedMatMul") or len(weights.shape) != 2:
        return False
    p = matmul_operands(graph, node)
    return p is not None and _matrix(graph, p, weights) is not None


@dataclass(frozen=True, slots=True, eq=False)
class _CodedMatrix:
    """Codes [K, N] and their parameters [blocks of K or 1, N or 1]."""

    codes: View
    element: WeightElement
    scales: np.ndarray
    zeros: np.ndarray | None


def _fuse(
    graph: Graph, node: Node, found: Mapping[str, AffineWeights], constants: dict[str, np.ndarray]
) -> Node:
    p = matmul_operands(graph, node) if len(node.inputs) > 1 and node.inputs[1] in found else None
    matrix = None if p is None else _matrix(graph, p, found[node.inputs[1]])
    if p is None or matrix is None:
        return node
    scales = unused_name(graph, f"{node.outputs[0]}.scales")
    constants[scales] = matrix.scales * np.float32(p.alpha)
    zeros = ""
    if matrix.zeros is not None:
        view = ",".join(map(str, matrix.codes.attribute))
        zeros = unused_name(graph, f"{node.inputs[1]}.zeros|{view}")  # equal matrices are packed once
        constants[zeros] = matrix.zeros
    attributes: dict[str, Attribute] = {"b_view": matrix.codes.attribute, "element": matrix.element}
    if p.a != whole_view(p.a.tensor, graph.types[p.a.tensor]):
        attributes["a_view"] = p.a.attribute
    if activation := node.text("activation", ""):
        attributes["activation"] = activation
    inputs = [p.a.tensor, matrix.codes.tensor, scales, zeros, p.bias, p.residual]
    while not inputs[-1]:
        inputs.pop()
    return Node("ScaledMatMul", tuple(inputs), node.outputs, attributes, node.name)


def _matrix(graph: Graph, p: MatMulOperands, weights: AffineWeights) -> _CodedMatrix | None:
    """The weights as the product's matrix; None if it does not support them."""
    dense = whole_view(p.b.tensor, graph.types[p.b.tensor])
    if len(dense.shape) != 2:
        return None
    if p.b == dense.transposed((1, 0)) and p.b != dense:
        weights = _transpose(weights)
    elif p.b != dense:
        return None
    depth, columns = weights.shape
    if depth * columns < _MIN_WEIGHTS or weights.offset is not None:
        return None
    scales = np.ones((1, 1), np.float32) if weights.scale is None else weights.scale
    blocks = max(len(scales), 1 if weights.zero is None else len(weights.zero))
    if depth // blocks < _MIN_BLOCK and blocks > 1:
        return None
    element = _element(graph, weights)
    if element is None:
        return None
    wide = tuple(np.asarray(_columns(x, columns)) for x in (scales, weights.zero) if x is not None)
    zeros = wide[1].astype(np.int16) if len(wide) > 1 else None
    return _CodedMatrix(weights.codes, element, wide[0], zeros)


def _columns(parameter: np.ndarray, n: int) -> np.ndarray:
    """The parameter with one value for all columns or one per column."""
    own = parameter.shape[1]
    return parameter if own in (1, n) else np.repeat(parameter, n // own, 1)


def _transpose(weights: AffineWeights) -> AffineWeights:
    made = weights.map_parameters(np.transpose)
    return AffineWeights(
        weights.codes.transposed((1, 0)), made.dtype, made.how, made.scale, made.zero, made.offset
    )


def _element(graph: Graph, weights: AffineWeights) -> WeightElement | None:
    """The type that holds codes minus their zero point."""
    zero = weights.zero
    if weights.dtype in ("float16", "bfloat16"):
        return None if zero is not None else weights.dtype  # type: ignore[return-value]
    if "16" in weights.dtype or (zero is not None and np.abs(zero).max() > 255):
        return None
    if weights.dtype == "uint8" or zero is not None:
        codes = graph.constants[weights.codes.tensor]
        least, most = int(codes.min()), int(codes.max())
        if zero is not None:
            least, most = least - int(zero.max()), most - int(zero.min())
        if least < -128 or most > 127:
            return "int16"
    return "int8"
