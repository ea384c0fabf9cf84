"""Lower transposed and deformable convolutions.

A transposed convolution is a product of all pixels with all weights, then a sum of overlapping results; a
deformable convolution is a kernel that computes one multiplication at a time.
"""

from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from pliant.compiler.executable.call import Call, FieldValue, Kernel, LoweredNode, PackedConstant, Ref, Target
from pliant.compiler.rules.conv.conv_call import ConvShape, conv_call, tensors_of
from pliant.compiler.rules.conv.lower_conv_tiles import lower_tiles, takes_tiles
from pliant.compiler.rules.conv.weight_panels import pack_calls, transposed_weights_view
from pliant.compiler.rules.conv.window_extents import Window, axis_fields, window
from pliant.compiler.rules.move.lower_move import require
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.conv import conv_weights
from pliant.kernels.conv.conv_args import ConvForm
from pliant.kernels.conv.direct import conv_deform, conv_transpose

_POINT = Window((1,), (1,), (1,), (0,), (0,))


def _conv_transpose(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, w = graph.types[node.inputs[0]], graph.types[node.inputs[1]]
    y = graph.types[node.outputs[0]]
    label = node.label
    if x.dtype != "float32":
        raise GraphError(f"node {label!r}: no kernel convolves {x.dtype}; float32 is supported.")
    groups = node.integer("group", 1)
    kernel = w.shape[2:]
    taps, outs, pixels = prod(kernel), w.shape[1], prod(x.shape[2:])
    shape = ConvShape(_POINT, x.shape[0], groups, x.shape[1], groups * outs * taps, (pixels,), (pixels,))
    products = f"{node.outputs[0]}:products"
    product = _product(node, graph, target, shape, products)
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    fields: dict[str, FieldValue] = {
        "products": Ref(products),
        "bias": Ref(bias) if bias else None,
        "y": Ref(node.outputs[0]),
        "channels": groups * outs,
        **axis_fields("in", x.shape[2:], 1),
        **axis_fields("out", y.shape[2:], 1),
        **_transposed_window(node, kernel, x.shape[2:], y.shape[2:]).fields(),
    }
    gather = Call(
        Kernel(conv_transpose.CONV_TRANSPOSE, conv_transpose.conv_transpose_ir),
        conv_transpose.ConvTransposeArgs,
        fields,
        n_units=x.shape[0] * groups * outs if y.size else 0,
        reads=(products, bias) if bias else (products,),
        writes=(node.outputs[0],),
        label=label,
    )
    temporaries = {products: 4 * x.shape[0] * pixels * shape.outs, **product.temporaries}
    return LoweredNode((*product.calls, gather), (), temporaries, product.packed)


def _product(node: Node, graph: Graph, target: Target, s: ConvShape, products: str) -> LoweredNode:
    """`products` [image][group, output channel, tap][pixel]: a convolution of single pixels."""
    form, x = ConvForm("nchw", "nchw"), node.inputs[0]
    types = {x: TensorType("float32", (s.batch, s.channels, *s.space))}
    types[products] = TensorType("float32", (s.batch, s.outs, *s.out_space))
    seen = replace(graph, types={**graph.types, **types})
    inner = replace(node, inputs=node.inputs[:2], outputs=(products,))
    if takes_tiles(inner, seen, target, form, s):
        return lower_tiles(inner, seen, target, form, s, transposed_weights_view(node.inputs[1], s))
    tensors = tensors_of(inner, form, f"turned{s.groups}")
    packed = _transposed_weights(inner, graph, s, (tensors.weights, tensors.bias))
    call = conv_call(tensors, form, s, target, node.label)
    return replace(packed, calls=(*packed.calls, call))


def _transposed_window(
    node: Node, kernel: tuple[int, ...], extents: tuple[int, ...], out: tuple[int, ...]
) -> Window:
    """The window with the pads for the output's extents: given, or computed from a given shape.

    Source: ONNX's ConvTranspose; with SAME_UPPER the smaller half of the total comes first.
    """
    rank = len(kernel)
    plain = {k: v for k, v in node.attributes.items() if k not in ("pads", "auto_pad")}
    view = window(replace(node, attributes=plain), kernel, extents)
    mode = node.text("auto_pad", "NOTSET")
    if "output_shape" not in node.attributes and mode in ("NOTSET", "VALID"):
        pads = node.integers("pads", (0,) * (2 * rank)) if mode == "NOTSET" else (0,) * (2 * rank)
        return Window(view.kernel, view.strides, view.dilations, pads[:rank], pads[rank:])
    more = node.integers("output_padding", (0,) * rank)
    totals = [
        (n - 1) * s + p + extent - o
        for n, s, p, extent, o in zip(extents, view.strides, more, view.extents(), out, strict=True)
    ]
    less = tuple(max(t, 0) // 2 if mode == "SAME_UPPER" else max(t, 0) - max(t, 0) // 2 for t in totals)
    return Window(view.kernel, view.strides, view.dilations, less, less)


def _transposed_weights(node: Node, graph: Graph, s: ConvShape, names: tuple[str, str]) -> LoweredNode:
    """w [group][channel][out channel * tap] as panels of a product, and a bias of zeros."""
    w = node.inputs[1]
    channels, outs = s.channels // s.groups, s.outs // s.groups
    panels, depth = s.groups * conv_weights.n_panels(outs), conv_weights.padded(channels)
    if w in graph.constants:
        fill = partial(_fill, source=graph.constants[w], groups=s.groups)
        return LoweredNode(
            packed={
                names[0]: PackedConstant(64 * panels * depth, fill, w),
                names[1]: PackedConstant(64 * panels, _clear),
            }
        )
    return pack_calls(transposed_weights_view(w, s), "", names, depth, node.label)


def _fill(memory: np.ndarray, source: np.ndarray, groups: int) -> None:
    rows = source.reshape(groups, source.shape[0] // groups, -1).transpose(0, 2, 1)
    panels = conv_weights.pack(rows.reshape(-1, rows.shape[2]), groups)
    memory[:] = panels.reshape(-1).view(np.uint8)


def _clear(memory: np.ndarray) -> None:
    memory[:] = 0


def _deform_conv(node: Node, graph: Graph, target: Target) -> LoweredNode:
    tensors = dict(zip(("x", "w", "offset", "bias", "mask"), node.inputs, strict=False))
    x, w, y = graph.types[tensors["x"]], graph.types[tensors["w"]], graph.types[node.outputs[0]]
    if x.dtype != "float32" or len(x.shape) != 4:
        raise GraphError(f"node {node.label!r}: deformable convolution takes float32 images, not {x}.")
    require(graph.types[tensors["offset"]].shape[2:] == y.shape[2:], node, graph)
    view = window(node, w.shape[2:], x.shape[2:])
    known = {name for name, _ in conv_deform.DeformArgs._fields_}  # type: ignore[misc]
    extents = {**axis_fields("in", x.shape[2:], 1), **axis_fields("out", y.shape[2:], 1), **view.fields()}
    fields: dict[str, FieldValue] = {
        **{name: Ref(tensor) for name, tensor in tensors.items() if tensor},
        "y": Ref(node.outputs[0]),
        "channels": x.shape[1],
        "outs": w.shape[0],
        "groups": node.integer("group", 1),
        "offset_groups": node.integer("offset_group", 1),
        **{name: n for name, n in extents.items() if name in known},
    }
    call = Call(
        Kernel(conv_deform.DEFORM, conv_deform.deform_ir),
        conv_deform.DeformArgs,
        fields,
        n_units=x.shape[0] * w.shape[0] if y.size else 0,
        reads=tuple(tensor for tensor in tensors.values() if tensor),
        writes=(node.outputs[0],),
        label=node.label,
    )
    return LoweredNode((call,))


RULES = {
    "ConvTranspose": _conv_transpose,
    "DeformConv": _deform_conv,
}
