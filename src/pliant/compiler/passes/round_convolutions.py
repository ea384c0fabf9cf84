"""Step of `compute="bf16"` for CPUs with tiles: let convolutions with constant weights round to bfloat16.

Contract: `bf16` is set on such nodes; lowering uses bfloat16 where tiles are faster, and float32 elsewhere.
"""

from dataclasses import replace

from pliant.ir.graph import Graph, Node


def round_convolutions(graph: Graph) -> Graph:
    """`graph` with its float32 convolutions marked."""
    return replace(graph, nodes=tuple(_mark(graph, node) for node in graph.nodes))


def _mark(graph: Graph, node: Node) -> Node:
    if node.op not in ("Conv", "ConvTranspose", "FusedConv") or node.inputs[1] not in graph.constants:
        return node
    return replace(node, attributes={**node.attributes, "bf16": 1})
