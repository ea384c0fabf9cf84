"""The operands of a matrix product, read from any of the operators that can express one."""

from dataclasses import dataclass

from pliant.compiler.rewrite.view import View, input_view
from pliant.ir.graph import Graph, Node


@dataclass(frozen=True, slots=True)
class MatMulOperands:
    """alpha * a @ b + bias + residual: a and b [K, N] as views; absent tensors are ""."""

    a: View
    b: View
    alpha: float
    bias: str
    residual: str


def matmul_operands(graph: Graph, node: Node) -> MatMulOperands | None:
    """The operands of a node; None if it is not a plain float32 product of rows with one matrix.

    For a ScaledMatMul, b is the codes.
    """
    if node.op not in ("MatMul", "Gemm", "FusedMatMul", "ScaledMatMul"):
        return None
    y = graph.types[node.outputs[0]]
    a = input_view(graph, node.inputs[0], node.integers("a_view", None))
    b = input_view(graph, node.inputs[1], node.integers("b_view", None))
    if y.dtype != "float32" or y.size == 0 or "y_view" in node.attributes:
        return None
    if node.flag("transB"):
        b = b.transposed((1, 0))
    if len(b.shape) != 2 or len(a.shape) < 2 or node.flag("transA") or 0 in a.shape:
        return None
    first = 4 if node.op == "ScaledMatMul" else 2
    bias, residual = (*node.inputs[first:], "", "")[:2]
    if node.op == "Gemm" and bias:
        own = graph.types[bias].shape
        if node.real("beta", 1.0) != 1.0 or own not in ((b.shape[1],), (1, b.shape[1])):
            return None
    return MatMulOperands(a, b, node.real("alpha", 1.0), bias, residual)
