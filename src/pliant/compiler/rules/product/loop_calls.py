"""Products and convolutions as plain loops, for schedules that specify a loop order.

LoopMatMul(a, b) and LoopConv(x, w) are MatMul and Conv of float32 without padding; `order` is "ijk" (the sum
innermost) or "ikj" (the row of the result innermost), `a_view` and `b_view` are as in FusedMatMul.
"""

from dataclasses import replace

from pliant.compiler.executable.call import Call, Kernel, LoweredNode, Target
from pliant.compiler.rewrite.view import View, broadcast_shape, input_view, row_major
from pliant.compiler.rules.product.product_calls import lower_contraction
from pliant.ir.graph import Graph, Node
from pliant.kernels.product import contract_rows as loops


def _matmul(node: Node, graph: Graph, target: Target) -> LoweredNode:
    a = input_view(graph, node.inputs[0], node.integers("a_view", None))
    b = input_view(graph, node.inputs[1], node.integers("b_view", None))
    batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
    a, b = a.broadcast((*batch, *a.shape[-2:])), b.broadcast((*batch, *b.shape[-2:]))
    rows, depth = a.shape[-2:]
    columns = b.shape[-1]
    shape = (*batch, rows, columns, depth)
    left = View(a.tensor, a.offset, shape, (*a.strides[:-1], 0, a.strides[-1]))
    right = View(b.tensor, b.offset, shape, (*b.strides[:-2], 0, b.strides[-1], b.strides[-2]))
    return _contract(node, View(node.outputs[0], 0, shape[:-1], row_major(shape[:-1])), left, right)


def _conv(node: Node, graph: Graph, target: Target) -> LoweredNode:
    """Output dimensions are image, group, channel, position; summed are channel of the group and tap."""
    x, w, y = (graph.types[t] for t in (*node.inputs[:2], node.outputs[0]))
    rank = len(x.shape) - 2
    groups = node.integer("group", 1)
    strides = node.integers("strides", (1,) * rank)
    dilations = node.integers("dilations", (1,) * rank)
    channels, outs = w.shape[1], w.shape[0] // groups
    shape = (x.shape[0], groups, outs, *y.shape[2:], channels, *w.shape[2:])
    image = x.strides
    places = tuple(step * s for step, s in zip(image[2:], strides, strict=True))
    taps = tuple(step * d for step, d in zip(image[2:], dilations, strict=True))
    left = View(node.inputs[0], 0, shape, (image[0], channels * image[1], 0, *places, image[1], *taps))
    kernel = w.strides
    right = View(
        node.inputs[1], 0, shape, (0, outs * kernel[0], kernel[0], *(0,) * rank, kernel[1], *kernel[2:])
    )
    out = View(node.outputs[0], 0, shape[: 3 + rank], row_major(shape[: 3 + rank]))
    return _contract(node, out, left, right)


def _contract(node: Node, out: View, left: View, right: View) -> LoweredNode:
    alpha = node.real("alpha", 1.0)
    lowered = lower_contraction(out, (left, right), "float32", alpha=alpha, label=node.label)
    if node.text("order", "ijk") == "ijk":
        return lowered
    return LoweredNode(calls=tuple(_by_rows(call) for call in lowered.calls))


def _by_rows(call: Call) -> Call:
    return replace(call, kernel=Kernel(loops.CONTRACT_ROWS, loops.contract_rows_ir))


RULES = {"LoopMatMul": _matmul, "LoopConv": _conv}
