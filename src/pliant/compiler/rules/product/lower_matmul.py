"""Lower MatMul, Gemm and FusedMatMul.

FusedMatMul(a, b, bias?, residual?) = activation(alpha * a @ b + bias + residual), float32, with attributes
`activation` (a name in kernels.vmath.ACTIVATIONS), `alpha`, and `a_view`, `b_view` (see compile.view) if an
operand is a strided view of another tensor; `y_view` is the layout of the result, and of the residual.
"""

from dataclasses import replace
from math import prod

import numpy as np

from pliant.compiler.executable.call import LoweredNode, PackedConstant, Target
from pliant.compiler.rewrite.view import View, broadcast_shape, input_view, whole_view
from pliant.compiler.rules.product.product import Product
from pliant.compiler.rules.product.product_calls import lower_contraction, lower_product
from pliant.ir.graph import Graph, Node


def _matmul(node: Node, graph: Graph, target: Target) -> LoweredNode:
    a, b = (whole_view(x, graph.types[x]) for x in node.inputs)
    return _multiply(node, graph, target, a, b)


def _fused_matmul(node: Node, graph: Graph, target: Target) -> LoweredNode:
    a = input_view(graph, node.inputs[0], node.integers("a_view", None))
    b = input_view(graph, node.inputs[1], node.integers("b_view", None))
    bias, residual = (*node.inputs[2:], "", "")[:2]
    y_view = node.integers("y_view", None)
    return _multiply(
        node,
        graph,
        target,
        a,
        b,
        bias=bias or None,
        residual=residual or None,
        activation=node.text("activation", "") or None,
        alpha=node.real("alpha", 1.0),
        out=None if y_view is None else input_view(graph, node.outputs[0], y_view),
    )


def _multiply(
    node: Node,
    graph: Graph,
    target: Target,
    a: View,
    b: View,
    *,
    bias: str | None = None,
    residual: str | None = None,
    activation: str | None = None,
    alpha: float = 1.0,
    out: View | None = None,
) -> LoweredNode:
    if len(a.shape) == 1:
        a = View(a.tensor, a.offset, (1, *a.shape), (0, *a.strides))
    if len(b.shape) == 1:
        b = View(b.tensor, b.offset, (*b.shape, 1), (*b.strides, 0))
    batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
    shape = (*batch, a.shape[-2], b.shape[-1])
    out = out or _contiguous(node.outputs[0], shape)
    a = a.broadcast((*batch, *a.shape[-2:]))
    b = b.broadcast((*batch, *b.shape[-2:]))
    if graph.types[node.outputs[0]].dtype != "float32":
        return _contract(node, graph, out, a, b)
    added = None if residual is None else View(residual, 0, shape, out.strides)
    product = Product(out, a, b, bias, added, activation, alpha, node.label, has_extent=node.flag("extent"))
    return lower_product(product, dict(graph.constants), target)


def _contract(
    node: Node,
    graph: Graph,
    out: View,
    a: View,
    b: View,
    added: View | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> LoweredNode:
    """Lower to the kernel for any type."""
    *batch, rows, depth = a.shape
    columns = b.shape[-1]
    shape = (*batch, rows, columns, depth)
    left = View(a.tensor, a.offset, shape, (*a.strides[:-1], 0, a.strides[-1]))
    right = View(b.tensor, b.offset, shape, (*b.strides[:-2], 0, b.strides[-1], b.strides[-2]))
    dtype = graph.types[node.outputs[0]].dtype
    return lower_contraction(out, (left, right), dtype, added=added, alpha=alpha, beta=beta, label=node.label)


def _gemm(node: Node, graph: Graph, target: Target) -> LoweredNode:
    a, b = (whole_view(x, graph.types[x]) for x in node.inputs[:2])
    a = _transpose(a) if node.flag("transA") else a
    b = _transpose(b) if node.flag("transB") else b
    alpha, beta = (node.real(x, 1.0) for x in ("alpha", "beta"))
    shape = (a.shape[0], b.shape[1])
    out = _contiguous(node.outputs[0], shape)
    c = node.inputs[2] if len(node.inputs) > 2 and beta != 0.0 else ""
    type_ = graph.types[node.outputs[0]]
    bias, residual, packed = _addend(graph, c, beta, shape)
    if type_.dtype != "float32" or (c and not bias and residual is None):
        added = whole_view(c, graph.types[c]).broadcast(shape) if c else None
        return _contract(node, graph, out, a, b, added, alpha, beta)
    product = Product(out, a, b, bias, residual, None, alpha, node.label)
    lowered = lower_product(product, dict(graph.constants), target)
    return replace(lowered, packed={**lowered.packed, **packed})


def _addend(
    graph: Graph, c: str, beta: float, shape: tuple[int, int]
) -> tuple[str | None, View | None, dict[str, PackedConstant]]:
    """C as a bias, or as rows to add; neither if only the general kernel can add it."""
    if not c or graph.types[c].dtype != "float32":
        return None, None, {}
    own = graph.types[c].shape
    is_row = prod(own) == shape[1] and (own[-1:] == shape[1:] or shape[1] == 1)
    is_full = own == shape
    if beta == 1.0 and is_row:
        return c, None, {}
    if beta == 1.0 and is_full:
        return None, _contiguous(c, shape), {}
    if c not in graph.constants:
        return None, None, {}
    values = graph.constants[c]
    name = f"{c}|added|{shape[0]}x{shape[1]}|{beta}"

    def fill(memory: np.ndarray) -> None:
        memory.view(np.float32).reshape(shape)[:] = np.float32(beta) * values

    return None, _contiguous(name, shape), {name: PackedConstant(4 * prod(shape), fill, c)}


def _transpose(v: View) -> View:
    return View(v.tensor, v.offset, v.shape[::-1], v.strides[::-1])


def _contiguous(tensor: str, shape: tuple[int, ...]) -> View:
    return View(tensor, 0, shape, tuple(prod(shape[i + 1 :]) for i in range(len(shape))))


RULES = {"MatMul": _matmul, "Gemm": _gemm, "FusedMatMul": _fused_matmul}
