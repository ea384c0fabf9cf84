"""Pass `dead`: drop nodes whose outputs are not read, and the names of unread outputs.

Contract: nodes that an output depends on are unchanged.
"""

from dataclasses import replace

from pliant.compiler.rewrite.rewrite import rebuild_graph
from pliant.ir.graph import Graph, Node


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
    """A node with only those outputs that are read; a split always computes all of its parts."""
    if node.op == "Split":
        return node
    outputs = [y if y in wanted else "" for y in node.outputs]
    while outputs and not outputs[-1]:
        outputs.pop()
    return node if tuple(outputs) == node.outputs else replace(node, outputs=tuple(outputs))
