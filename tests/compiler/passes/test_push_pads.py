"""Pads step in front of transposes, so that an unfold is a view: as text, and with equal results."""

import numpy as np
import pytest

from pliant.compiler.passes.passes import simplify
from pliant.compiler.passes.push_pads import push_pads
from tests.compiler.passes.chains import Chain, assert_same, lines

ROWS, HEADS, WIDTH, TAPS = 7, 2, 3, 3


def _unfold() -> tuple[Chain, str]:
    """ConvBERT's span-dynamic convolution as PyTorch exports it, small."""
    c = Chain(x=(1, ROWS, HEADS * WIDTH), k=(ROWS * HEADS, TAPS, 1))
    c.add("t", "Transpose", "x", perm=[0, 2, 1])
    c.add("u", "Unsqueeze", "t", [-1])
    c.add("p", "Pad", "u", [0, 0, 1, 0, 0, 0, 1, 0])
    c.constant("at", np.arange(TAPS)[:, None] + np.arange(ROWS), "int64")
    c.add("w", "Gather", "p", "at", axis=2)
    c.add("v", "Gather", "w", c.constant("one", [[0]], "int64"), axis=4)
    c.add("f", "Reshape", "v", [1, -1, ROWS])
    c.add("r", "Transpose", "f", perm=[0, 2, 1])
    c.add("h", "Reshape", "r", [-1, WIDTH, TAPS])
    return c, c.add("y", "MatMul", "h", "k")


def test_a_pad_steps_in_front_of_what_moves_dimensions() -> None:
    """The transpose follows the pad, and so does the dimension that was put in."""
    c, y = _unfold()
    pushed = push_pads(c.graph(y))
    assert lines(pushed)[:3] == [
        "p.rows = Pad (x, p.pads)",
        "t.padded = Transpose <perm=(0, 2, 1)> (p.rows)",
        "p = Reshape <allowzero=1> (t.padded, p.shape)",
    ]
    assert pushed.constants["p.pads"].tolist() == [0, 1, 0, 0, 1, 0]
    assert_same(pushed, c)


def test_an_unfold_is_a_view_of_padded_rows() -> None:
    """Window k of row t at width d of head h is element (t + k, h, d): no gather, no transpose is left."""
    c, y = _unfold()
    graph = simplify(c.graph(y))
    assert lines(graph) == [
        "p.rows = Pad (x, p.pads)",
        "y = FusedMatMul <a_view=(0, 14, 3, 3, 3, 1, 6)> (p.rows, k)",
    ]
    assert_same(graph, c)


def test_a_padded_batch_and_a_value_keep_their_place() -> None:
    """Every dimension of the source may be padded, by any value."""
    c = Chain(x=(2, 3, 5))
    c.add("t", "Transpose", "x", perm=[2, 0, 1])
    c.add("p", "Pad", "t", [1, 0, 2, 3, 0, 4], 1.5)
    pushed = push_pads(c.graph(c.add("y", "Transpose", "p", perm=[1, 2, 0])))
    assert lines(pushed)[0] == "p.rows = Pad (x, p.pads, p.2)"
    assert pushed.constants["p.pads"].tolist() == [0, 2, 1, 0, 4, 3]
    assert_same(pushed, c)


@pytest.mark.parametrize(
    "case", ["a new dimension", "a kernel reads it", "an output", "read twice", "a mode"]
)
def test_other_pads_stay(case: str) -> None:
    """What would not become a view, or is wanted as it is, or cannot be said of the source."""
    c = Chain(x=(2, 3, 5))
    c.add("t", "Transpose", "x", perm=[2, 0, 1])
    c.add("u", "Unsqueeze", "t", [0])
    mode = {"mode": "edge"} if case == "a mode" else {}
    pads = [int(case == "a new dimension"), 0, 0, 1, 0, 0, 0, 1]
    c.add("p", "Pad", "u", pads, **mode)
    outputs = [c.add("y", "Relu" if case == "a kernel reads it" else "Transpose", "p")]
    outputs += ["p"] if case == "an output" else []
    outputs += [c.add("z", "Relu", "t")] if case == "read twice" else []
    graph = c.graph(*outputs)
    assert push_pads(graph) is graph


def test_a_dimension_that_a_reshape_cuts_stops_it() -> None:
    """The pad moves as far as dimensions are what they were."""
    c = Chain(x=(6, 4))
    c.add("r", "Reshape", "x", [2, 3, 4])
    c.add("t", "Transpose", "r", perm=[0, 2, 1])
    c.add("p", "Pad", "t", [0, 0, 1, 0, 0, 1])
    pushed = push_pads(c.graph(c.add("y", "Transpose", "p", perm=[2, 1, 0])))
    assert lines(pushed)[1] == "p.rows = Pad (r, p.pads)"
    assert_same(pushed, c)
