"""Pass `int8`: replace onnxruntime's operators for a dynamically quantized product by two nodes.

DynamicQuantizeLinear, MatMulInteger, Cast, Mul by both scales, and the operators that may follow a product
(see fuse_matmul) become `DynamicQuantizeRows`, once for all products of a tensor, and `QuantizedMatMul`.
Contract: the same integers, summed exactly; floats equal within rounding. Weights, their scales and zero
points are constants.
"""

from collections.abc import Container

from pliant.compiler.fusion.fuse_matmul import match_epilogue
from pliant.compiler.rewrite.pattern import GraphContext, other_operand
from pliant.compiler.rewrite.rewrite import rebuild_graph, unused_name
from pliant.ir.graph import Attribute, Graph, Node, TensorType


def fuse_int8(graph: Graph) -> Graph:
    """The graph with its dynamically quantized products fused."""
    context = GraphContext(graph)
    made: dict[str, Node] = {}
    gone: set[str] = set()
    quantized: dict[str, Node] = {}
    types: dict[str, TensorType] = {}
    for node in graph.nodes:
        quantize = (
            context.maker(node.inputs[0], "DynamicQuantizeLinear") if node.op == "MatMulInteger" else None
        )
        if quantize is None:
            continue
        found = _product(context, node, quantize, made)
        if found is None:
            continue
        x = quantize.inputs[0]
        if x not in quantized:
            quantized[x] = _quantization(graph, quantize, types)
        fused, intermediates = found
        inputs = (*quantized[x].outputs, *fused.inputs)
        made[fused.outputs[0]] = Node("QuantizedMatMul", inputs, fused.outputs, fused.attributes, node.name)
        gone.update(intermediates)
    if not made:
        return graph
    nodes: list[Node] = []
    waiting = dict(quantized)
    for node in graph.nodes:
        if node.op == "DynamicQuantizeLinear" and node.inputs[0] in waiting:
            nodes.append(waiting.pop(node.inputs[0]))
        if node.outputs[0] not in gone:
            nodes.append(made.get(node.outputs[0], node))
    return rebuild_graph(graph, nodes, types=types)


def _quantization(graph: Graph, node: Node, types: dict[str, TensorType]) -> Node:
    """The quantizing node for x; ONNX's own node stays if it has other readers."""
    x = node.inputs[0]
    *lead, depth = graph.types[x].shape
    q, scale, zero = (unused_name(graph, f"{x}.{part}") for part in ("rows", "scale", "zero"))
    types[q] = TensorType("int16", (*lead, depth + depth % 2))
    types[scale] = TensorType("float32", ())
    types[zero] = TensorType("uint8", ())
    return Node("DynamicQuantizeRows", (x,), (q, scale, zero), {}, node.name)


def _product(
    context: GraphContext, node: Node, quantize: Node, made: Container[str]
) -> tuple[Node, tuple[str, ...]] | None:
    """The fused product, and the tensors that it makes unnecessary."""
    graph = context.graph
    _, w, x_zero, w_zero = (*node.inputs, "", "")[:4]
    shape = graph.types[quantize.inputs[0]].shape
    is_plain = len(shape) > 1 and 0 not in shape and len(graph.types[w].shape) == 2
    known = w in graph.constants and (not w_zero or w_zero in graph.constants)
    if not (is_plain and known and x_zero == quantize.outputs[2]):
        return None
    cast = context.reader(node.outputs[0], "Cast")
    scaled = cast and context.reader(cast.outputs[0], "Mul")
    if not cast or not scaled or graph.types[cast.outputs[0]].dtype != "float32":
        return None
    scales = context.maker(other_operand(scaled, cast.outputs[0]), "Mul")
    if scales is None or quantize.outputs[1] not in scales.inputs:
        return None
    by = other_operand(scales, quantize.outputs[1])
    columns = graph.types[w].shape[1]
    steps = graph.types[by]
    is_by_column = steps.size == columns and steps.shape[-1:] == (columns,)
    if by not in graph.constants or not (steps.size == 1 or is_by_column):
        return None
    if graph.types[scaled.outputs[0]].shape != graph.types[node.outputs[0]].shape:
        return None
    tail = match_epilogue(context, scaled.outputs[0], "", made, known_bias=True)
    inputs = [w, by, w_zero, tail.bias, tail.residual]
    attributes: dict[str, Attribute] = {"activation": tail.activation} if tail.activation else {}
    intermediates = (node.outputs[0], cast.outputs[0], *tail.intermediates)
    return Node("QuantizedMatMul", tuple(inputs), (tail.y,), attributes), intermediates
