"""Bind an ONNX model that is a single graph."""

from collections.abc import Collection, Mapping

import numpy as np

from pliant.ir.graph import Graph
from pliant.models.onnx.bind.onnx_bind import MAX_TENSOR_BYTES, bind_first
from pliant.models.onnx.bind.onnx_blocks import require_one_graph
from pliant.models.onnx.onnx_file import OnnxModel


def bind(
    model: OnnxModel,
    dims: Mapping[str, int],
    values: Mapping[str, np.ndarray] | None = None,
    *,
    supported: Collection[str],
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    max_bytes: int = MAX_TENSOR_BYTES,
    keeps_lookups: bool = False,
) -> Graph:
    """The graph of `model` with symbolic dimensions `dims` and inputs' `values` known.

    As `bind_first`, for a model that is one graph. Also raises GraphError for a model that is divided into
    several graphs.
    """
    part = bind_first(
        model,
        dims,
        values,
        supported=supported,
        shapes=shapes,
        max_bytes=max_bytes,
        keeps_lookups=keeps_lookups,
    )
    return require_one_graph(part, model.source)
