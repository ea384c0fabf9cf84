"""Lower convolutions of channels-first images with few channels to channels-last images."""

from functools import partial
from math import prod

import numpy as np

from pliant.compiler.executable.call import Call, FieldValue, Kernel, LoweredNode, PackedConstant, Ref
from pliant.compiler.rules.conv.conv_call import ConvShape, tensors_of
from pliant.ir.graph import Graph, Node
from pliant.kernels.conv import conv_planes, conv_weights
from pliant.kernels.conv.conv_args import ConvForm
from pliant.kernels.conv.conv_planes import MARGIN, PlanesForm, row_floats
from pliant.kernels.conv.conv_tile import COLUMNS

_MOST_CHANNELS, _MOST_TAPS = 4, 16


def takes_planes(node: Node, graph: Graph, s: ConvShape) -> bool:
    """Whether the kernel supports the convolution: two dimensions, whole panels, and rows of at least a
    vector and a tile.
    """
    known = all(x in graph.constants for x in node.inputs[1:3] if x)
    if not known or len(s.space) != 2 or s.groups != 1 or len(node.inputs) > 3:
        return False
    w = s.window
    fits = s.channels <= _MOST_CHANNELS and w.kernel[1] <= _MOST_TAPS and s.outs % COLUMNS == 0
    is_plain = set(w.dilations) == {1} and w.begins[1] <= MARGIN and min(w.begins) >= 0
    return fits and is_plain and s.out_space[1] >= MARGIN and _copied(s) >= MARGIN


def lower_planes(node: Node, graph: Graph, form: ConvForm, s: ConvShape) -> LoweredNode:
    """The call, and weights with channels outermost in their depth."""
    w, b = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else ""
    tensors = tensors_of(node, form, "planes")
    depth, panels = conv_weights.padded(s.channels * prod(s.window.kernel)), s.outs // COLUMNS
    packed = {
        tensors.weights: PackedConstant(4 * s.outs * depth, partial(_fill, source=graph.constants[w]), w),
        tensors.bias: PackedConstant(
            4 * s.outs, partial(_fill_bias, source=graph.constants.get(b), outs=s.outs), b
        ),
    }
    planes = PlanesForm(s.window.kernel[1], s.window.strides[1], node.text("activation", ""))
    rows = s.channels * s.window.kernel[0]
    fields: dict[str, FieldValue] = {
        "x": Ref(tensors.x),
        "weights": Ref(tensors.weights),
        "bias": Ref(tensors.bias),
        "y": Ref(tensors.y),
        "rows": rows,
        "in_h": s.space[0],
        "in_w": s.space[1],
        "out_h": s.out_space[0],
        "out_w": s.out_space[1],
        "kernel_h": s.window.kernel[0],
        "stride_h": s.window.strides[0],
        "pad_h": s.window.begins[0],
        "pad_w": s.window.begins[1],
        "width": _width(s),
        "copied": _copied(s),
        "panels": panels,
        "padded_depth": depth,
        "low": node.real("low", 0.0),
        "high": node.real("high", 0.0),
    }
    call = Call(
        Kernel(planes.name, partial(conv_planes.planes_ir, form=planes)),
        conv_planes.PlanesArgs,
        fields,
        n_units=s.batch * s.out_space[0],
        reads=tensors.read,
        writes=(tensors.y,),
        scratch_bytes=4 * rows * row_floats(_width(s)),
        label=node.label,
    )
    return LoweredNode((call,), packed=packed)


def _width(s: ConvShape) -> int:
    """Input columns that the windows of one output row read."""
    return (s.out_space[1] - 1) * s.window.strides[1] + s.window.kernel[1]


def _copied(s: ConvShape) -> int:
    return min(s.space[1], _width(s) - s.window.begins[1])


def _fill(memory: np.ndarray, source: np.ndarray) -> None:
    packed = conv_weights.pack(source.reshape(len(source), 1, -1), 1)
    memory[:] = packed.reshape(-1).view(np.uint8)


def _fill_bias(memory: np.ndarray, source: np.ndarray | None, outs: int) -> None:
    memory[:] = conv_weights.pack_bias(source, outs, 1).reshape(-1).view(np.uint8)
