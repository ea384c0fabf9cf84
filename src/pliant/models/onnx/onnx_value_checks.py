"""Check known values and shapes, where a kernel would otherwise read beyond a tensor."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pliant.errors import ShapeError
from pliant.ir.graph import TensorType
from pliant.models.onnx.onnx_nodes import node_of


def check_indices(
    node: Any, types: Mapping[str, TensorType], values: Mapping[str, np.ndarray], where: str
) -> None:
    """Raise ShapeError for known indices that are out of range, such as positions beyond a table.

    Kernels clamp indices, so the answer would be wrong without an error.
    """
    if node.domain not in ("", "ai.onnx") or node.op_type not in ("Gather", "GatherElements"):
        return
    data, indices = types[node.input[0]].shape, values.get(node.input[1])
    if indices is None or not indices.size or not data:
        return
    n = data[node_of(node).integer("axis", 0)]
    if indices.min() < -n or indices.max() >= n:
        raise ShapeError(
            f"{where}: {node.input[1]!r} selects entries {indices.min()} to {indices.max()} of "
            f"{node.input[0]!r}, which has {n}.",
            where,
        )


def check_reshape(
    node: Any, types: Mapping[str, TensorType], made: Mapping[str, TensorType | None], where: str
) -> None:
    """Raise ShapeError for a Reshape that changes the number of elements; `made` has its output.

    The output shares the input's memory: with more elements, reads would go beyond it; with fewer, the rest
    of the input would be lost.
    """
    wanted = made[node.output[0]] if node.op_type == "Reshape" else None
    if wanted is not None and wanted.size != types[node.input[0]].size:
        given = types[node.input[0]]
        raise ShapeError(
            f"{where}: {node.input[0]!r} is {given} of {given.size} elements, but {list(wanted.shape)} has "
            f"{wanted.size}.",
            where,
        )
