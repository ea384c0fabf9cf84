"""Forms of convolutions that can read gaps between pixels: depthwise ones, and products of pixels.

A layout with a gap has its channels last and the gap after them.
"""

from dataclasses import replace
from math import prod

from pliant.compiler.layout.layout_problem import Layout
from pliant.compiler.layout.layouts import gap_of, physical_type
from pliant.compiler.layout.operator_family import Layouts, NodeReplacement
from pliant.compiler.rewrite.view import View
from pliant.ir.graph import Attribute, Graph, Node, TensorType


def supports_gaps(node: Node, graph: Graph) -> bool:
    """Whether a convolution of constant weights supports gaps."""
    is_fixed = any(x in graph.constants for x in node.inputs[3:])
    return not is_fixed and (_is_depthwise(node, graph) or _is_point(node, graph))


def realise_pixels(node: Node, graph: Graph, layouts: Layouts) -> NodeReplacement:
    """The node for channels-last tensors, with or without gaps."""
    if _is_depthwise(node, graph):
        gap = gap_of(graph.types[node.inputs[0]], layouts[node.inputs[0]])
        ends: dict[str, Attribute] = {"x_layout": "nhwc", "y_layout": "nhwc", "x_gap": gap}
        return NodeReplacement((replace(node, op="FusedConv", attributes={**node.attributes, **ends}),))
    x, w, y = node.inputs[0], node.inputs[1], node.outputs[0]
    outs, channels = graph.types[w].shape[:2]
    attributes: dict[str, Attribute] = {
        "a_view": _pixels(x, graph.types[x], layouts[x], channels).attribute,
        "b_view": View(w, 0, (channels, outs), (1, channels)).attribute,
        "y_view": _pixels(y, graph.types[y], layouts[y], outs).attribute,
    }
    if activation := node.text("activation", ""):
        attributes["activation"] = activation
    return NodeReplacement((replace(node, op="FusedMatMul", attributes=attributes),))


def _pixels(tensor: str, type_: TensorType, layout: Layout, channels: int) -> View:
    """A view of each image with pixels as rows."""
    batch, *space, step = physical_type(type_, layout).shape
    n = prod(space)
    return View(tensor, 0, (batch, n, channels), (n * step, step, 1))


def _is_depthwise(node: Node, graph: Graph) -> bool:
    channels, outs = graph.types[node.inputs[0]].shape[1], graph.types[node.inputs[1]].shape[0]
    return 1 < node.integer("group", 1) == channels == outs


def _is_point(node: Node, graph: Graph) -> bool:
    """Whether the convolution is 1x1: each pixel is multiplied by the same weights."""
    window, strides = graph.types[node.inputs[1]].shape[2:], node.integers("strides", ())
    is_single = set(window) <= {1} and set(strides) <= {1} and not any(node.integers("pads", ()))
    is_known = node.text("activation", "") in ("", "relu")
    return is_single and is_known and node.integer("group", 1) == 1
