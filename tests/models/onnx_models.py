"""Small ONNX models for tests of the front end."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
from onnx import helper, numpy_helper
from onnx.external_data_helper import convert_model_to_external_data

from pliant.ir.graph import Graph
from pliant.models.onnx.bind.onnx_bind import bind_first
from pliant.models.onnx.bind.onnx_blocks import BoundPart
from pliant.models.onnx.onnx_file import open_onnx
from tests.compiler.passes.read_graph import EVERY_OPERATOR
from tests.models.one_graph import bind


def parse(text: str, opset: int = 17, functions: str = "") -> Any:
    """A ModelProto of a graph in ONNX's textual form; `functions` are of the domain "local"."""
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}, "local": 1]> {text} {functions}'
    )


def bound(
    model: Any,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, np.ndarray] | None = None,
    supported: Collection[str] = EVERY_OPERATOR,
) -> Graph:
    """The model's graph; by default every operator has a kernel."""
    return bind(open_onnx(model), dims or {}, values, supported=supported)


def first_part(model: Any, supported: Collection[str] = EVERY_OPERATOR) -> BoundPart:
    """What can be bound of a model that data divide."""
    return bind_first(open_onnx(model), {}, supported=supported)


def linear(rows: int = 64, columns: int = 48) -> tuple[Any, np.ndarray]:
    """y = x W, whose weight is long enough to be left in the file; and the weight."""
    weight = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "W"], ["y"], name="dense")],
        "linear",
        [helper.make_tensor_value_info("x", 1, ["batch", rows])],
        [helper.make_tensor_value_info("y", 1, ["batch", columns])],
        [numpy_helper.from_array(weight, "W")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), weight


def external(directory: Path, rows: int = 64, columns: int = 48) -> Path:
    """`linear` in a file of this folder, its weight in "weights.bin" beside it."""
    model, _ = linear(rows, columns)
    convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    onnx.save(model, directory / "model.onnx")
    return directory / "model.onnx"
