"""Step of `compute="bf16"` where tiles multiply: convolutions with constant weights may round to bfloat16.

Contract: `bf16` is set on such nodes; lowering takes it where tiles pay, and float32 elsewhere.
"""

from dataclasses import replace

from pliant.ir.graph import Graph, Node


def round_convolutions(graph: Graph) -> Graph:
    """`graph` with its float32 convolutions marked."""
    return replace(graph, nodes=tuple(_marked(graph, node) for node in graph.nodes))


def _marked(graph: Graph, node: Node) -> Node:
    if node.op not in ("Conv", "FusedConv") or node.inputs[1] not in graph.constants:
        return node
    return replace(node, attributes={**node.attributes, "bf16": 1})
