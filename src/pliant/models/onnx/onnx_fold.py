"""Values of nodes whose inputs are known, by ONNX's reference implementation."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from pliant.ir.graph import TensorType

# An operator that draws numbers is no function of its inputs.
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
SMALL_BYTES = 1 << 20
"""Results up to this are always worth keeping instead of a node."""
SMALL_WEIGHTS_BYTES = 1 << 14
"""Weights that take more in float32 than as they are stored are kept as stored from here on."""
LARGEST_BYTES = 1 << 28
"""Longer results are never folded, even where the operator has no kernel."""


def may_fold(op: str, input_bytes: int, output_bytes: int, has_kernel: bool, is_float: bool = False) -> bool:
    """Whether a result takes no more memory than what it is made from, or little.

    Weights that are dequantized stay quantized (`is_float` says that the result is float32): they would take
    up to four times the memory, and products take them as they are (compiler/passes/fold_weights.py).
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
    """A node's outputs; None where the reference fails or gives another type than `types` promises."""
    from onnx.reference import ReferenceEvaluator  # 12 MB, for models that have something to fold

    feeds = {x: values[x] for x in node.input if x}
    wanted = [y for y in node.output if y]
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = ReferenceEvaluator(node, opsets=dict(opsets)).run(wanted, feeds)
    except Exception:  # noqa: BLE001 - whatever numpy raises on values ONNX leaves undefined
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
