"""Lower convolutions of bytes: ConvInteger and QLinearConv.

With constant weights, the windows of all pixels are copied to rows, channels innermost, in blocks, and
multiplied as a product of bytes: of one group, and with tiles of each of several. Other convolutions, and
groups of few channels, compute one multiplication at a time.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod

import numpy as np

from pliant.compiler.executable.call import Call, FieldValue, Kernel, LoweredNode, PackedConstant, Ref, Target
from pliant.compiler.rewrite.view import View, row_major
from pliant.compiler.rules.conv.window_extents import Window, axis_fields, window
from pliant.compiler.rules.move.copy_calls import copy_calls
from pliant.compiler.rules.move.lower_pad import frame_calls
from pliant.compiler.rules.product.integer_product import (
    IntegerRows,
    IntegerWeights,
    are_constant,
    integer_product,
    prepare_values,
    product_form,
)
from pliant.compiler.rules.product.lower_quantize import requantize_calls
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.conv.direct.conv_quantized import QuantizedConvArgs, QuantizedConvForm, quantized_conv_ir
from pliant.kernels.emit.expression import leaf
from pliant.kernels.product.matmul_integer import IntegerForm

_NAMES = {
    "ConvInteger": ("x", "w", "x_zero", "w_zero"),
    "QLinearConv": ("x", "x_scale", "x_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero", "bias"),
}
BLOCK_BYTES = 512 << 10
"""Bytes of windows per block: they are read again soon, from L2."""
_GROUP_CHANNELS = 8
"""Output channels of a group from which on it is a product in tiles of 16 columns.

Rows without tiles compute groups one multiplication at a time: products were not measured there.
"""


def _conv_bytes(node: Node, graph: Graph, target: Target) -> LoweredNode:
    tensors = {name: x for name, x in zip(_NAMES[node.op], node.inputs, strict=False) if x}
    w = graph.types[tensors["w"]].shape
    groups = node.integer("group", 1)
    is_plain = groups == 1 or (target.isa.has_tiles and w[0] // groups >= _GROUP_CHANNELS)
    is_empty = 0 in (*graph.types[tensors["x"]].shape, *graph.types[node.outputs[0]].shape, *w)
    if not is_plain or is_empty or not are_constant(graph, tensors["w"], tensors.get("w_zero", "")):
        return _one_by_one(node, graph, tensors)
    sums, made = f"{node.outputs[0]}.sums", _sums(node, graph, target, tensors)
    if node.op == "ConvInteger":
        return _channels_first(node, graph, sums, made)
    by_channel = (w[0],) if groups == 1 else (groups, 1, w[0] // groups)
    rows = (*by_channel[:-2], graph.types[node.outputs[0]].size // w[0], by_channel[-1])
    operands: list[tuple[str, tuple[int, ...]]] = [(sums, rows)]
    value = leaf(0, "int32")
    scale = graph.types[tensors["w_scale"]]
    if scale.size > 1:
        types = {**graph.types, tensors["w_scale"]: TensorType(scale.dtype, by_channel)}
        graph = replace(graph, types=types)
    if "bias" in tensors:
        operands.append((tensors["bias"], by_channel))
        value = value + leaf(1, "int32")
    scales = (tensors["x_scale"], tensors["w_scale"], tensors["y_scale"])
    bytes_ = f"{node.outputs[0]}.bytes"
    y_type = graph.types[node.outputs[0]]
    calls = requantize_calls(
        graph, value, operands, scales, tensors.get("y_zero", ""), (bytes_, rows, y_type.dtype), node.label
    )
    temporaries = {**made.temporaries, bytes_: prod(rows)}
    made = replace(made, calls=(*made.calls, *calls), temporaries=temporaries)
    return _channels_first(node, graph, bytes_, made)


def _channels_first(node: Node, graph: Graph, rows: str, made: LoweredNode) -> LoweredNode:
    """`made`, followed by the conversion of rows [group][pixels of all images, channels] to the output."""
    y = node.outputs[0]
    type_, groups = graph.types[y], node.integer("group", 1)
    images, channels = type_.shape[0], type_.shape[1] // groups
    pixels = prod(type_.shape[2:])
    shape = images, groups, channels, pixels
    source = View(rows, 0, shape, (pixels * channels, images * pixels * channels, 1, channels))
    calls = copy_calls(source, View(y, 0, shape, row_major(shape)), type_.itemsize, node.label)
    return replace(made, calls=(*made.calls, *calls))


def _sums(node: Node, graph: Graph, target: Target, tensors: Mapping[str, str]) -> LoweredNode:
    """int32 [group][pixels of all images, channels]: the products of all windows, in blocks."""
    label, y = node.label, node.outputs[0]
    x, w = graph.types[tensors["x"]], graph.types[tensors["w"]].shape
    a = tensors["x"], tensors.get("x_zero", "")
    weights = IntegerWeights(tensors["w"], tensors.get("w_zero", ""), w[0], are_kernels=True)
    form = product_form(graph, target.isa, a[1], weights)
    values, made = prepare_values(graph, target.isa, form, a, f"{y}.a", label)
    view = window(node, w[2:], x.shape[2:])
    plain = View(values.tensor, 0, x.shape, row_major(x.shape))
    image, framing = _pad_images(plain, view, values, form, y, label)
    calls = [*made.calls, *framing.calls]
    packed, temporaries = {**framing.packed}, {**made.temporaries, **framing.temporaries}
    sums, rows = f"{y}.sums", f"{y}.rows"
    out, depth, groups = graph.types[y].shape[2:], prod(w[1:]), node.integer("group", 1)
    long = form.words(depth) * form.packing
    windows = _windows(image, view, out)
    if groups == 1 and windows.is_dense and long == depth:
        here = replace(values, tensor=image.tensor, count=x.shape[0] * prod(out))
        made = integer_product(graph, target, form, here, weights, sums, label)
        temporaries[sums] = 4 * here.count * w[0]
        return LoweredNode((*calls, *made.calls), temporaries=temporaries, packed={**packed, **made.packed})
    per_line = prod(out[1:])
    block = max(1, BLOCK_BYTES // (per_line * long * form.a_bytes))
    blocks = _blocks(x.shape[0], out[0], block)
    for group, (first_image, n_images, first, n) in product(range(groups), tuple(blocks)):
        outs, channels = w[0] // groups, windows.sliced(len(windows.shape) - 1, group * w[1], w[1])
        part = channels.sliced(0, first_image, n_images).sliced(1, first, n)
        inner = (*row_major((n_images, n, *out[1:], long))[:-1], *row_major((*view.kernel, w[1])))
        calls += copy_calls(part, View(rows, 0, part.shape, inner), form.a_bytes, label)
        here = replace(values, tensor=rows, count=n_images * n * per_line)
        start = ((group * x.shape[0] + first_image) * out[0] + first) * per_line
        own = replace(weights, columns=outs, first=group * outs)
        made = integer_product(graph, target, form, here, own, sums, label, first_row=start)
        calls += made.calls
        packed |= made.packed
        temporaries[rows] = max(temporaries.get(rows, 0), here.count * long * form.a_bytes)
    temporaries[sums] = 4 * x.shape[0] * prod(out) * w[0]
    return LoweredNode(tuple(calls), temporaries=temporaries, packed=packed)


def _blocks(images: int, lines: int, block: int) -> Iterator[tuple[int, int, int, int]]:
    """(first image, images, first line, lines): whole images if they fit, else lines of one image."""
    if lines <= block:
        step = max(1, block // lines)
        yield from ((i, min(step, images - i), 0, lines) for i in range(0, images, step))
        return
    yield from (
        (image, 1, first, min(block, lines - first))
        for image in range(images)
        for first in range(0, lines, block)
    )


def _pad_images(
    inner: View, view: Window, values: IntegerRows, form: IntegerForm, y: str, label: str
) -> tuple[View, LoweredNode]:
    """The images, channels last, with zero padding around them."""
    inner = inner.transposed((0, *range(2, len(inner.shape)), 1))
    lengths = zip(inner.shape[1:-1], view.begins, view.ends, strict=True)
    shape = (inner.shape[0], *(n + a + b for n, a, b in lengths), inner.shape[-1])
    target = View(f"{y}.framed", 0, shape, row_major(shape))
    packed = {}
    if form is IntegerForm.BYTES and values.moved_zero:
        value = View(values.moved_zero, 0, (), ())
    else:
        nothing = f"{y}.nothing"
        value = View(nothing, 0, (), ())
        byte = values.shift if form is IntegerForm.BYTES else 0
        packed = {nothing: PackedConstant(form.a_bytes, partial(_fill, byte=byte))}
    calls = frame_calls(inner, (0, *view.begins, 0), target, value, form.a_bytes, label)
    return target, LoweredNode(calls, temporaries={target.tensor: form.a_bytes * prod(shape)}, packed=packed)


def _fill(memory: np.ndarray, byte: int) -> None:
    memory[:] = byte % 256


def _windows(image: View, view: Window, out: tuple[int, ...]) -> View:
    """A view [image, place..., tap..., channel] of padded images."""
    spatial = image.strides[1:-1]
    places = tuple(s * step for s, step in zip(spatial, view.strides, strict=True))
    taps = tuple(s * step for s, step in zip(spatial, view.dilations, strict=True))
    shape = (image.shape[0], *out, *view.kernel, image.shape[-1])
    return View(image.tensor, 0, shape, (image.strides[0], *places, *taps, 1))


def _one_by_one(node: Node, graph: Graph, tensors: Mapping[str, str]) -> LoweredNode:
    """The general kernel, one multiplication at a time: for other groups, and weights that are not
    constant.
    """
    types = {name: graph.types[tensor] for name, tensor in tensors.items()}
    x, w, y = types["x"], types["w"], graph.types[node.outputs[0]]
    signs = {"int8": True, "uint8": False, "int32": None}
    if x.dtype not in ("int8", "uint8") or w.dtype not in ("int8", "uint8") or y.dtype not in signs:
        raise GraphError(f"node {node.label!r}: no kernel convolves {x.dtype} with {w.dtype}.")
    form = QuantizedConvForm(x.dtype == "int8", w.dtype == "int8", signs[y.dtype])
    fields: dict[str, FieldValue] = {
        **{name: Ref(tensor) for name, tensor in tensors.items()},
        "y": Ref(node.outputs[0]),
        "channels": x.shape[1],
        "outs": w.shape[0],
        "groups": node.integer("group", 1),
        "w_zero_step": int("w_zero" in types and types["w_zero"].size > 1),
        "w_scale_step": int("w_scale" in types and types["w_scale"].size > 1),
        **axis_fields("in", x.shape[2:], 1),
        **axis_fields("out", y.shape[2:], 1),
        **window(node, w.shape[2:], x.shape[2:]).fields(),
    }
    call = Call(
        Kernel(form.name, partial(quantized_conv_ir, form=form)),
        QuantizedConvArgs,
        fields,
        n_units=x.shape[0] * w.shape[0] if y.size else 0,
        reads=tuple(tensors.values()),
        writes=(node.outputs[0],),
        label=node.label,
    )
    return LoweredNode((call,))


RULES = {"ConvInteger": _conv_bytes, "QLinearConv": _conv_bytes}
