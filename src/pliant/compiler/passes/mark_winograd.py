"""Pass `winograd`: mark 3x3 convolutions that gain from Winograd's F(4x4, 3x3).

This algorithm needs a quarter of the multiplications and four times the weights, so enough tiles must share
the weights. Contract: equal within rounding, with about twice the error of plain sums; constant weights; runs
after layouts are chosen. An output is a sum over the whole 6x6 input tile, in which pixels outside its window
cancel: NaN, infinity or a value far larger than its neighbours affects all 4x4 outputs of each tile that
holds it.
"""

from dataclasses import replace

from pliant.compiler.rewrite.rewrite import rebuild_graph
from pliant.ir.graph import Graph, Node

_FEWEST_TILES, _FEWEST_CHANNELS, _VECTOR = 12, 32, 16


def mark_winograd(graph: Graph) -> Graph:
    """The graph with `algorithm` set on such nodes."""
    nodes = [
        replace(node, attributes={**node.attributes, "algorithm": "winograd"})
        if _gains(graph, node)
        else node
        for node in graph.nodes
    ]
    return (
        graph if all(a is b for a, b in zip(nodes, graph.nodes, strict=True)) else rebuild_graph(graph, nodes)
    )


def _gains(graph: Graph, node: Node) -> bool:
    if node.op != "FusedConv" or "algorithm" in node.attributes:
        return False
    if (node.text("x_layout", ""), node.text("y_layout", "")) != ("nhwc", "nhwc"):
        return False
    w = graph.types[node.inputs[1]].shape
    ones = all(n == 1 for name in ("strides", "dilations") for n in node.integers(name, ()))
    known = all(x in graph.constants for x in node.inputs[1:3] if x)
    if w[2:] != (3, 3) or not ones or not known or node.integer("group", 1) != 1:
        return False
    if any(n % _VECTOR or n < _FEWEST_CHANNELS for n in w[:2]):
        return False
    _, height, width, _ = graph.types[node.outputs[0]].shape
    return -(-height // 4) * -(-width // 4) >= _FEWEST_TILES
