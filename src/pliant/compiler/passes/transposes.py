"""Pass `transposes`: merge a transpose of a transpose into one, or none.

Contract: the same elements in the same order.
"""

from dataclasses import replace

from pliant.compiler.rewrite.rewrite import rebuild_graph
from pliant.ir.graph import Graph, Node


def merge_transposes(graph: Graph) -> Graph:
    """The graph in which no Transpose reads another's output; pass `identities` drops those without
    effect.
    """
    makers = graph.producers
    nodes: list[Node] = []
    changed = False
    for node in graph.nodes:
        before = makers.get(node.inputs[0]) if node.op == "Transpose" else None
        if before is not None and before.op == "Transpose":
            inner, outer = permutation(before, graph), permutation(node, graph)
            perm = tuple(inner[i] for i in outer)
            node = replace(node, inputs=before.inputs, attributes={"perm": perm})
            changed = True
        nodes.append(node)
    return rebuild_graph(graph, nodes) if changed else graph


def permutation(node: Node, graph: Graph) -> tuple[int, ...]:
    """Dimension i of a Transpose's output is dimension permutation[i] of its input."""
    rank = len(graph.types[node.inputs[0]].shape)
    perm = node.integers("perm", tuple(reversed(range(rank))))
    assert isinstance(perm, tuple)
    return tuple(int(i) for i in perm)
