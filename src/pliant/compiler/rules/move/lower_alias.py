"""Lower operators whose output is their input's bytes under another shape."""

from pliant.compiler.executable.call import Alias, Lowered, Target
from pliant.ir.graph import Graph, Node


def _alias(node: Node, graph: Graph, target: Target) -> Lowered:
    return Lowered(aliases=(Alias(node.outputs[0], node.inputs[0]),))


RULES = dict.fromkeys(("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"), _alias)
