"""Products of the rows that a loop reads one by one are computed together, where that gives the same."""

from itertools import count

import numpy as np
import pytest

from pliant.models.onnx.bind.onnx_blocks import NodeBlock, ScopedNode, body_block
from pliant.models.onnx.bind.onnx_hoist import hoist_products
from pliant.models.onnx.bind.onnx_scope import Scope
from pliant.models.onnx.onnx_external import ExternalData
from tests.models.onnx_models import parse

BODY = """g (float[T,2] x, int64 n, float[2,3] w) => (float[3] h)
    <bool go = {{1}}, int64 zero = {{0}}, float[3] h0 = {{0,0,0}}> {{
  h, last = Loop (n, go, h0, zero) <body = b (int64 i, bool c, float[3] state, int64 at)
      => (bool again, float[3] next, int64 more) <int64 one = {{1}}, int64 two = {{2}}> {{
    again = Identity(c) row = {row} p = MatMul(row, {matrix}) next = Add(state, p) more = {more} }}> }}"""


def _hoisted(row: str, more: str = "Add(at, one)", matrix: str = "w") -> tuple[NodeBlock | None, NodeBlock]:
    model = parse(BODY.format(row=row, more=more, matrix=matrix))
    (node,) = model.graph.node
    names = count()

    def fresh(near: str) -> str:
        return f"{near}#{next(names)}"

    body = next(a.g for a in node.attribute if a.name == "body")
    block = body_block(body, ScopedNode(node, Scope({"": 17})), fresh, ExternalData(None))
    return hoist_products(block, {"w": np.ones((2, 3), np.float32)}, fresh)


@pytest.mark.parametrize("row", ["Gather(x, i)", "Gather(x, at)", "Gather<axis=0>(x, at)"])
def test_products_of_rows_in_turn_are_computed_before(row: str) -> None:
    """The row is then looked up in the product, and what looked it up in the input goes."""
    before, body = _hoisted(row)
    assert before is not None
    assert [placed.node.op_type for placed in before.nodes] == ["MatMul"]
    assert list(before.nodes[0].node.input) == ["x", "w"]
    assert [placed.node.op_type for placed in body.nodes] == ["Identity", "Gather", "Add", "Add"]
    assert body.nodes[1].node.input[0] == before.outputs[0]
    assert "x" not in body.reads


@pytest.mark.parametrize(
    ("row", "more", "matrix"),
    [
        ("Gather<axis=1>(x, at)", "Add(at, one)", "w"),
        ("Gather(x, at)", "Add(at, two)", "w"),
        ("Gather(x, at)", "Mul(at, one)", "w"),
        ("Gather(x, one)", "Add(at, one)", "w"),
        ("Gather(state, at)", "Add(at, one)", "w"),
        ("Gather(x, at)", "Add(at, one)", "x"),
        ("Identity(x)", "Add(at, one)", "w"),
    ],
)
def test_other_products_stay_in_the_body(row: str, more: str, matrix: str) -> None:
    """Of columns, of rows that are skipped or of the state, or with a matrix that is not known."""
    before, body = _hoisted(row, more, matrix)
    assert before is None
    assert [placed.node.op_type for placed in body.nodes].count("MatMul") == 1
