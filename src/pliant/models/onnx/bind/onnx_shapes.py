"""Shapes that depend on values: the inputs that must be known, and rules that ONNX's inference lacks."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pliant.errors import GraphError
from pliant.ir.graph import TensorType
from pliant.models.onnx.onnx_nodes import node_of

_AXES = (1,)
_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

VALUE_INPUTS: Mapping[str, tuple[int, ...]] = {
    "Reshape": (1,),
    "Expand": (1,),
    "ConstantOfShape": (0,),
    "Tile": (1,),
    "Slice": (1, 2, 3, 4),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "TopK": (1,),
    "Squeeze": _AXES,
    "Unsqueeze": _AXES,
    "Split": (1,),
    "OneHot": (1,),
    "CumSum": (1,),
    "CumProd": (1,),
    "Trilu": (1,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "AffineGrid": (1,),
    "DFT": (1, 2),
    "STFT": (1, 3),
    "MaxUnpool": (2,),
    "BlackmanWindow": (0,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "Dropout": (2,),
    "Compress": (1,),
    **{f"Reduce{name}": _AXES for name in _REDUCTIONS},
}
"""Inputs, by position, that determine shapes or kernels: their values are compiled in."""


def known_shape(
    node: Any, types: Mapping[str, TensorType], values: Mapping[str, np.ndarray]
) -> TensorType | None:
    """An output's type for operators that ONNX's inference does not cover; None if it depends on data."""
    rule = _RULES.get(node.op_type)
    return None if rule is None else rule(node, types, values)


def _like_first(
    node: Any, types: Mapping[str, TensorType], values: Mapping[str, np.ndarray]
) -> TensorType | None:
    return types[node.input[0]]


def _range(node: Any, types: Mapping[str, TensorType], values: Mapping[str, np.ndarray]) -> TensorType | None:
    """Also accept vectors of one element, which exporters write and ONNX's inference refuses."""
    if any(x not in values or values[x].size != 1 for x in node.input):
        return None
    start, limit, delta = (values[x].item() for x in node.input)
    if not delta:
        raise GraphError(f"node {node.name or node.output[0]!r} (Range) has a step of 0.")
    steps = (limit - start) / delta
    if not np.isfinite(steps):
        raise GraphError(f"node {node.name or node.output[0]!r} (Range) has no end.")
    return TensorType(types[node.input[0]].dtype, (max(int(np.ceil(steps)), 0),))


def _max_unpool(
    node: Any, types: Mapping[str, TensorType], values: Mapping[str, np.ndarray]
) -> TensorType | None:
    shape = values.get(node.input[2]) if len(node.input) > 2 else None
    if shape is None or np.any(shape < 0):
        return None
    if shape.ndim != 1:
        raise GraphError(
            f"node {node.name or node.output[0]!r} (MaxUnpool): output_shape has {shape.ndim} dimensions; it "
            "must be a vector."
        )
    return TensorType(types[node.input[0]].dtype, tuple(int(d) for d in shape))


def _compress(
    node: Any, types: Mapping[str, TensorType], values: Mapping[str, np.ndarray]
) -> TensorType | None:
    condition = values.get(node.input[1])
    if condition is None:
        return None
    type_ = types[node.input[0]]
    n = int(np.count_nonzero(condition))
    axis = node_of(node).integer("axis", None)
    if axis is None:
        return TensorType(type_.dtype, (n,))
    rank = len(type_.shape)
    if not -rank <= axis < rank:
        raise GraphError(f"node {node.name or node.output[0]!r} (Compress) has no axis {axis}.")
    shape = list(type_.shape)
    shape[axis] = n
    return TensorType(type_.dtype, tuple(shape))


def _stft(node: Any, types: Mapping[str, TensorType], values: Mapping[str, np.ndarray]) -> TensorType | None:
    """ONNX's inference ignores that one-sided is the default."""
    where = f"node {node.name or node.output[0]!r} (STFT)"
    signal, step = types[node.input[0]], values.get(node.input[1])
    given = (*node.input, "", "")[2:4]
    length = values.get(given[1])
    if step is None or step.size != 1 or (given[1] and length is None) or len(signal.shape) < 2:
        return None
    if given[0] and len(types[given[0]].shape) != 1:
        raise GraphError(f"{where} has the window {given[0]!r}, {types[given[0]]}; it must be a vector.")
    n = types[given[0]].shape[0] if given[0] else signal.shape[1]
    n = int(length.ravel()[0]) if length is not None else n
    hop = int(step.ravel()[0])
    if not (1 <= n <= signal.shape[1] and hop >= 1 and (not given[0] or types[given[0]].shape == (n,))):
        raise GraphError(f"{where} cannot cut frames of {n} in steps of {hop} out of {signal}.")
    is_onesided = node_of(node).flag("onesided", True)
    frames = (signal.shape[1] - n) // hop + 1
    return TensorType(signal.dtype, (signal.shape[0], frames, n // 2 + 1 if is_onesided else n, 2))


def _resize(
    node: Any, types: Mapping[str, TensorType], values: Mapping[str, np.ndarray]
) -> TensorType | None:
    """Lengths are products in float32, as in onnxruntime: 640 times float32(224 / 640) is 224.

    ONNX's inference multiplies in float64 and gets 223. Given sizes and invalid inputs are left to it.
    """
    # Upsample and Resize before opset 11 had the scales as the second of two inputs, or as an attribute.
    given = next((np.array(a.floats, np.float32) for a in node.attribute if a.name == "scales"), None)
    scales = values.get((*node.input, "", "")[1 if len(node.input) == 2 else 2]) if given is None else given
    if any(node.input[3:]) or scales is None or scales.dtype != np.float32 or not scales.size:
        return None
    type_ = types[node.input[0]]
    rank = len(type_.shape)
    axes = next((tuple(a.ints) for a in node.attribute if a.name == "axes"), tuple(range(rank)))
    is_fit = len(axes) == scales.size and len({a % rank for a in axes}) == len(axes) and (scales > 0).all()
    if not is_fit or any(not -rank <= a < rank for a in axes):
        return None
    shape = list(type_.shape)
    for axis, scale in zip(axes, scales.ravel(), strict=True):
        shape[axis] = int(np.float32(shape[axis]) * scale)
    return TensorType(type_.dtype, tuple(shape))


_RULES: Mapping[str, Any] = {
    "Resize": _resize,
    "Upsample": _resize,
    "STFT": _stft,
    "Compress": _compress,
    "GroupNormalization": _like_first,
    "MeanVarianceNormalization": _like_first,
    "Range": _range,
    "MaxUnpool": _max_unpool,
}
