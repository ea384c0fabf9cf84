"""Step `weights` of `weights=8`: keep constant matrices of products in bytes, with a scale for each column.

MatMul, Gemm, FusedMatMul and ScaledMatMul become `ByteMatMul`; for int8 `QuantizeRows`, once for all products
of a tensor, and `ByteMatMulInteger` (see compiler.rules.product.lower_byte_matmul); bias, activation and
residual are kept. Matrices of fewer than 32 rows, 16 columns or 4096 weights stay in float32; for fp32,
matrices that are already integers with scales are unchanged. Contract: the same graph with each column of a
matrix rounded to 255 equal steps, or to as many as the processor's sums hold; for int8 each row of
activations is rounded as well, and products of K beyond MOST_DEPTH are as for fp32. This step is an option,
not a pass that can be switched off.
"""

from dataclasses import replace

from pliant.compiler.rewrite.coder import is_large
from pliant.compiler.rewrite.operands import MatMulOperands, matmul_operands
from pliant.compiler.rewrite.round_rows import RowRounder, as_rows
from pliant.compiler.rewrite.view import input_view
from pliant.errors import GraphError
from pliant.ir.graph import Attribute, Graph, Node
from pliant.kernels.coded.int8.gemm_int8 import padded_int8
from pliant.kernels.coded.int8_form import MOST_DEPTH
from pliant.models.encoder.encoder_graph import ComputeDtype


def byte_weights(graph: Graph, compute: ComputeDtype = "fp32") -> Graph:
    """`graph` with its products' weights in bytes. Raises GraphError if there is no matrix to round."""
    rounded = RowRounder(graph)
    nodes = [made for node in graph.nodes for made in _round(graph, node, rounded, compute)]
    if all(made is node for made, node in zip(nodes, graph.nodes, strict=False)):
        raise GraphError(
            f"{graph.name} has no product with a constant matrix that bytes would make smaller (at least "
            "32 x 16, and 4096 weights); compile it with weights='fp32'."
        )
    return replace(graph, nodes=tuple(nodes), types={**graph.types, **rounded.types})


def _round(graph: Graph, node: Node, rounded: RowRounder, compute: ComputeDtype) -> tuple[Node, ...]:
    p = matmul_operands(graph, node)
    if p is None or p.b.tensor not in graph.constants or not is_large(*p.b.shape):
        return (node,)
    scales, zeros = (*node.inputs[2:4], "")[:2] if node.op == "ScaledMatMul" else ("", "")
    attributes: dict[str, Attribute] = {"b_view": p.b.attribute, "alpha": p.alpha}
    if activation := node.text("activation", ""):
        attributes["activation"] = activation
    inputs = [p.b.tensor, scales, zeros, p.bias, p.residual]
    while not inputs[-1]:
        inputs.pop()
    rows = as_rows(p.a) if compute == "int8" and p.b.shape[0] <= MOST_DEPTH else None
    if rows is not None:
        before, q = rounded.integers(rows, padded_int8(p.b.shape[0]), is_resident=True)
        return (*before, Node("ByteMatMulInteger", (*q, *inputs), node.outputs, attributes, node.name))
    if node.op == "ScaledMatMul" and "float" not in node.text("element"):
        return (node,)
    return (_float(graph, p, node, inputs, attributes),)


def _float(
    graph: Graph, p: MatMulOperands, node: Node, inputs: list[str], attributes: dict[str, Attribute]
) -> Node:
    if p.a != input_view(graph, p.a.tensor):
        attributes["a_view"] = p.a.attribute
    return Node("ByteMatMul", (p.a.tensor, *inputs), node.outputs, attributes, node.name)
