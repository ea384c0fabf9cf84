"""Evaluate operators that need no kernel, while a model is bound."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import helper

from pliant.errors import GraphError
from pliant.ir.graph import TensorType
from pliant.models.onnx.onnx_external import ExternalData
from pliant.models.onnx.onnx_nodes import attribute, node_of
from pliant.models.onnx.onnx_tensor import ELEMENT_TYPES

STATIC_OPERATORS = frozenset(("Constant", "Shape", "Size", "Dropout", "CastLike"))
"""Operators that binding removes."""


def constant(node: Any, external: ExternalData) -> np.ndarray:
    """The value of a Constant; raises GraphError for a sparse one and for text."""
    if len(node.attribute) != 1 or node.attribute[0].name == "sparse_value":
        raise GraphError(f"the Constant {node.output[0]!r} has no dense value.")
    value = attribute(node.attribute[0], external)
    if isinstance(value, np.ndarray):
        return value
    exact = np.array(value)
    if exact.dtype.kind not in "if":
        raise GraphError(f"the Constant {node.output[0]!r} is text, which is not supported.")
    return exact.astype(np.float32 if exact.dtype.kind == "f" else np.int64)


def size_of(node: Any, type_: TensorType) -> np.ndarray:
    """The result of Shape or Size for a tensor of this type: int64 [n] or []."""
    if node.op_type == "Size":
        return np.asarray(np.int64(type_.size))
    read = node_of(node)
    part = type_.shape[slice(read.integer("start", 0), read.integer("end", None))]
    return np.array(part, np.int64)


def cast_of(node: Any, like: TensorType) -> Any:
    """The Cast equivalent to a CastLike: only the type of its second input matters, which is known."""
    to = ELEMENT_TYPES[like.dtype]
    return helper.make_node("Cast", node.input[:1], node.output, node.name, to=to, **node_of(node).attributes)


def drops_nothing(node: Any, values: Mapping[str, np.ndarray]) -> bool:
    """Whether a Dropout is in inference mode, or drops with probability 0."""
    ratio, training = (*node.input[1:], "", "")[:2]
    known = values.get(training)
    if not training or (known is not None and not known.any()):
        return True
    return ratio in values and not values[ratio].any()
