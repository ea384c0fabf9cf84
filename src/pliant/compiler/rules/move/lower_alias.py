"""Lower operators whose output is their input in another shape: aliases."""

from pliant.compiler.executable.call import LoweredNode, Target, TensorAlias
from pliant.compiler.rules.move.lower_move import require
from pliant.ir.graph import Graph, Node


def _alias(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, y = node.inputs[0], node.outputs[0]
    require(graph.types[x].n_bytes == graph.types[y].n_bytes, node, graph)
    return LoweredNode(aliases=(TensorAlias(y, x),))


RULES = dict.fromkeys(("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"), _alias)
