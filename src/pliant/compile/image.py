"""A graph lowered by the rules, with every tensor's place. Knows the rules, no addresses."""

from pliant.compile.assemble import Image as Image
from pliant.compile.assemble import Place as Place
from pliant.compile.assemble import assemble
from pliant.compile.call import Target
from pliant.compile.lower.rules import lower
from pliant.compile.origin import described
from pliant.ir.graph import Graph


def make_image(graph: Graph, target: Target) -> Image:
    """Lower every node, then place tensors by lifetime (FluidML, Algorithm 4). Raises GraphError."""
    lowered = lower(graph, target)
    told = [described(node, graph, part) for node, part in zip(graph.nodes, lowered, strict=True)]
    return assemble(graph, told, target)
