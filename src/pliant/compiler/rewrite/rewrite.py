"""Replace nodes of a graph and keep it valid."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from pliant.ir.graph import Graph, Node, TensorType


def rebuild_graph(
    graph: Graph,
    nodes: Iterable[Node],
    constants: Mapping[str, np.ndarray] | None = None,
    types: Mapping[str, TensorType] | None = None,
) -> Graph:
    """`graph` with these nodes instead, and further constants and tensors; unread ones are removed."""
    kept = tuple(nodes)
    more = constants or {}
    known = {**graph.types, **(types or {}), **{x: constant_type(a) for x, a in more.items()}}
    read = {x for node in kept for x in node.inputs} | set(graph.outputs)
    held = {x: a for x, a in {**graph.constants, **more}.items() if x in read}
    named = {y for node in kept for y in node.outputs} | set(held) | set(graph.inputs)
    return replace(graph, nodes=kept, constants=held, types={x: t for x, t in known.items() if x in named})


def redirect_tensors(graph: Graph, instead: Mapping[str, str]) -> Graph:
    """`graph` with tensor `instead[x]` read in place of x, without the nodes that made x.

    A graph's output keeps its name: the node that makes the other tensor makes it under that name, or
    where that cannot be (an input, a constant, another output) an Identity does.
    """
    if not instead:
        return graph

    def final(x: str) -> str:
        while x in instead:
            x = instead[x]
        return x

    makers = graph.producers
    fixed = {*graph.inputs, *graph.constants, *graph.outputs}
    renamed: dict[str, str] = {}
    copied: dict[str, str] = {}
    for y in graph.outputs:
        if y in instead:
            source = final(y)
            if source in fixed or source in renamed or source not in makers:
                copied[y] = renamed.get(source, source)
            else:
                renamed[source] = y

    def new(x: str) -> str:
        source = final(x)
        return renamed.get(source, source)

    nodes = []
    for node in graph.nodes:
        if any(y in instead for y in node.outputs):
            # An output's node that only forwards its input is replaced by the forwarded tensor.
            nodes += [
                Node("Identity", (new(copied[y]),), (y,), {}, node.name) for y in node.outputs if y in copied
            ]
            continue
        inputs = tuple(new(x) if x else "" for x in node.inputs)
        outputs = tuple(renamed.get(y, y) for y in node.outputs)
        same = (inputs, outputs) == (node.inputs, node.outputs)
        nodes.append(node if same else replace(node, inputs=inputs, outputs=outputs))
    return rebuild_graph(graph, nodes, types={y: graph.types[y] for y in renamed.values()})


def unused_name(graph: Graph, near: str) -> str:
    """An unused tensor name derived from `near`."""
    if near not in graph.types:
        return near
    return next(name for i in range(len(graph.types) + 1) if (name := f"{near}~{i}") not in graph.types)


def constant_type(array: np.ndarray) -> TensorType:
    return TensorType(str(array.dtype), array.shape)
