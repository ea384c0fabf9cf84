"""Pass `norm`: fuse layer norm and RMS norm written in primitives into one node each.

Contract: equal within rounding. Recognised over the last axis, with or without scale and shift.
"""

from dataclasses import dataclass

import numpy as np

from pliant.compiler.rewrite.pattern import GraphContext, other_operand
from pliant.compiler.rewrite.rewrite import rebuild_graph, unused_name
from pliant.ir.graph import Attribute, Graph, Node


@dataclass(frozen=True, slots=True)
class _Normalization:
    """`y` is x, minus its mean if `is_centred`, divided by the root of its mean square plus epsilon."""

    x: str
    y: str
    epsilon: float
    is_centred: bool


def fuse_norm(graph: Graph) -> Graph:
    """The graph with each normalisation as one node."""
    context = GraphContext(graph)
    made: dict[str, Node] = {}
    constants: dict[str, np.ndarray] = {}
    for node in graph.nodes:
        normal = _match_norm(context, node) if node.op == "Sqrt" else None
        if normal is None:
            continue
        y, scale, shift = normal.y, None, None
        n = graph.types[y].shape[-1]
        if (after := context.reader(y, "Mul")) and _is_row(graph, weight := other_operand(after, y), n):
            y, scale = after.outputs[0], weight
            after = context.reader(y, "Add") if normal.is_centred else None
            if after and _is_row(graph, weight := other_operand(after, y), n):
                y, shift = after.outputs[0], weight
        if scale is None:
            scale = unused_name(graph, f"{y}.ones")
            constants[scale] = np.ones(n, graph.types[y].numpy)
        attributes: dict[str, Attribute] = {"axis": -1, "epsilon": normal.epsilon}
        op = "LayerNormalization" if normal.is_centred else "RMSNormalization"
        inputs = (normal.x, scale) if shift is None else (normal.x, scale, shift)
        made[y] = Node(op, inputs, (y,), attributes, context.producers[y].name)
    if not made:
        return graph
    return rebuild_graph(graph, [made.get(node.outputs[0], node) for node in graph.nodes], constants)


def _match_norm(context: GraphContext, root: Node) -> _Normalization | None:
    """The normalisation of which `root` is the denominator."""
    plus = context.maker(root.inputs[0], "Add")
    found = plus and context.with_number(plus)
    if not found:
        return None
    variance, epsilon = found
    squares = _mean_of(context, variance)
    centred = squares and _square_of(context, squares)
    y = centred and _quotient(context, centred, root.outputs[0])
    if not centred or not y:
        return None
    minus = context.maker(centred, "Sub")
    if minus is not None and _mean_of(context, minus.inputs[1]) == minus.inputs[0]:
        return _Normalization(minus.inputs[0], y, epsilon, True)
    return _Normalization(centred, y, epsilon, False)


def _mean_of(context: GraphContext, tensor: str) -> str | None:
    """The tensor of which `tensor` is the mean over the last axis (kept)."""
    node = context.maker(tensor, "ReduceMean")
    if node is None or not node.flag("keepdims", True):
        return None
    axes = context.graph.constants.get(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
    last = len(context.graph.types[node.inputs[0]].shape) - 1
    is_last = axes is not None and axes.size == 1 and int(axes.reshape(-1)[0]) in (-1, last)
    return node.inputs[0] if is_last else None


def _square_of(context: GraphContext, tensor: str) -> str | None:
    if node := context.maker(tensor, "Pow"):
        return node.inputs[0] if context.number(node.inputs[1]) == 2.0 else None
    node = context.maker(tensor, "Mul")
    return node.inputs[0] if node and node.inputs[0] == node.inputs[1] else None


def _quotient(context: GraphContext, x: str, root: str) -> str | None:
    """The tensor x / root, or x times the reciprocal of root."""
    if (node := context.reader(root, "Div")) and node.inputs == (x, root):
        return node.outputs[0]
    inverse = context.reader(root, "Reciprocal", "Div")
    if inverse is None or (inverse.op == "Div" and context.number(inverse.inputs[0]) != 1.0):
        return None
    node = context.reader(inverse.outputs[0], "Mul")
    return node.outputs[0] if node and x in node.inputs else None


def _is_row(graph: Graph, tensor: str, n: int) -> bool:
    """Whether a tensor is a constant of one float per column."""
    return tensor in graph.constants and graph.types[tensor].shape == (n,)
