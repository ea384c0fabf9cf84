"""Convert older operators to the newest opset: one small adapter for each change of semantics.

Most new versions of an operator only added types; they need no adapter.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from math import prod
from typing import Any, Protocol, runtime_checkable

import numpy as np

from pliant.ir.graph import Attribute, Node, TensorType
from pliant.models.onnx.onnx_nodes import schema_of
from pliant.models.onnx.onnx_tensor import ELEMENT_TYPES


@runtime_checkable
class AdapterContext(Protocol):
    """The interface through which an adapter reads and adds tensors."""

    def type(self, tensor: str) -> TensorType: ...

    def value(self, tensor: str) -> np.ndarray | None:
        """A tensor's value, if it is known."""

    def constant(self, near: str, value: np.ndarray) -> str:
        """A new constant with a name made from `near`."""

    def tensor(self, near: str, type_: TensorType) -> str:
        """A new tensor with a name made from `near`."""


Adapter = Callable[[Node, AdapterContext], list[Node] | None]


def adapt(node: Node, version: int, context: AdapterContext) -> list[Node] | None:
    """The node, declared at opset `version`, as nodes of the newest opset; None if it cannot be converted."""
    if version < BROADCASTING_OPSET:
        if "axis" in node.attributes and "broadcast" in node.attributes:
            return None
        node = replace(node, attributes=_drop_attributes(node, "broadcast", "consumed_inputs", "is_test"))
    before, adapter = _ADAPTERS.get(node.op, (0, None))
    nodes = [node] if adapter is None or version >= before else adapter(node, context)
    if nodes is None or node.op not in _IN_FLOAT32:
        return nodes
    return [new for one in nodes for new in _cast_to_float32(one, context, _IN_FLOAT32[node.op])]


def _axes_to_input(node: Node, context: AdapterContext) -> list[Node]:
    return [_attributes_to_inputs(node, context, "axes")]


def _attributes_to_inputs(node: Node, context: AdapterContext, *names: str) -> Node:
    """Attributes `names`, in order, as further int64 inputs."""
    inputs = list(node.inputs)
    for name in names:
        value = node.integers(name, None)
        inputs.append(
            "" if value is None else context.constant(f"{node.outputs[0]}.{name}", np.array(value, np.int64))
        )
    while inputs and not inputs[-1]:
        inputs.pop()
    return replace(node, inputs=tuple(inputs), attributes=_drop_attributes(node, *names))


def _split(node: Node, context: AdapterContext) -> list[Node]:
    node = _attributes_to_inputs(node, context, "split")
    if len(node.inputs) > 1:
        return [node]
    return [replace(node, attributes={**node.attributes, "num_outputs": len(node.outputs)})]


def _split_18(node: Node, context: AdapterContext) -> list[Node]:
    if len(node.inputs) > 1 and node.inputs[1]:
        return [node]
    return _split(node, context)


def _flatten_axes(node: Node, context: AdapterContext) -> list[Node]:
    """Before opset 13, softmax ran over all axes from `axis` on as one."""
    type_ = context.type(node.inputs[0])
    rank = len(type_.shape)
    axis = node.integer("axis", 1)
    axis = axis + rank if axis < 0 else axis
    if axis == rank - 1 or rank == 0:
        return [replace(node, attributes={**node.attributes, "axis": -1})]
    flat_type = TensorType(type_.dtype, (prod(type_.shape[:axis]), prod(type_.shape[axis:])))
    flat, done = (context.tensor(f"{node.outputs[0]}.{part}", flat_type) for part in ("flat", "done"))
    return [
        _reshape(node.inputs[0], flat, flat_type, node.name, context),
        replace(node, inputs=(flat,), outputs=(done,), attributes={**node.attributes, "axis": -1}),
        _reshape(done, node.outputs[0], type_, node.name, context),
    ]


def _reshape(x: str, y: str, type_: TensorType, name: str, context: AdapterContext) -> Node:
    shape = context.constant(f"{y}.shape", np.array(type_.shape, np.int64))
    return Node("Reshape", (x, shape), (y,), {"allowzero": 1}, name)


def _dropout(node: Node, context: AdapterContext) -> list[Node]:
    return [replace(node, attributes=_drop_attributes(node, "ratio", "is_test"))]


def _batch_normalization(node: Node, context: AdapterContext) -> list[Node] | None:
    if any(node.outputs[1:]):
        return None
    return [replace(node, outputs=node.outputs[:1], attributes=_drop_attributes(node, "spatial"))]


def _upsample(node: Node, context: AdapterContext) -> list[Node]:
    scales = node.reals("scales", None)
    given = (
        node.inputs[1]
        if scales is None
        else context.constant(f"{node.outputs[0]}.scales", np.array(scales, np.float32))
    )
    mode = node.text("mode", "nearest")
    return [_resize(node, given, mode, "floor")]


def _resize_10(node: Node, context: AdapterContext) -> list[Node]:
    if len(node.inputs) > 2:
        return [node]
    return [_resize(node, node.inputs[1], node.text("mode", "nearest"), "simple")]


def _resize(node: Node, scales: str, mode: str, rounding: str) -> Node:
    attributes = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": rounding}
    return replace(node, op="Resize", inputs=(node.inputs[0], "", scales), attributes=attributes)


def _scatter(node: Node, context: AdapterContext) -> list[Node]:
    return [replace(node, op="ScatterElements")]


def _group_normalization(node: Node, context: AdapterContext) -> list[Node] | None:
    """Before opset 21, scale and bias were per group; now they are per channel."""
    groups = node.integer("num_groups")
    channels = context.type(node.inputs[0]).shape[1]
    inputs = [node.inputs[0]]
    for x in node.inputs[1:]:
        value = context.value(x)
        if value is None:
            return None
        inputs.append(context.constant(x, np.repeat(value, channels // groups)))
    return [replace(node, inputs=tuple(inputs))]


def _grid_sample(node: Node, context: AdapterContext) -> list[Node]:
    mode = node.text("mode", "bilinear")
    new = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return [replace(node, attributes={**node.attributes, "mode": new})]


def _dft(node: Node, context: AdapterContext) -> list[Node]:
    inputs = (*node.inputs, "")[:2]
    axis = context.constant(f"{node.outputs[0]}.axis", np.array(node.integer("axis", 1), np.int64))
    return [replace(node, inputs=(*inputs, axis), attributes=_drop_attributes(node, "axis"))]


def _slice(node: Node, context: AdapterContext) -> list[Node]:
    return [_attributes_to_inputs(node, context, "starts", "ends", "axes")]


def _top_k(node: Node, context: AdapterContext) -> list[Node]:
    k = context.constant(f"{node.outputs[0]}.k", np.array([node.integer("k")], np.int64))
    return [replace(node, inputs=(node.inputs[0], k), attributes=_drop_attributes(node, "k"))]


def _top_k_10(node: Node, context: AdapterContext) -> list[Node]:
    return _top_k(node, context) if "k" in node.attributes else [node]


def _pad(node: Node, context: AdapterContext) -> list[Node]:
    pads = context.constant(f"{node.outputs[0]}.pads", np.array(node.integers("pads"), np.int64))
    dtype = context.type(node.inputs[0]).numpy
    value = np.asarray(node.real("value", 0.0)).astype(dtype)
    filler = context.constant(f"{node.outputs[0]}.value", value)
    return [
        replace(
            node, inputs=(node.inputs[0], pads, filler), attributes=_drop_attributes(node, "pads", "value")
        )
    ]


def _cast_to_float32(node: Node, context: AdapterContext, kinds: Collection[str]) -> list[Node]:
    """A node whose first input is of one of `kinds` runs in float32, between casts."""
    kind = context.type(node.inputs[0]).dtype
    if kind not in kinds:
        return [node]
    before: list[Node] = []
    after: list[Node] = []
    inputs, outputs = list(node.inputs), list(node.outputs)
    for i, name in enumerate(node.inputs):
        if not name or context.type(name).dtype != kind:
            continue
        value = context.value(name)
        if value is not None:
            inputs[i] = context.constant(f"{name}.float32", value.astype(np.float32))
            continue
        inputs[i] = context.tensor(f"{name}.float32", TensorType("float32", context.type(name).shape))
        before.append(Node("Cast", (name,), (inputs[i],), {"to": ELEMENT_TYPES["float32"]}, node.name))
    for i, name in enumerate(node.outputs):
        if not name or context.type(name).dtype != kind:
            continue
        outputs[i] = context.tensor(f"{name}.float32", TensorType("float32", context.type(name).shape))
        after.append(Node("Cast", (outputs[i],), (name,), {"to": ELEMENT_TYPES[kind]}, node.name))
    return [*before, replace(node, inputs=tuple(inputs), outputs=tuple(outputs)), *after]


def _shorter_block(node: Node, context: AdapterContext) -> list[Node]:
    """Blocks of which the last is shorter: each element gets a scale of its own."""
    shape, block = context.type(node.inputs[0]).shape, node.integer("block_size", 0)
    axis = node.integer("axis", 1)
    if not block or len(context.type(node.inputs[1]).shape) != len(shape) or shape[axis] % block == 0:
        return [node]
    y, inputs, nodes = node.outputs[0], list(node.inputs), list[Node]()
    places = np.arange(shape[axis]) // block
    for i, name in enumerate(inputs[1:3], 1):
        value = context.value(name) if name else None
        if value is not None:
            inputs[i] = context.constant(f"{y}.{i}", np.take(value, places, axis))
        elif name:
            inputs[i] = context.tensor(f"{y}.{i}", TensorType(context.type(name).dtype, shape))
            at = context.constant(f"{y}.places", places)
            nodes.append(Node("Gather", (name, at), (inputs[i],), {"axis": axis}, node.name))
    return [*nodes, replace(node, inputs=tuple(inputs), attributes={**node.attributes, "block_size": 1})]


def _variadic(node: Node, context: AdapterContext) -> list[Node]:
    """More tensors than a kernel reads become a chain of nodes, which takes them in the same order."""
    if len(set(node.inputs)) <= _MOST_INPUTS:
        return [node]
    y, rest = node.outputs[0], list(node.inputs)
    type_ = context.type(y)
    op = "Sum" if node.op == "Mean" else node.op
    nodes: list[Node] = []
    while len(rest) > _MOST_INPUTS:
        some, rest = rest[:_MOST_INPUTS], rest[_MOST_INPUTS:]
        shape = np.broadcast_shapes(*(context.type(x).shape for x in some))
        part = context.tensor(f"{y}.part", TensorType(type_.dtype, shape))
        nodes.append(Node(op, tuple(some), (part,), {}, node.name))
        rest.insert(0, part)
    if node.op != "Mean":
        return [*nodes, replace(node, inputs=tuple(rest))]
    total = context.tensor(f"{y}.sum", type_)
    count = context.constant(f"{y}.count", np.asarray(len(node.inputs)).astype(type_.numpy))
    nodes.append(Node(op, tuple(rest), (total,), {}, node.name))
    return [*nodes, Node("Div", (total, count), (y,), {}, node.name)]


def _roi_align(node: Node, context: AdapterContext) -> list[Node]:
    old = {"coordinate_transformation_mode": "output_half_pixel"}
    return [replace(node, attributes={**node.attributes, **old})]


def _clip(node: Node, context: AdapterContext) -> list[Node]:
    dtype = context.type(node.inputs[0]).numpy
    bounds = [
        context.constant(f"{node.outputs[0]}.{name}", np.asarray(node.real(name)).astype(dtype))
        if name in node.attributes
        else ""
        for name in ("min", "max")
    ]
    return [replace(node, inputs=(node.inputs[0], *bounds), attributes={})]


def _drop_attributes(node: Node, *names: str) -> Mapping[str, Attribute]:
    return {k: v for k, v in node.attributes.items() if k not in names}


_MOST_INPUTS = 16
"""The tensors that one element-wise kernel reads, MAX_INPUTS in kernels/rows/map.py."""

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")

_ADAPTERS: Mapping[str, tuple[int, Adapter]] = {
    "Squeeze": (13, _axes_to_input),
    "Unsqueeze": (13, _axes_to_input),
    "ReduceSum": (13, _axes_to_input),
    **{f"Reduce{name}": (18, _axes_to_input) for name in _REDUCTIONS},
    "Split": (18, _split_18),
    "Softmax": (13, _flatten_axes),
    "LogSoftmax": (13, _flatten_axes),
    "Hardmax": (13, _flatten_axes),
    "Dropout": (12, _dropout),
    "BatchNormalization": (14, _batch_normalization),
    "Upsample": (99, _upsample),
    "Resize": (11, _resize_10),
    "Scatter": (99, _scatter),
    "GroupNormalization": (21, _group_normalization),
    "GridSample": (20, _grid_sample),
    "DFT": (20, _dft),
    "Slice": (10, _slice),
    "TopK": (11, _top_k_10),
    "Pad": (11, _pad),
    "Clip": (11, _clip),
    "RoiAlign": (16, _roi_align),
    **dict.fromkeys(("Sum", "Max", "Min", "Mean"), (99, _variadic)),
    "QuantizeLinear": (99, _shorter_block),
    "DequantizeLinear": (99, _shorter_block),
}
"""Per operator: the opset version since which its semantics are unchanged, and the adapter of older ones."""

_HALF = ("float16", "bfloat16")
_IN_FLOAT32: Mapping[str, Collection[str]] = {
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _HALF),
    **dict.fromkeys(("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool"), _HALF),
    **dict.fromkeys(("Conv", "ConvTranspose", "LSTM", "GRU", "RNN", "LRN"), (*_HALF, "float64")),
    **dict.fromkeys(("GridSample", "RoiAlign"), (*_HALF, "float64")),
}
"""Operators without kernels for these types, which are computed in float32."""

BROADCASTING_OPSET = 7
"""In earlier opsets, broadcasting was an attribute, and operators wrote into their inputs."""

SAME_BEFORE_7 = frozenset(
    (
        *("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less", "Gemm"),
        *("AveragePool", "BatchNormalization", "Dropout", "Concat"),
    )
)
"""Operators in which opset 7 changed only attributes that `adapt` drops."""

RENAMED = frozenset(("Upsample", "Scatter"))
"""Operators that were renamed."""


def means_the_same(schema: Any, node: Any, opsets: Mapping[str, int]) -> bool:
    """Whether an operator of a very old opset has the semantics that are translated."""
    if node.domain not in ("", "ai.onnx") or opsets.get("", BROADCASTING_OPSET) >= BROADCASTING_OPSET:
        return True
    later = schema_of(node.domain, node.op_type, BROADCASTING_OPSET)
    return node.op_type in SAME_BEFORE_7 or (
        later is not None and later.since_version == schema.since_version
    )
