"""Compute nodes whose inputs are known, with ONNX's reference implementation."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, ValueInfoProto

from pliant.ir.graph import TensorType

# Random operators are not functions of their inputs.
_RANDOM = frozenset(
    (
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Bernoulli",
        "Multinomial",
        "Dropout",
    )
)
_COERCED = frozenset(("Softmax", "LogSoftmax", "Hardmax"))
_ONE_AXIS_OPSET = 13
"""In earlier opsets these ran over several axes as one, which the reference implementation does not
support.
"""
_INFERENCE_OPSET = 14
"""Since this opset the reference implementation normalizes by the given statistics alone."""
SMALL_BYTES = 1 << 20
"""Results up to this size are always folded."""
SMALL_WEIGHTS_BYTES = 1 << 14
"""From this size on, weights that are larger in float32 than in their stored type stay in their stored
type.
"""
LARGEST_BYTES = 1 << 28
"""Larger results are never folded, even if the operator has no kernel."""


def may_fold(op: str, input_bytes: int, output_bytes: int, has_kernel: bool, is_float: bool = False) -> bool:
    """Whether to fold a result: it takes no more memory than its inputs, or little memory.

    Weights that are dequantized stay quantized (`is_float`: the result is float32): float32 would take up to
    four times the memory, and products accept them quantized (compiler/passes/fold_weights.py).
    """
    if op in _RANDOM or output_bytes > LARGEST_BYTES:
        return False
    is_weights = op in ("Cast", "DequantizeLinear") and is_float and output_bytes > input_bytes
    if is_weights and has_kernel and output_bytes > SMALL_WEIGHTS_BYTES:
        return False
    if output_bytes <= SMALL_BYTES or not has_kernel:
        return True
    return output_bytes <= input_bytes and op != "DequantizeLinear"


def fold(
    node: Any,
    values: Mapping[str, np.ndarray],
    opsets: Mapping[str, int],
    types: Mapping[str, TensorType | None],
) -> dict[str, np.ndarray] | None:
    """A node's outputs; None if the reference fails or returns another type than in `types`."""
    if node.op_type in _COERCED and opsets.get("", _ONE_AXIS_OPSET) < _ONE_AXIS_OPSET:
        return None
    feeds = {x: values[x] for x in node.input if x}
    wanted = [y for y in node.output if y]
    found = _compute(node, feeds, wanted, opsets)
    if found is None or _differs(node, values, opsets, found):
        return None
    results = {}
    for y, value in zip(wanted, found, strict=True):
        promised = types[y]
        array = np.asarray(value)
        if promised is not None and (array.dtype != promised.numpy or array.shape != promised.shape):
            return None
        if array.dtype == object or array.dtype.kind in "USc":
            return None
        results[y] = np.ascontiguousarray(array).reshape(array.shape)
    return results


def _differs(
    node: Any, values: Mapping[str, np.ndarray], opsets: Mapping[str, int], found: Sequence[Any]
) -> bool:
    """Whether the reference implementation, which `found` these, computes other numbers than onnxruntime.

    It is wrong for some windows of pools and transposed convolutions and for the indices of MaxPool, rounds
    resized integers and halfway coordinates in another way, resizes to length 1 from another coordinate, and
    ignores a NaN in the maximum or minimum of a scatter. LRN loops over the batch in place of the channels,
    recurrent operators ignore lengths, clip and activations, an old BatchNormalization takes in the batch's
    own statistics, and OneHot multiplies infinite values by 0.
    """
    match node.op_type:
        case "AveragePool" | "LpPool" | "ConvTranspose" | "DynamicQuantizeLinear":
            return True
        case "LRN" | "LSTM" | "GRU" | "RNN":
            return True
        case "Resize":
            x, places = values[node.input[0]], _text(node, "coordinate_transformation_mode", "half_pixel")
            shrinks_to_1 = any(n == 1 < m for n, m in zip(np.shape(found[0]), x.shape, strict=True))
            is_odd = places == "tf_half_pixel_for_nn" or (places == "pytorch_half_pixel" and shrinks_to_1)
            return is_odd or x.dtype.kind in "iub" or _text(node, "mode", "nearest") == "nearest"
        case "BatchNormalization":
            return opsets.get("", _INFERENCE_OPSET) < _INFERENCE_OPSET
        case "MaxPool":
            return len(node.output) > 1 or _text(node, "auto_pad", "NOTSET") != "NOTSET"
        case "OneHot":
            return not np.isfinite(np.asarray(values[node.input[2]], np.float64)).all()
        case "ScatterElements" | "ScatterND":
            how = _text(node, "reduction", "none")
            return how in ("min", "max") and values[node.input[0]].dtype.kind not in "iub"
    return False


def _text(node: Any, name: str, default: str) -> str:
    return next((a.s.decode() for a in node.attribute if a.name == name), default)


def _compute(
    node: Any, feeds: Mapping[str, np.ndarray], wanted: Sequence[str], opsets: Mapping[str, int]
) -> Sequence[Any] | None:
    """The outputs at the node's own opset, or at the newest if the reference lacks that version."""
    inputs, outputs = ([ValueInfoProto(name=x) for x in names] for names in (feeds, wanted))
    # The reference ignores the opset for a single node and uses the newest one; in a graph it does not.
    graph = GraphProto(name="node", node=[node], input=inputs, output=outputs)
    found = _run_reference(graph, feeds, wanted, dict(opsets))
    return _run_reference(node, feeds, wanted, None) if found is None else found


def _run_reference(
    proto: Any, feeds: Mapping[str, np.ndarray], wanted: Sequence[str], opsets: dict[str, int] | None
) -> Sequence[Any] | None:
    from onnx.reference import ReferenceEvaluator  # 12 MB, only for models with values to fold

    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: Sequence[Any] = ReferenceEvaluator(proto, opsets=opsets).run(wanted, dict(feeds))
            return found
    except Exception:  # noqa: BLE001 - whatever numpy raises on values ONNX leaves undefined
        return None


def reference(node: Any, opsets: Mapping[str, int]) -> Callable[[Mapping[str, Any]], Sequence[Any]]:
    """ONNX's reference function of a node, from its inputs by name; it raises ValueError on failure."""
    from onnx.reference import ReferenceEvaluator

    wanted = [y for y in node.output if y]
    inputs, outputs = ([ValueInfoProto(name=x) for x in names if x] for names in (node.input, wanted))
    evaluator = ReferenceEvaluator(
        GraphProto(name="node", node=[node], input=inputs, output=outputs), opsets=dict(opsets)
    )

    def run(feeds: Mapping[str, Any]) -> Sequence[Any]:
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                given = _cropped(node, feeds) if node.op_type == "Pad" else feeds
                found = iter(evaluator.run(wanted, {x: v for x, v in given.items() if x}))
        except Exception as error:  # whatever numpy raises on values ONNX leaves undefined
            raise ValueError(str(error)) from error
        return [next(found) if y else None for y in node.output]

    return run


def _cropped(node: Any, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
    """The feeds of a Pad with its negative amounts applied to the data and replaced by 0."""
    (x, amounts), axes = node.input[:2], [feeds[name] for name in node.input[3:4] if name]
    data, pads = feeds[x], np.asarray(feeds[amounts])
    if (pads >= 0).all():
        return feeds
    cut = [slice(None)] * data.ndim
    for axis, before, after in zip(axes[0] if axes else range(data.ndim), *np.split(pads, 2), strict=True):
        cut[axis] = slice(max(-before, 0), data.shape[axis] - max(-after, 0))
    return {**feeds, x: data[tuple(cut)], amounts: np.maximum(pads, 0)}
