"""Move products of the row that each iteration reads with a constant matrix out of a loop body.

Row i of a product is the product of row i. All rows together read the matrix once instead of once per
iteration.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from onnx import helper

from pliant.models.onnx.bind.onnx_blocks import NodeBlock, ScopedNode
from pliant.models.onnx.bind.onnx_constants import KnownConstants
from pliant.models.onnx.onnx_nodes import node_of


def hoist_products(
    body: NodeBlock, known: KnownConstants, fresh: Callable[[str], str]
) -> tuple[NodeBlock | None, NodeBlock]:
    """The block to compute once before a `Loop`, if any, and the body that reads its results.

    `known` has constant matrices. A row qualifies if it is indexed by the iteration number or by a state that
    grows by one: a loop reads such rows to their end, unless it stops early.
    """
    made = {y: scoped for scoped in body.nodes for y in scoped.makes}
    own = made.keys() | set(body.inputs) | body.constants.keys()
    numbers = {body.inputs[0]} | {
        x for x, y in zip(body.inputs[2:], body.outputs[1:], strict=False) if _is_next(made.get(y), x, body)
    }
    before: list[ScopedNode] = []
    nodes: list[ScopedNode] = []
    for scoped in body.nodes:
        row = _row(scoped, made, known)
        if row is None or row.node.input[0] in own or row.node.input[1] not in numbers:
            nodes.append(scoped)
            continue
        rows, at, (product,) = row.node.input[0], row.node.input[1], scoped.makes
        products = fresh(product)
        matrix = scoped.node.input[1]
        before.append(replace(scoped, node=helper.make_node("MatMul", [rows, matrix], [products])))
        nodes.append(replace(scoped, node=helper.make_node("Gather", [products, at], [product])))
    if not before:
        return None, body
    read = {x for scoped in nodes for x in scoped.reads} | set(body.outputs)
    kept = tuple(scoped for scoped in nodes if read.intersection(scoped.makes))
    made_before = tuple(y for scoped in before for y in scoped.makes)
    return NodeBlock(tuple(before), made_before), replace(body, nodes=kept)


def _row(scoped: ScopedNode, made: Mapping[str, ScopedNode], known: KnownConstants) -> ScopedNode | None:
    """The Gather of a row that is multiplied by a known matrix; None for any other node."""
    node = scoped.node
    if node.op_type != "MatMul" or node.domain not in ("", "ai.onnx"):
        return None
    matrix, row = known.get(node.input[1]), made.get(node.input[0])
    if not isinstance(matrix, np.ndarray) or matrix.ndim != 2 or row is None:
        return None
    is_row = row.node.op_type == "Gather" and node_of(row.node).integer("axis", 0) == 0
    return row if is_row and row.node.domain in ("", "ai.onnx") else None


def _is_next(scoped: ScopedNode | None, state: str, body: NodeBlock) -> bool:
    """Whether a node adds one to a state."""
    if scoped is None or scoped.node.op_type != "Add" or state not in scoped.node.input:
        return False
    others = [body.constants.get(x) for x in scoped.node.input if x != state]
    return len(others) == 1 and others[0] is not None and others[0].size == 1 and others[0].item() == 1
