"""Pass `reshapes`: merge chains of Reshape, Squeeze, Unsqueeze and Flatten into one Reshape.

Contract: the same bytes under the same final shape.
"""

from dataclasses import replace

import numpy as np

from pliant.compiler.rewrite.rewrite import rebuild_graph, unused_name
from pliant.ir.graph import Graph, Node
from pliant.ir.symbolic import size_array

RESHAPING = frozenset(("Reshape", "Squeeze", "Unsqueeze", "Flatten"))


def merge_reshapes(graph: Graph) -> Graph:
    """The graph in which no reshape reads another's output."""
    makers = graph.producers
    nodes: list[Node] = []
    constants: dict[str, np.ndarray] = {}
    for node in graph.nodes:
        source = node.inputs[0] if node.op in RESHAPING else ""
        before = makers.get(source)
        if before is None or before.op not in RESHAPING:
            nodes.append(node)
            continue
        while (maker := makers.get(source)) is not None and maker.op in RESHAPING:
            source = maker.inputs[0]
        shape = unused_name(graph, f"{node.outputs[0]}.shape")
        constants[shape] = size_array(graph.types[node.outputs[0]].shape)
        nodes.append(replace(node, op="Reshape", inputs=(source, shape), attributes={"allowzero": 1}))
    return rebuild_graph(graph, nodes, constants) if constants else graph
