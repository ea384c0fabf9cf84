"""Make nodes that round the rows of a product's left side, one for all products of the same rows."""

from typing import final

from pliant.compiler.rewrite.rewrite import unused_name
from pliant.compiler.rewrite.view import View
from pliant.ir.graph import Attribute, Graph, Node, TensorType

RowNodes = tuple[tuple[Node, ...], tuple[str, ...]]
"""The node to insert before the product, if there is none yet, and the names of its outputs."""


@final
class RowRounder:
    """The rounding nodes of a graph so far; `types` are the types of new tensors."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._known: dict[tuple[str, tuple[int, ...], int, bool], tuple[str, ...]] = {}
        self.types: dict[str, TensorType] = {}

    def integers(self, rows: View, depth: int, *, is_resident: bool = False) -> RowNodes:
        """QuantizeRows: int16 [rows, depth], and a scale and a zero point per row.

        `is_resident`: the weights of the product are resident.
        """
        kinds = {
            "rows": TensorType("int16", (rows.shape[0], depth)),
            "scales": TensorType("float32", (rows.shape[0], 2)),
        }
        return self._rounded("QuantizeRows", rows, depth, kinds, is_resident)

    def bfloats(self, rows: View, depth: int) -> RowNodes:
        """RoundRows: bfloat16 [rows, depth]."""
        return self._rounded(
            "RoundRows", rows, depth, {"rows": TensorType("bfloat16", (rows.shape[0], depth))}
        )

    def _rounded(
        self, op: str, rows: View, depth: int, kinds: dict[str, TensorType], is_resident: bool = False
    ) -> RowNodes:
        key = (rows.tensor, rows.attribute, depth, is_resident)
        if key in self._known:
            return (), self._known[key]
        near = f"{rows.tensor}|{len(self._known)}"
        names = {part: unused_name(self._graph, f"{near}|{part}") for part in kinds}
        self.types |= {names[part]: kind for part, kind in kinds.items()}
        made = self._known[key] = tuple(names.values())
        attributes: dict[str, Attribute] = {"a_view": rows.attribute}
        if is_resident:
            attributes["is_resident"] = 1
        return (Node(op, (rows.tensor,), made, attributes, f"{near} rounded"),), made


def as_rows(a: View) -> View | None:
    """a as rows by columns; None if that needs more than two strides."""
    *lead, depth = a.shape
    if depth > 1 and a.strides[-1] != 1:
        return None
    rows, step = 1, 0
    for n, stride in zip(reversed(lead), reversed(a.strides[:-1]), strict=True):
        if n == 1:
            continue
        if rows > 1 and stride != rows * step:
            return None
        rows, step = rows * n, step or stride
    return View(a.tensor, a.offset, (rows, depth), (step, 1))
