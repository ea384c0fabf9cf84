"""Pass `batch_norm`: fold a batch norm after a convolution into the convolution's weights and bias.

Contract: equal within rounding; weights, bias and all parameters of the norm are constants; float32; the
convolution has no other reader.
"""

import numpy as np

from pliant.compiler.rewrite.pattern import GraphContext
from pliant.compiler.rewrite.rewrite import rebuild_graph, unused_name
from pliant.ir.graph import Graph, Node


def fold_batch_norm(graph: Graph) -> Graph:
    """The graph without batch norms that can be folded into a convolution."""
    context = GraphContext(graph)
    made: dict[str, Node] = {}
    gone: set[str] = set()
    constants: dict[str, np.ndarray] = {}
    for node in graph.nodes:
        if node.op != "BatchNormalization" or node.flag("training_mode"):
            continue
        conv = context.maker(node.inputs[0], "Conv")
        if (
            conv is None
            or context.reader(conv.outputs[0]) is not node
            or not _are_constant(graph, node, conv)
        ):
            continue
        folded = _fold(graph, node, conv, constants)
        made[node.outputs[0]] = folded
        gone.add(conv.outputs[0])
    if not made:
        return graph
    kept = [node for node in graph.nodes if node.outputs[0] not in gone]
    return rebuild_graph(graph, [made.get(node.outputs[0], node) for node in kept], constants)


def _are_constant(graph: Graph, norm: Node, conv: Node) -> bool:
    names = [*norm.inputs[1:], *(x for x in conv.inputs[1:] if x)]
    is_float = graph.types[conv.outputs[0]].dtype == "float32"
    only_y = not any(norm.outputs[1:])
    return is_float and only_y and all(x in graph.constants for x in names)


def _fold(graph: Graph, norm: Node, conv: Node, constants: dict[str, np.ndarray]) -> Node:
    """(conv(x) + b - mean) * gain + shift, with gain = scale / sqrt(variance + epsilon), as one Conv."""
    scale, shift, mean, variance = (graph.constants[x].astype(np.float64) for x in norm.inputs[1:5])
    epsilon = norm.real("epsilon", 1e-5)
    assert isinstance(epsilon, float)
    gain = scale / np.sqrt(variance + epsilon)
    w = graph.constants[conv.inputs[1]]
    bias = graph.constants[conv.inputs[2]] if len(conv.inputs) > 2 and conv.inputs[2] else np.zeros(len(w))
    y = norm.outputs[0]
    names = unused_name(graph, f"{y}.weights"), unused_name(graph, f"{y}.bias")
    constants[names[0]] = (w * gain.reshape(-1, *[1] * (w.ndim - 1))).astype(np.float32)
    constants[names[1]] = ((bias - mean) * gain + shift).astype(np.float32)
    return Node("Conv", (conv.inputs[0], *names), (y,), conv.attributes, conv.name)
