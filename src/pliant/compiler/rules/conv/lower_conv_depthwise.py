"""Lower depthwise convolutions whose weights are constants."""

from functools import partial
from math import prod

import numpy as np

from pliant.compiler.executable.call import Call, FieldValue, Kernel, LoweredNode, PackedConstant
from pliant.compiler.rules.conv.conv_call import ConvShape, tensors_of
from pliant.compiler.rules.conv.window_extents import axis_fields
from pliant.ir.graph import Graph, Node
from pliant.kernels.conv.conv_args import ConvForm
from pliant.kernels.conv.direct import conv_depthwise


def is_depthwise(node: Node, graph: Graph, form: ConvForm, s: ConvShape) -> bool:
    """Whether each group has one input and one output channel, channels last, with constant weights and
    bias.
    """
    known = all(x in graph.constants for x in node.inputs[1:3] if x)
    return known and form.x == form.y == "nhwc" and 1 < s.groups == s.channels == s.outs


def lower_depthwise(node: Node, graph: Graph, form: ConvForm, s: ConvShape) -> LoweredNode:
    """The call, and weights transposed to contiguous channels."""
    w, b = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else ""
    tensors = tensors_of(node, form, "depthwise")
    taps = prod(s.window.kernel)
    packed = {
        tensors.weights: PackedConstant(4 * taps * s.channels, partial(_fill, source=graph.constants[w]), w),
        tensors.bias: PackedConstant(4 * s.channels, partial(_fill_bias, source=graph.constants.get(b)), b),
    }
    fields: dict[str, FieldValue] = {
        **tensors.fields,
        "channels": s.channels,
        "x_pixel": graph.types[node.inputs[0]].shape[-1],
        "y_pixel": graph.types[node.outputs[0]].shape[-1],
        **axis_fields("in", s.space, 1),
        **axis_fields("out", s.out_space, 1),
        **s.window.fields(),
        **axis_fields("end_pad", s.window.ends, 0),
        "low": node.real("low", 0.0),
        "high": node.real("high", 0.0),
    }
    call = Call(
        Kernel(conv_depthwise.name(form), partial(conv_depthwise.depthwise_ir, form=form)),
        conv_depthwise.DepthwiseArgs,
        fields,
        n_units=s.batch * prod(s.out_space[:-1]) if s.out_space[-1] else 0,
        reads=tensors.read,
        writes=(tensors.y,),
        label=node.label,
    )
    return LoweredNode((call,), packed=packed)


def _fill(memory: np.ndarray, source: np.ndarray) -> None:
    turned = np.ascontiguousarray(source.reshape(source.shape[0], -1).T)
    memory[:] = turned.reshape(-1).view(np.uint8)


def _fill_bias(memory: np.ndarray, source: np.ndarray | None) -> None:
    values = np.zeros(len(memory) // 4, np.float32) if source is None else np.ascontiguousarray(source)
    memory[:] = values.view(np.uint8)
