"""Pass `dead`: drop nodes whose outputs are not read, and the names of unread outputs.

Contract: nodes that an output depends on are unchanged.
"""

import sys
from dataclasses import replace

from pliant.compiler.rewrite.rewrite import rebuild_graph
from pliant.ir.graph import Graph, Node

_MADE = {"Split": sys.maxsize, "MaxPool": 1, "LayerNormalization": 1}
"""The number of outputs that a node always computes."""


def drop_dead_code(graph: Graph) -> Graph:
    """The graph without nodes that no output depends on."""
    wanted = set(graph.outputs)
    kept: list[Node] = []
    changed = False
    for node in reversed(graph.nodes):
        if not wanted.intersection(node.outputs):
            changed = True
            continue
        wanted.update(node.inputs)
        trimmed = _trim(node, wanted)
        changed |= trimmed is not node
        kept.append(trimmed)
    return rebuild_graph(graph, reversed(kept)) if changed else graph


def _trim(node: Node, wanted: set[str]) -> Node:
    """A node with only those outputs that are read, and those that it computes in any case."""
    n_made = _MADE.get(node.op, 0)
    outputs = [y if y in wanted or i < n_made else "" for i, y in enumerate(node.outputs)]
    while outputs and not outputs[-1]:
        outputs.pop()
    return node if tuple(outputs) == node.outputs else replace(node, outputs=tuple(outputs))
