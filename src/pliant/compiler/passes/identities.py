"""Pass `identities`: drop nodes whose output is one of their inputs, unchanged.

Contract: equal values for equal inputs (x + 0 turns -0 into 0, which are equal).
"""

from collections.abc import Callable, Mapping

import numpy as np

from pliant.compiler.rewrite.rewrite import redirect_tensors
from pliant.ir.graph import Graph, Node


def drop_identities(graph: Graph) -> Graph:
    """The graph without nodes that return an input unchanged."""
    instead: dict[str, str] = {}
    for node in graph.nodes:
        rule = _RULES.get(node.op)
        passed = None if rule is None else rule(node, graph)
        if not passed or (node.op == "Identity" and _must_copy(node, graph, instead)):
            continue
        if graph.types[passed] == graph.types[node.outputs[0]] and not any(node.outputs[1:]):
            instead[node.outputs[0]] = passed
    return redirect_tensors(graph, instead)


def _must_copy(node: Node, graph: Graph, instead: Mapping[str, str]) -> bool:
    """Whether an Identity is needed because an output is an input, a constant or another output."""
    if node.outputs[0] not in graph.outputs:
        return False
    source = node.inputs[0]
    while source in instead:
        source = instead[source]
    taken = {instead[y] for y in graph.outputs if y in instead}
    return source in graph.outputs or source in graph.inputs or source in graph.constants or source in taken


def _first(node: Node, graph: Graph) -> str | None:
    return node.inputs[0]


def _single(node: Node, graph: Graph) -> str | None:
    return node.inputs[0] if len(node.inputs) == 1 else None


def _dropout(node: Node, graph: Graph) -> str | None:
    """At inference, dropout drops nothing."""
    training = node.inputs[2] if len(node.inputs) > 2 else ""
    known = not training or (training in graph.constants and not np.any(graph.constants[training]))
    return node.inputs[0] if known else None


def _transpose(node: Node, graph: Graph) -> str | None:
    rank = len(graph.types[node.inputs[0]].shape)
    perm = node.integers("perm", tuple(reversed(range(rank))))
    return node.inputs[0] if perm == tuple(range(rank)) else None


def _cast(node: Node, graph: Graph) -> str | None:
    same = graph.types[node.inputs[0]].dtype == graph.types[node.outputs[0]].dtype
    return node.inputs[0] if same else None


def _neutral(value: int, *positions: int) -> Callable[[Node, Graph], str | None]:
    """x op `value` is x if `value` is the operand at one of `positions`."""

    def rule(node: Node, graph: Graph) -> str | None:
        for i in positions:
            constant = graph.constants.get(node.inputs[i])
            if constant is not None and constant.size and np.all(constant == value):
                return node.inputs[1 - i]
        return None

    return rule


def _same_shape(node: Node, graph: Graph) -> str | None:
    """If these operators keep the shape, they keep every element in its place."""
    return node.inputs[0] if graph.types[node.inputs[0]] == graph.types[node.outputs[0]] else None


def _forward_slice(node: Node, graph: Graph) -> str | None:
    steps = graph.constants.get(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] else None
    if len(node.inputs) > 4 and node.inputs[4] and (steps is None or np.any(steps != 1)):
        return None
    return _same_shape(node, graph)


def _no_pad(node: Node, graph: Graph) -> str | None:
    pads = graph.constants.get(node.inputs[1])
    return node.inputs[0] if pads is not None and not np.any(pads) else None


_RULES: Mapping[str, Callable[[Node, Graph], str | None]] = {
    "Identity": _first,
    "Cast": _cast,
    "CastLike": _cast,
    "Dropout": _dropout,
    "Transpose": _transpose,
    "Reshape": _same_shape,
    "Flatten": _same_shape,
    "Squeeze": _same_shape,
    "Unsqueeze": _same_shape,
    "Expand": _same_shape,
    "Tile": _same_shape,
    "Split": _same_shape,
    "Slice": _forward_slice,
    "Pad": _no_pad,
    "Concat": _single,
    "Sum": _single,
    "Mean": _single,
    "Max": _single,
    "Min": _single,
    "Add": _neutral(0, 0, 1),
    "Sub": _neutral(0, 1),
    "Mul": _neutral(1, 0, 1),
    "Div": _neutral(1, 1),
    "Pow": _neutral(1, 1),
    "And": _neutral(1, 0, 1),
    "Or": _neutral(0, 0, 1),
}
