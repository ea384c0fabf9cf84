"""Pass `conv`: fuse a convolution with the addition and the activation that follow it.

Conv, then Add of a tensor of the result's shape, then one of Relu, Clip, LeakyRelu, HardSigmoid, HardSwish,
Sigmoid, Tanh, Gelu, Swish, x * sigmoid(x) or x * hardsigmoid(x), become one `FusedConv`. Contract: equal
within rounding; float32; intermediate tensors have no other reader; if two convolutions are added, the later
one adds the result of the other.
"""

from collections.abc import Collection
from math import inf

from pliant.compiler.rewrite.pattern import GraphContext, other_operand
from pliant.compiler.rewrite.rewrite import rebuild_graph
from pliant.ir.graph import Attribute, Graph, Node

_Activation = tuple[str, float, float]
"""Name, low and high of an activation (kernels/conv/conv_activations.py)."""

_PLAIN = {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh"}


def fuse_conv(graph: Graph) -> Graph:
    """The graph with each convolution and its following operators as one node."""
    context = GraphContext(graph)
    made: dict[str, Node] = {}
    gone: set[str] = set()
    # In reverse order: the added tensor must be computed before the fused node.
    for node in reversed(graph.nodes):
        if node.op != "Conv" or graph.types[node.outputs[0]].dtype != "float32":
            continue
        fused, intermediates = _fuse(context, node, {*made, *gone})
        if intermediates:
            made[fused.outputs[0]] = fused
            gone |= intermediates
    if not made:
        return graph
    kept = [node for node in graph.nodes if node.outputs[0] not in gone]
    return rebuild_graph(graph, [made.get(node.outputs[0], node) for node in kept])


def _fuse(context: GraphContext, node: Node, taken: Collection[str]) -> tuple[Node, set[str]]:
    """The fused node, and the tensors that it makes unnecessary.

    `taken` are tensors already fused into other convolutions.
    """
    graph, y, intermediates = context.graph, node.outputs[0], set[str]()
    attributes: dict[str, Attribute] = dict(node.attributes)
    residual = ""
    shape = graph.types[y].shape
    add = context.reader(y, "Add")
    if add is not None and add.outputs[0] not in taken:
        x = other_operand(add, y)
        if x != y and x not in graph.constants and graph.types[x].shape == shape:
            residual = x
            intermediates.add(y)
            y = add.outputs[0]
    found = _match_activation(context, y)
    if found is not None and found[1] not in taken:
        ending, last, inner = found
        attributes |= {"activation": ending[0], "low": ending[1], "high": ending[2]}
        intermediates |= {y, *inner}
        y = last
    inputs = [*node.inputs, *[""] * (3 - len(node.inputs)), residual]
    while not inputs[-1]:
        inputs.pop()
    return Node("FusedConv", tuple(inputs), (y,), attributes, node.name), intermediates


def _match_activation(context: GraphContext, y: str) -> tuple[_Activation, str, set[str]] | None:
    """The activation that is the only reader of y, its result, and its intermediate tensors."""
    node = context.reader(y)
    if node is not None:
        ending = _activation(context, node)
        return None if ending is None else (ending, node.outputs[0], set())
    readers = context.consumers.get(y, ())
    if len(readers) != 2 or y in context.graph.outputs:
        return None
    for gate, product in (readers, readers[::-1]):
        name = {"Sigmoid": "silu", "HardSigmoid": "hard_swish"}.get(gate.op)
        inside = gate.outputs[0]
        if name and product.op == "Mul" and set(product.inputs) == {y, inside} and context.reader(inside):
            _, low, high = _activation(context, gate) or ("", 0.0, 0.0)
            return (name, low, high), product.outputs[0], {inside}
    return None


def _activation(context: GraphContext, node: Node) -> _Activation | None:
    """An operator of one input as an activation; None if the kernel does not support it."""
    match node.op:
        case "Relu" | "Sigmoid" | "Tanh":
            return _PLAIN[node.op], 0.0, 0.0
        case "Clip":
            return _clip(context, node)
        case "LeakyRelu":
            return "leaky", node.real("alpha", 0.01), 0.0
        case "HardSigmoid":
            return "hard_sigmoid", node.real("alpha", 0.2), node.real("beta", 0.5)
        case "HardSwish":
            return "hard_swish", 1 / 6, 0.5
        case "Gelu" if node.text("approximate", "none") == "none":
            return "gelu", 0.0, 0.0
        case "Swish" if node.real("alpha", 1.0) == 1.0:
            return "silu", 0.0, 0.0
        case _:
            return None


def _clip(context: GraphContext, node: Node) -> _Activation | None:
    bounds = [-inf, inf]
    for i, name in enumerate(node.inputs[1:]):
        if name:
            value = context.number(name)
            if value is None:
                return None
            bounds[i] = value
    return ("clip", bounds[0], bounds[1]) if bounds[0] <= bounds[1] else None
