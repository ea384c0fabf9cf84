"""Pass `attention`: fuse softmax(scale * Q K^T + mask) V into one `FusedAttention` that stores no scores.

Q, K, V and the mask are read in place, through views of the tensors that they were cut, reshaped and
transposed from; the output is written in the dimension order of a following transpose. Contract: equal within
rounding, for masks of large negative numbers or -inf; float32; scores have no other reader.
"""

from dataclasses import dataclass

import numpy as np

from pliant.compiler.passes.transposes import permutation
from pliant.compiler.rewrite.pattern import GraphContext, other_operand
from pliant.compiler.rewrite.rewrite import rebuild_graph, unused_name
from pliant.compiler.rewrite.trace_views import reshape_view, trace_view
from pliant.compiler.rewrite.view import View, whole_view
from pliant.ir.graph import Attribute, Graph, Node, TensorType

_HIDES = -1e4
"""A score that is replaced by a value up to this gets no weight beside a score of ordinary size."""
_LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True, slots=True)
class _Scores:
    """scale * q @ k^T + mask, or this where `shown` is true and `hidden` elsewhere; q and kt are tensors."""

    q: str
    kt: str
    scale: float
    mask: str = ""


def fuse_attention(graph: Graph) -> Graph:
    """The graph with every attention as one node."""
    context = GraphContext(graph)
    made: dict[str, list[Node]] = {}
    constants: dict[str, np.ndarray] = {}
    types: dict[str, TensorType] = {}
    for node in graph.nodes:
        if node.op == "Softmax" and _is_over_keys(graph, node):
            found = _attention(context, node, constants, types)
            if found:
                made[found[-1].outputs[0]] = found
    if not made:
        return graph
    nodes = [new for node in graph.nodes for new in made.get(node.outputs[0], [node])]
    return rebuild_graph(graph, nodes, constants, types)


def _is_over_keys(graph: Graph, node: Node) -> bool:
    type_ = graph.types[node.inputs[0]]
    rank = len(type_.shape)
    axis = node.integer("axis", -1)
    return type_.dtype == "float32" and rank in (3, 4) and axis in (-1, rank - 1) and 0 not in type_.shape


def _attention(
    context: GraphContext, softmax: Node, constants: dict[str, np.ndarray], types: dict[str, TensorType]
) -> list[Node] | None:
    """The nodes that replace one attention; the last one makes its output."""
    graph = context.graph
    weights, zeroes = _weights(context, softmax.outputs[0])
    product = context.reader(weights, "MatMul")
    if product is None or product.inputs[0] != weights or product.inputs[1] == weights:
        return None
    more: list[Node] = []
    scores = _scores(context, softmax.inputs[0], more, constants, types)
    if scores is None:
        return None
    batch = graph.types[softmax.inputs[0]].shape[:-2]
    if graph.types[product.outputs[0]].shape[:-2] != batch:
        return None  # the scores are broadcast to more values
    views = {
        "q": _heads(graph, scores.q, batch),
        "k": _heads(graph, scores.kt, batch, is_transposed=True),
        "v": _heads(graph, product.inputs[1], batch),
    }
    if scores.mask:
        views["mask"] = _mask(graph, scores.mask, graph.types[softmax.inputs[0]].shape, types)
    if any(view is None for view in views.values()):
        return None
    attributes: dict[str, Attribute] = {f"{x}_view": v.attribute for x, v in views.items() if v is not None}
    attributes["scale"] = scores.scale
    if zeroes:
        attributes["is_empty_zero"] = 1
    y, attributes["y_view"] = _output(context, product.outputs[0])
    inputs = tuple(v.tensor for v in views.values() if v is not None)
    return [*more, Node("FusedAttention", inputs, (y,), attributes, product.name)]


def _output(context: GraphContext, y: str) -> tuple[str, tuple[int, ...]]:
    """The tensor to write, `y` or its transpose, and the positions of [batch, head, row, column] in it."""
    graph = context.graph
    view = whole_view(y, graph.types[y])
    after = context.reader(y, "Transpose")
    if after is not None:
        perm = permutation(after, graph)
        if perm[-1] == len(perm) - 1:
            y = after.outputs[0]
            view = whole_view(y, graph.types[y]).transposed([perm.index(i) for i in range(len(perm))])
    if len(view.shape) == 3:
        view = View(y, 0, (1, *view.shape), (0, *view.strides))
    return y, view.attribute


def _weights(context: GraphContext, tensor: str) -> tuple[str, bool]:
    """The operand that multiplies V, and whether NaN (a fully masked row) was replaced by zero before."""
    readers = context.consumers.get(tensor, ())
    nan = next((n for n in readers if n.op == "IsNaN"), None)
    if nan is None or len(readers) != 2 or tensor in context.graph.outputs:
        return tensor, False
    where = context.reader(nan.outputs[0], "Where")
    if where is None or where.inputs[2] != tensor or context.number(where.inputs[1]) != 0.0:
        return tensor, False
    return where.outputs[0], True


def _scores(
    context: GraphContext,
    tensor: str,
    more: list[Node],
    constants: dict[str, np.ndarray],
    types: dict[str, TensorType],
) -> _Scores | None:
    """The product that makes the scores, its scale, and a mask; a node that makes the mask is added to
    `more`.
    """
    mask, graph = "", context.graph
    shape = graph.types[tensor].shape
    if context.reader(tensor) is None:
        return None
    node = context.producers.get(tensor)
    if node is not None and node.op == "Add":
        sides = [(x, other_operand(node, x)) for x in node.inputs if _product(context, x) is not None]
        if len(sides) != 1 or context.reader(sides[0][0]) is None:
            return None
        tensor, mask = sides[0]
    elif node is not None and node.op == "Where":
        found = _match_where(context, node, more, constants, types)
        if found is None:
            return None
        tensor, mask = found
    found_product = _product(context, tensor)
    if found_product is None:
        return None
    product, scale = found_product
    if graph.types[product.outputs[0]].shape[-2:] != shape[-2:]:
        return None  # a mask broadcasts rows or keys
    q, by_q = context.scaled(product.inputs[0])
    kt, by_k = context.scaled(product.inputs[1])
    return _Scores(q, kt, scale * by_q * by_k, mask)


def _product(context: GraphContext, tensor: str) -> tuple[Node, float] | None:
    """The MatMul of which `tensor` is a multiple, without other readers."""
    x, scale = context.scaled(tensor)
    node = context.maker(x, "MatMul")
    return None if node is None or context.reader(x) is None else (node, scale)


def _match_where(
    context: GraphContext,
    where: Node,
    more: list[Node],
    constants: dict[str, np.ndarray],
    types: dict[str, TensorType],
) -> tuple[str, str] | None:
    """Where(condition, scores, low) or Where(condition, low, scores) as scores and a mask to add.

    A finite `low` becomes the lowest float: added to a score it absorbs the score, so that a row whose keys
    are all hidden has equal scores, as in the model.
    """
    graph = context.graph
    condition, *branches = where.inputs
    for i, low in enumerate(branches):
        number = context.number(low)
        if number is None or number > _HIDES:
            continue
        zero, mask = (
            unused_name(graph, f"{where.outputs[0]}.zero"),
            unused_name(graph, f"{where.outputs[0]}.mask"),
        )
        constants[zero] = np.zeros((), np.float32)
        if np.isfinite(number) and number > _LOWEST:
            hidden = unused_name(graph, f"{where.outputs[0]}.low")
            constants[hidden] = np.array(_LOWEST, np.float32)
        else:
            hidden = low
        shape = graph.types[condition].shape
        types[mask] = TensorType("float32", shape)
        parts = (hidden, zero) if i == 0 else (zero, hidden)
        more.append(Node("Where", (condition, *parts), (mask,), {}, where.name))
        if graph.types[low].size == 1 and len(graph.types[low].shape) > len(shape):
            return None
        return branches[1 - i], mask
    return None


def _heads(graph: Graph, tensor: str, batch: tuple[int, ...], is_transposed: bool = False) -> View | None:
    """A tensor as [batch, head, row, column] with contiguous columns, broadcast to the scores' batch."""

    def turned(v: View) -> View:
        return View(
            v.tensor, v.offset, (*v.shape[:-2], *v.shape[:-3:-1]), (*v.strides[:-2], *v.strides[:-3:-1])
        )

    def accepts(v: View) -> bool:
        last = turned(v) if is_transposed else v
        return len(v.shape) >= 2 and (last.strides[-1] == 1 or last.shape[-1] == 1)

    view = trace_view(graph, tensor, accepts)
    if view is None:
        return None
    view = turned(view) if is_transposed else view
    view = view.broadcast((*batch, *view.shape[-2:]))
    return view if len(batch) == 2 else reshape_view(view, (1, *view.shape))


def _mask(graph: Graph, mask: str, scores: tuple[int, ...], types: dict[str, TensorType]) -> View | None:
    """The mask as [batch, head, row, key]; None where keys are not contiguous."""
    if mask in types:  # made by this pass
        shape = types[mask].shape
        view: View | None = View(mask, 0, shape, types[mask].strides)
    else:
        if graph.types[mask].dtype != "float32":
            return None
        view = trace_view(graph, mask, lambda v: v.shape[-1:] == scores[-1:] and v.strides[-1] == 1)
    if view is None or view.shape[-1:] != scores[-1:]:
        return None
    view = view.broadcast(scores)
    if len(scores) == 4:
        return view
    return View(view.tensor, view.offset, (1, *view.shape), (0, *view.strides))
