"""Pass `rotary`: fuse rotary embedding as exporters write it into one `FusedRotary`.

x * cos + concat(-x[half:], x[:half]) * sin, possibly of x's first columns only, with the others concatenated
after them. x is read in place through views. Contract: equal within rounding; float32; rank 4.
"""

from pliant.compiler.rewrite.pattern import GraphContext, other_operand
from pliant.compiler.rewrite.rewrite import rebuild_graph
from pliant.compiler.rewrite.trace_views import trace_view
from pliant.compiler.rewrite.view import View
from pliant.ir.graph import Attribute, Graph, Node


def fuse_rotary(graph: Graph) -> Graph:
    """The graph with each rotary embedding as one node."""
    context = GraphContext(graph)
    made: dict[str, Node] = {}
    for node in graph.nodes:
        found = _rotary(context, node) if node.op == "Add" else None
        if found is not None:
            made[found.outputs[0]] = found
    if not made:
        return graph
    return rebuild_graph(graph, [made.get(node.outputs[0], node) for node in graph.nodes])


def _rotary(context: GraphContext, node: Node) -> Node | None:
    graph, y = context.graph, node.outputs[0]
    type_ = graph.types[y]
    products = [context.maker(x, "Mul") for x in node.inputs]
    if type_.dtype != "float32" or len(type_.shape) != 4 or 0 in type_.shape or not all(products):
        return None
    for plain, turned in (products, products[::-1]):
        assert plain is not None
        assert turned is not None
        for rotated in turned.inputs:
            x = _rotation_source(context, rotated)
            if x is None or x.shape != type_.shape:
                continue
            straight = [i for i in plain.inputs if _view(graph, i, type_.shape) == x]
            if straight:
                return _fuse(
                    context, node, x, other_operand(plain, straight[0]), other_operand(turned, rotated)
                )
    return None


def _fuse(context: GraphContext, node: Node, x: View, cos: str, sin: str) -> Node | None:
    """The fused node, including a Concat with the columns that are not rotated."""
    graph, y = context.graph, node.outputs[0]
    shape = graph.types[y].shape
    whole = x
    after = context.reader(y, "Concat")
    if after and len(after.inputs) == 2 and after.inputs[0] == y and after.integer("axis") in (-1, 3):
        rest = _view(graph, after.inputs[1], graph.types[after.inputs[1]].shape)
        behind = (x.tensor, x.offset + shape[-1] * x.strides[-1], x.strides)
        if rest is not None and (rest.tensor, rest.offset, rest.strides) == behind:
            y = after.outputs[0]
            whole = View(x.tensor, x.offset, graph.types[y].shape, x.strides)
    views = {"x": whole, "cos": _view(graph, cos, shape), "sin": _view(graph, sin, shape)}
    if any(v is None or v.strides[-1] != 1 for v in views.values()):
        return None
    attributes: dict[str, Attribute] = {f"{n}_view": v.attribute for n, v in views.items() if v is not None}
    inputs = tuple(v.tensor for v in views.values() if v is not None)
    return Node("FusedRotary", inputs, (y,), attributes, node.name)


def _rotation_source(context: GraphContext, tensor: str) -> View | None:
    """The x of which `tensor` is the rotation: concat(-x[half:], x[:half]) along the last axis."""
    node = context.maker(tensor, "Concat")
    if node is None or len(node.inputs) != 2 or node.integer("axis") not in (-1, 3):
        return None
    minus = context.maker(node.inputs[0], "Neg")
    if minus is None:
        return None
    graph = context.graph
    high = _view(graph, minus.inputs[0], graph.types[minus.inputs[0]].shape)
    low = _view(graph, node.inputs[1], graph.types[node.inputs[1]].shape)
    if high is None or low is None or high.shape != low.shape or low.strides[-1] != 1:
        return None
    half = low.shape[-1]
    if (high.tensor, high.offset, high.strides) != (low.tensor, low.offset + half, low.strides):
        return None
    return View(low.tensor, low.offset, (*low.shape[:-1], 2 * half), low.strides)


def _view(graph: Graph, tensor: str, shape: tuple[int, ...]) -> View | None:
    """The tensor as a view, broadcast to `shape` except its last dimension, which must match."""
    own = graph.types[tensor].shape
    if len(own) > len(shape) or own[-1:] != shape[-1:] or graph.types[tensor].dtype != "float32":
        return None
    if any(n not in (1, m) for n, m in zip(own[::-1], shape[::-1], strict=False)):
        return None
    view = trace_view(graph, tensor, lambda v: True)
    return None if view is None else view.broadcast(shape)
