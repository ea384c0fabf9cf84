"""Trace nodes of a simplified graph to the model's nodes, and count the bytes that their calls move.

Passes keep the names of remaining tensors, so the origin of a node is all nodes of the model's graph between
the tensors that it reads and those that it makes.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from pliant.compiler.executable.call import Call, LoweredNode
from pliant.ir.graph import Graph, Node, Origin

_MOVES = ("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Constant")
_PICKS = ("Gather", "GatherElements", "GatherND", "Slice", "Split")


def with_origins(graph: Graph, source: Graph) -> Graph:
    """`graph`, which passes made from `source`, with the origin of each of its nodes."""
    makers = source.producers
    kept = {_original(y, source) for node in graph.nodes for y in node.outputs if y}
    position = {id(node): i for i, node in enumerate(source.nodes)}
    origins = {}
    for node in graph.nodes:
        outputs = [_original(y, source) for y in node.outputs if y]
        # Walks end at constants; a constant made by a pass may have the name of a removed tensor.
        inputs = {_original(x, source) for x in node.inputs if x and x not in graph.constants}
        came = _nodes_between(outputs, inputs, kept, makers)
        came.sort(key=lambda n: position[id(n)])
        origins[node.outputs[0]] = Origin(_name(node, came), sum(_flops(n, source) for n in came))
    return replace(graph, origins=origins)


def describe_node(node: Node, graph: Graph, lowered: LoweredNode) -> LoweredNode:
    """The node's calls with descriptions for reports: label, operator, and amount of work."""
    origin = graph.origins.get(node.outputs[0], Origin(node.label))
    sizes = {x: p.n_bytes for x, p in lowered.packed.items()} | dict(lowered.temporaries)
    inside = {alias.tensor: alias.source for alias in lowered.aliases}

    def size(tensor: str) -> int:
        if tensor in graph.types:
            return graph.types[tensor].n_bytes
        return sizes[tensor] if tensor in sizes else size(inside[tensor])

    def moved(call: Call) -> int:
        written = sum(size(y) for y in dict.fromkeys(call.writes))
        if node.op in _PICKS:
            return 2 * written
        return written + sum(size(x) for x in dict.fromkeys(call.reads))

    return replace(
        lowered,
        calls=tuple(
            replace(call, label=origin.name, op=node.op, flops=origin.flops, n_bytes=moved(call))
            for call in lowered.calls
        ),
    )


def _original(tensor: str, source: Graph) -> str:
    """The tensor's name in the model: passes name new tensors `name.layout` or `name~1`."""
    name = tensor
    while name not in source.types:
        cut = max(name.rfind("."), name.rfind("~"))
        if cut <= 0:
            return tensor
        name = name[:cut]
    return name


def _nodes_between(
    outputs: list[str], inputs: set[str], kept: set[str], makers: Mapping[str, Node]
) -> list[Node]:
    """The distinct nodes that make `outputs` from `inputs` and other `kept` tensors."""
    found: dict[int, Node] = {}
    waiting = [y for y in outputs if y not in inputs]
    while waiting:
        node = makers.get(waiting.pop())
        if node is not None and id(node) not in found:
            found[id(node)] = node
            waiting += [x for x in node.inputs if x and x not in inputs and x not in kept]
    return list(found.values())


def _name(node: Node, came: list[Node]) -> str:
    ops = [n.op for n in came if n.op not in _MOVES]
    name = node.name or (came[-1].name if came else "") or f"{node.op} {node.outputs[0]}"
    return f"{name} ({'+'.join(ops)})" if len(ops) > 1 else name


def _flops(node: Node, graph: Graph) -> int:
    """Two operations for each multiply-add of a product or a convolution; other operations do not count."""
    shapes = [graph.types[x].shape if x else () for x in node.inputs]
    size = graph.types[node.outputs[0]].size if node.outputs[0] else 0
    match node.op:
        case "MatMul" | "MatMulInteger" | "QLinearMatMul" if shapes[0]:
            return 2 * size * shapes[0][-1]
        case "Gemm":
            return 2 * size * shapes[0][0 if node.flag("transA") else 1]
        case "Conv" | "ConvInteger":
            return 2 * size * prod(shapes[1][1:])
        case "QLinearConv":
            return 2 * size * prod(shapes[3][1:])
        case "ConvTranspose":
            return 2 * prod(shapes[0]) * prod(shapes[1][1:])
    return 0
