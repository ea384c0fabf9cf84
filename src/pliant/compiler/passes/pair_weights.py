"""Step `weights` of `compute="bf16"`: multiply constant float32 matrices as pairs of bfloat16.

MatMul, Gemm and FusedMatMul become `RoundRows`, once for all products of a tensor, and `PairMatMul` (see
compiler.rules.product.lower_bf16_matmul); bias, activation and residual are kept. Matrices of fewer than 32
rows, 16 columns or 4096 weights, and operands without equally spaced rows, stay in float32. Contract: the
same graph within the rounding of both factors to eight bits. This step is an option, not a pass that can be
switched off.
"""

from dataclasses import replace

from pliant.compiler.rewrite.coder import is_large
from pliant.compiler.rewrite.operands import matmul_operands
from pliant.compiler.rewrite.round_rows import RowRounder, as_rows
from pliant.errors import GraphError
from pliant.ir.graph import Attribute, Graph, Node
from pliant.kernels.coded.gemm_bf16 import padded_depth


def pair_weights(graph: Graph) -> Graph:
    """`graph` with its products in bfloat16. Raises GraphError if there is no product to change."""
    rounded = RowRounder(graph)
    nodes = [made for node in graph.nodes for made in _pair(graph, node, rounded)]
    if len(nodes) == len(graph.nodes) and not any(node.flag("bf16") for node in nodes):
        raise GraphError(
            f"{graph.name} has no product with a constant matrix of at least 32 x 16, and 4096 weights, that "
            "bfloat16 would speed up; compile it with compute='fp32'."
        )
    return replace(graph, nodes=tuple(nodes), types={**graph.types, **rounded.types})


def _pair(graph: Graph, node: Node, rounded: RowRounder) -> tuple[Node, ...]:
    p = None if node.op == "ScaledMatMul" else matmul_operands(graph, node)
    if p is None or p.b.tensor not in graph.constants or not is_large(*p.b.shape):
        return (node,)
    rows = as_rows(p.a)
    if rows is None:
        return (node,)
    before, (q,) = rounded.bfloats(rows, padded_depth(p.b.shape[0]))
    attributes: dict[str, Attribute] = {"b_view": p.b.attribute, "alpha": p.alpha}
    if activation := node.text("activation", ""):
        attributes["activation"] = activation
    added = [p.bias, p.residual]
    while added and not added[-1]:
        added.pop()
    return (*before, Node("PairMatMul", (q, p.b.tensor, *added), node.outputs, attributes, node.name))
