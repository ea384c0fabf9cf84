"""Lower a graph by the rules and place every tensor."""

from pliant.compiler.executable.assemble_image import Image as Image
from pliant.compiler.executable.assemble_image import assemble
from pliant.compiler.executable.call import Target
from pliant.compiler.rewrite.origin import describe_node
from pliant.compiler.rules.rules import lower
from pliant.ir.graph import Graph


def make_image(graph: Graph, target: Target) -> Image:
    """Lower every node, then place tensors by lifetime (FluidML, Algorithm 4). Raises GraphError."""
    lowered = lower(graph, target)
    described = [describe_node(node, graph, part) for node, part in zip(graph.nodes, lowered, strict=True)]
    return assemble(graph, described, target)
