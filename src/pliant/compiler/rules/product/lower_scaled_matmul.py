"""Lower products with constant weights that stay integers or half floats.

ScaledMatMul(a, codes, scales, zeros?, bias?, residual?) is FusedMatMul whose b is (codes - zeros) * scales,
computed on the fly, float32. `b_view` views the codes as [K, N]; `scales` and `zeros` are [blocks of K or 1,
N or 1]; `element` is the type in which codes minus zeros are kept.
"""

from typing import cast

from pliant.compiler.executable.call import LoweredNode, Target
from pliant.compiler.rewrite.view import View, input_view, whole_view
from pliant.compiler.rules.product.product import Product
from pliant.compiler.rules.product.product_calls import lower_product
from pliant.compiler.rules.product.scaled_weights import pack_scaled
from pliant.ir.graph import Graph, Node
from pliant.kernels.product.scaled_block import WeightElement


def _matmul(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, codes, scales, zeros, bias, residual = (*node.inputs, "", "", "")[:6]
    a = input_view(graph, x, node.integers("a_view", None))
    matrix = input_view(graph, codes, node.integers("b_view"))
    out = whole_view(node.outputs[0], graph.types[node.outputs[0]])
    b = View(codes, 0, matrix.shape, (matrix.shape[1], 1))
    product = Product(
        out,
        a,
        b.broadcast((*out.shape[:-2], *b.shape)),
        bias or None,
        View(residual, 0, out.shape, out.strides) if residual else None,
        node.text("activation", "") or None,
        label=node.label,
        scaled=pack_scaled(graph.constants, matrix, zeros, scales, cast(WeightElement, node.text("element"))),
    )
    return lower_product(product, dict(graph.constants), target)


RULES = {"ScaledMatMul": _matmul}
