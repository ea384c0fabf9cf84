"""Pass `matmul`: fuse a product with its bias, its activation and the addition that follows it.

MatMul or Gemm, then Add of a row, then Gelu, Relu or Tanh, or else Add of a tensor of the result's shape,
become one `FusedMatMul`. Operands that are views of other tensors (transposed, sliced) are read in place.
Contract: equal within rounding; float32 only; intermediate tensors have no other reader.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass

from pliant.compiler.fusion.fuse_scales import takes_codes
from pliant.compiler.rewrite.affine import AffineWeights, affine_weights
from pliant.compiler.rewrite.pattern import GraphContext, other_operand
from pliant.compiler.rewrite.rewrite import rebuild_graph
from pliant.compiler.rewrite.trace_views import trace_view
from pliant.compiler.rewrite.view import View, whole_view
from pliant.ir.graph import Attribute, Graph, Node

_ACTIVATIONS = {"Relu": "relu", "Tanh": "tanh", "Gelu": "gelu"}


def fuse_matmul(graph: Graph) -> Graph:
    """The graph with each product and its following operators as one node."""
    context, weights = GraphContext(graph), affine_weights(graph)
    made: dict[str, Node] = {}
    gone: set[str] = set()
    for node in graph.nodes:
        if node.op not in ("MatMul", "Gemm") or graph.types[node.outputs[0]].dtype != "float32":
            continue
        fused = _fuse(context, weights, node, gone, made)
        if fused is not None:
            made[fused.outputs[0]] = fused
    if not made:
        return graph
    kept = [node for node in graph.nodes if node.outputs[0] not in gone]
    return rebuild_graph(graph, [made.get(node.outputs[0], node) for node in kept])


def _fuse(
    context: GraphContext,
    weights: Mapping[str, AffineWeights],
    node: Node,
    gone: set[str],
    made: Mapping[str, Node],
) -> Node | None:
    """The fused node for `node`'s product; the tensors that it makes unnecessary are added to `gone`.

    Operators already fused into another product (those of `made` and `gone`) are not taken.
    """
    graph = context.graph
    if node.op == "Gemm" and not _is_plain(context, node):
        return None
    views = _views(graph, node, weights)
    attributes: dict[str, Attribute] = {f"{name}_view": view.attribute for name, view in views.items()}
    if node.op == "Gemm" and node.real("alpha", 1.0) != 1.0:
        attributes["alpha"] = node.real("alpha")
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    is_column = node.op == "MatMul" and len(graph.types[node.inputs[1]].shape) == 1
    tail = match_epilogue(context, node.outputs[0], bias, {*made, *gone}, is_column=is_column)
    if tail.activation:
        attributes["activation"] = tail.activation
    if not tail.intermediates and node.op == "MatMul" and not attributes:
        return None
    gone.update(tail.intermediates)
    read = [views[name].tensor if name in views else x for name, x in zip("ab", node.inputs, strict=False)]
    inputs = [*read, tail.bias, tail.residual]
    while not inputs[-1]:
        inputs.pop()
    return Node("FusedMatMul", tuple(inputs), (tail.y,), attributes, node.name)


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The operators that follow a product, down to `y`; `intermediates` are the tensors between them. Absent
    tensors are "".
    """

    y: str
    bias: str
    residual: str
    activation: str
    intermediates: tuple[str, ...]


def match_epilogue(
    context: GraphContext,
    y: str,
    bias: str,
    made: Container[str],
    *,
    known_bias: bool = False,
    is_column: bool = False,
) -> Epilogue:
    """The bias, activation or residual that follows a product `y`, excluding tensors in `made`.

    With `known_bias`, a bias must be a constant. A product by a vector `is_column`: the last axis of `y` is
    that of the product's rows, so nothing is a bias.
    """
    graph = context.graph
    shape, residual, activation = graph.types[y].shape, "", ""
    intermediates: list[str] = []
    while not activation and (after := context.reader(y, "Add", *_ACTIVATIONS)):
        if after.outputs[0] in made or graph.types[after.outputs[0]].shape != shape:
            break
        if after.op == "Add":
            x = other_operand(after, y)
            if x == y or residual or graph.types[x].dtype != "float32":
                break
            can_be_bias = not (bias or is_column) and (x in graph.constants or not known_bias)
            if can_be_bias and _is_row(graph, x, shape):
                bias = x
            elif graph.types[x].shape == shape:
                residual = x
            else:
                break
        elif residual:
            break
        else:
            is_tanh = after.op == "Gelu" and after.text("approximate", "none") == "tanh"
            activation = _ACTIVATIONS[after.op] + ("_tanh" if is_tanh else "")
        intermediates.append(y)
        y = after.outputs[0]
    return Epilogue(y, bias, residual, activation, tuple(intermediates))


def _is_row(graph: Graph, x: str, shape: tuple[int, ...]) -> bool:
    type_ = graph.types[x]
    return len(shape) > 0 and type_.size == shape[-1] and type_.shape[-1:] == shape[-1:]


def _is_plain(context: GraphContext, node: Node) -> bool:
    """A Gemm whose C, if any, is a bias."""
    if len(node.inputs) < 3 or not node.inputs[2]:
        return True
    is_row = _is_row(context.graph, node.inputs[2], context.graph.types[node.outputs[0]].shape)
    return is_row and node.real("beta", 1.0) == 1.0


def _views(graph: Graph, node: Node, weights: Mapping[str, AffineWeights]) -> Mapping[str, View]:
    """The operands, a or b, that are views of other tensors.

    A matrix that pass `scales` takes as codes is read under its own name, by which that pass knows it.
    """
    found: dict[str, View] = {}
    for i, (name, x) in enumerate(zip("ab", node.inputs, strict=False)):
        view = trace_view(graph, x, _is_readable)
        assert view is not None, "every tensor can be read as it is"
        is_coded = x in weights and takes_codes(graph, node, i, weights[x])
        if is_coded or (view.tensor in graph.constants and view.tensor != x):
            view = whole_view(x, graph.types[x])
        if node.flag(f"trans{name.upper()}"):
            view = View(view.tensor, view.offset, view.shape[::-1], view.strides[::-1])
        if view != whole_view(x, graph.types[x]):
            found[name] = view
    return found


def _is_readable(view: View) -> bool:
    """Either the rows or the columns of the matrices are contiguous; packing anything else is slow."""
    return 1 in view.strides[-2:] or 0 in view.shape or len(view.shape) < 2
