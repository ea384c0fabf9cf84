"""ONNX's text in, an ir graph out: what passes are tested on."""

from collections.abc import Mapping

import onnx.defs
import onnx.parser

from pliant.ir.graph import Graph
from pliant.models.onnx.onnx_file import open_onnx
from tests.models.one_graph import bind

EVERY_OPERATOR = frozenset(s.name for s in onnx.defs.get_all_schemas() if s.domain == "")


def read(text: str, dims: Mapping[str, int] | None = None, opset: int = 17) -> Graph:
    """The graph of `text`, which is a graph in ONNX's textual form, every operator kept as it is."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')
    return bind(open_onnx(model), dims or {}, supported=EVERY_OPERATOR)


def body(graph: Graph) -> list[str]:
    """One line a node."""
    return [str(node) for node in graph.nodes]
