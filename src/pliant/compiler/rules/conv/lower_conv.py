"""Lower ONNX's Conv and its fused form.

`FusedConv` is Conv with a fourth input, added to the result, and the attributes `activation` with `low`
and `high` (kernels/conv/conv_activations.py), `x_layout` and `y_layout`: "nchw" or "nhwc". The residual has
y's layout. Types are physical: an "nhwc" tensor's type has its channels last; in a depthwise convolution a
gap may follow them, of `x_gap` elements for x.
"""

from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from pliant.compiler.executable.call import LoweredNode, PackedConstant, Target
from pliant.compiler.rules.conv.conv_call import ConvShape, conv_call, tensors_of
from pliant.compiler.rules.conv.lower_conv_depthwise import is_depthwise, lower_depthwise
from pliant.compiler.rules.conv.lower_conv_grouped import is_grouped, lower_grouped
from pliant.compiler.rules.conv.lower_conv_planes import lower_planes, takes_planes
from pliant.compiler.rules.conv.lower_conv_points import is_points, lower_points
from pliant.compiler.rules.conv.lower_conv_tiles import lower_tiles, takes_tiles
from pliant.compiler.rules.conv.lower_conv_winograd import lower_winograd
from pliant.compiler.rules.conv.weight_panels import pack_calls, weights_view
from pliant.compiler.rules.conv.window_extents import window
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.conv import conv_weights
from pliant.kernels.conv.conv_args import ConvForm, ImageLayout
from pliant.kernels.conv.conv_tile import COLUMNS


def _conv(node: Node, graph: Graph, target: Target) -> LoweredNode:
    form = ConvForm(
        _layout(node, "x_layout"),
        _layout(node, "y_layout"),
        node.text("activation", ""),
        len(node.inputs) > 3 and bool(node.inputs[3]),
    )
    x, w = graph.types[node.inputs[0]], graph.types[node.inputs[1]]
    y = graph.types[node.outputs[0]]
    _check(node, x)
    shape = shape_of(node, x, w, y, form)
    if takes_tiles(node, graph, target, form, shape) and not is_depthwise(node, graph, form, shape):
        return lower_tiles(node, graph, target, form, shape, weights_view(node.inputs[1], shape))
    if node.text("algorithm", "") == "winograd":
        return lower_winograd(node, graph, target, form, shape)
    if is_depthwise(node, graph, form, shape):
        return lower_depthwise(node, graph, form, shape)
    if (form.x, form.y) == ("nchw", "nhwc") and takes_planes(node, graph, shape):
        return lower_planes(node, graph, form, shape)
    if (form.x, form.y) == ("nchw", "nchw") and is_points(node, graph, shape):
        return lower_points(node, graph, target, form, shape)
    if is_grouped(node, graph, shape):
        return lower_grouped(node, graph, target, form, shape)
    if all(x in graph.constants for x in node.inputs[1:3] if x):
        shape = replace(shape, groups=shape.groups // _merged_groups(shape))
    tensors = tensors_of(node, form, f"panels{shape.groups}")
    lowered = _weights(node, graph, shape, (tensors.weights, tensors.bias))
    bounds = node.real("low", 0.0), node.real("high", 0.0)
    call = conv_call(tensors, form, shape, target, node.label, bounds)
    return LoweredNode((*lowered.calls, call), (), lowered.temporaries, lowered.packed)


def _merged_groups(s: ConvShape) -> int:
    """The number of groups that are merged into one: as many as fill a panel, whose lanes would otherwise be
    idle.

    Their weights become a block-diagonal matrix. A panel's work is unchanged, and the runs of pixels gathered
    for it are longer.
    """
    most = COLUMNS // max(s.outs // s.groups, 1)
    return max((m for m in range(1, most + 1) if s.groups % m == 0), default=1)


def shape_of(node: Node, x: TensorType, w: TensorType, y: TensorType, form: ConvForm) -> ConvShape:
    """Extents of a convolution with the tensor layouts of `form`."""
    space = x.shape[2:] if form.x == "nchw" else x.shape[1:-1]
    return ConvShape(
        window=window(node, w.shape[2:], space),
        batch=x.shape[0],
        groups=node.integer("group", 1),
        channels=x.shape[1] if form.x == "nchw" else x.shape[-1] - node.integer("x_gap", 0),
        outs=w.shape[0],
        space=space,
        out_space=y.shape[2:] if form.y == "nchw" else y.shape[1:-1],
    )


def _weights(node: Node, graph: Graph, s: ConvShape, names: tuple[str, str]) -> LoweredNode:
    """Weights and bias in panels, by `names`."""
    w = node.inputs[1]
    b = node.inputs[2] if len(node.inputs) > 2 else ""
    channels, outs, taps = s.channels // s.groups, s.outs // s.groups, prod(s.window.kernel)
    depth = conv_weights.padded(channels * taps)
    if w in graph.constants and (not b or b in graph.constants):
        fills = (
            partial(_fill, source=graph.constants[w], groups=s.groups, channels=channels),
            partial(_fill_bias, source=graph.constants.get(b), outs=s.outs, groups=s.groups),
        )
        sources = (w, b)
        panels = s.groups * conv_weights.n_panels(outs)
        sizes = 64 * panels * depth, 64 * panels
        packed = {
            name: PackedConstant(size, fill, source)
            for name, size, fill, source in zip(names, sizes, fills, sources, strict=True)
        }
        return LoweredNode(packed=packed)
    return pack_calls(weights_view(w, s), b, names, depth, node.label)


def _fill(memory: np.ndarray, source: np.ndarray, groups: int, channels: int) -> None:
    packed = conv_weights.pack(_block_diagonal(source, groups, channels), groups)
    memory[:] = packed.reshape(-1).view(np.uint8)


def _block_diagonal(w: np.ndarray, groups: int, channels: int) -> np.ndarray:
    """Weights [out][channel][...] for `groups` merged groups of `channels` each, with zeros elsewhere."""
    outs, width = w.shape[:2]
    merged = channels // max(width, 1)
    if merged <= 1:
        return w
    parts = w.reshape(groups, merged, outs // groups // merged, width, -1)
    whole = np.zeros((*parts.shape[:3], merged, *parts.shape[3:]), w.dtype)
    for i in range(merged):
        whole[:, i, :, i] = parts[:, i]
    return whole.reshape(outs, channels, *w.shape[2:])


def _fill_bias(memory: np.ndarray, source: np.ndarray | None, outs: int, groups: int) -> None:
    memory[:] = conv_weights.pack_bias(source, outs, groups).reshape(-1).view(np.uint8)


def is_first_layer(node: Node, graph: Graph) -> bool:
    """Whether a channels-first image is convolved directly, to channels last."""
    x, w, y = (graph.types[name] for name in (*node.inputs[:2], node.outputs[0]))
    return takes_planes(node, graph, shape_of(node, x, w, y, ConvForm()))


def takes_either_layout(node: Node, graph: Graph) -> bool:
    """Whether a kernel reads and writes channels-first images, so that no pass needs to transpose them."""
    x, w, y = (graph.types[name] for name in (*node.inputs[:2], node.outputs[0]))
    shape = shape_of(node, x, w, y, ConvForm())
    return is_grouped(node, graph, shape) or is_points(node, graph, shape)


def _layout(node: Node, name: str) -> ImageLayout:
    value = node.text(name, "nchw")
    if value == "nchw":
        return "nchw"
    assert value == "nhwc", f"no layout {value}"
    return "nhwc"


def _check(node: Node, x: TensorType) -> None:
    if x.dtype != "float32":
        raise GraphError(f"node {node.label!r}: no kernel convolves {x.dtype}; float32 is supported.")


RULES = {"Conv": _conv, "FusedConv": _conv}
