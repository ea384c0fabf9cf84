"""Several graphs as one, so that one library and one emulated process run them all. Knows no operator."""

from collections.abc import Mapping
from dataclasses import replace

from pliant.ir.graph import Graph


def union(graphs: Mapping[str, Graph]) -> Graph:
    """All graphs side by side; a tensor `x` of the graph called `g` is called `g:x`."""
    nodes, inputs, outputs, types, constants = [], [], [], {}, {}
    for key, graph in graphs.items():

        def named(x: str, key: str = key) -> str:
            return x and f"{key}:{x}"

        for node in graph.nodes:
            ins, outs = tuple(map(named, node.inputs)), tuple(map(named, node.outputs))
            nodes.append(replace(node, inputs=ins, outputs=outs, name=named(node.name)))
        inputs += map(named, graph.inputs)
        outputs += map(named, graph.outputs)
        types |= {named(x): type_ for x, type_ in graph.types.items()}
        constants |= {named(x): value for x, value in graph.constants.items()}
    return Graph(tuple(nodes), tuple(inputs), tuple(outputs), types, constants)
