"""Rotary embedding as exporters write it becomes one node: as text, and with equal results."""

import numpy as np
import pytest

from pliant.compiler.fusion.fuse_rotary import fuse_rotary
from tests.compiler.passes.chains import Chain, assert_same

BATCH, ROWS, HEADS, DIM = 2, 5, 3, 16


def _rotate(c: Chain, part: int) -> str:
    """GPT-NeoX's: the first `part` columns of each head, cut from [q | k | v]."""
    h = c.add("h", "Reshape", "x", [BATCH, ROWS, HEADS, 2 * DIM])
    t = c.add("t", "Transpose", h, perm=[0, 2, 1, 3])
    q = c.add("q", "Slice", t, [DIM], [2 * DIM], [3])
    turned = c.add("qr", "Slice", q, [0], [part], [3]) if part < DIM else q
    low = c.add("low", "Slice", turned, [0], [part // 2], [3])
    high = c.add("high", "Slice", turned, [part // 2], [part], [3])
    rotated = c.add("rot", "Concat", c.add("neg", "Neg", high), low, axis=-1)
    random = np.random.default_rng(1)
    cos = c.constant("cos", random.standard_normal((1, 1, ROWS, part)))
    sin = c.constant("sin", random.standard_normal((1, 1, ROWS, part)))
    y = c.add("y", "Add", c.add("a", "Mul", turned, cos), c.add("b", "Mul", rotated, sin))
    if part < DIM:
        y = c.add("z", "Concat", y, c.add("rest", "Slice", q, [part], [DIM], [3]), axis=-1)
    return y


@pytest.mark.parametrize("part", [4, 10, DIM])
def test_turned_columns_and_those_behind_are_one_node(part: int) -> None:
    """All columns of a head, or its first ones: read in place, written once."""
    c = Chain(x=(BATCH, ROWS, HEADS * 2 * DIM))
    fused = fuse_rotary(c.graph(_rotate(c, part)))
    node = next(node for node in fused.nodes if node.op == "FusedRotary")
    assert node.inputs == ("x", "cos", "sin")
    assert node.attributes["x_view"] == (16, 2, 3, 5, 16, 480, 32, 96, 1)
    assert not any(node.op in ("Concat", "Neg") and node.outputs[0] in fused.outputs for node in fused.nodes)
    assert_same(fused, c)


def test_interleaved_pairs_stay() -> None:
    """Another pairing of columns is another function."""
    c = Chain(x=(1, 2, 4, 8))
    even, odd = (c.add(f"p{i}", "Slice", "x", [i], [8], [3], [2]) for i in (0, 1))
    rotated = c.add("rot", "Concat", c.add("neg", "Neg", odd), even, axis=-1)
    cos, sin = (c.constant(n, np.ones((1, 1, 4, 8))) for n in ("cos", "sin"))
    graph = c.graph(c.add("y", "Add", c.add("a", "Mul", "x", cos), c.add("b", "Mul", rotated, sin)))
    assert fuse_rotary(graph) is graph
