"""Pass `dead`, as text."""

import numpy as np
import pytest

from pliant.compiler.passes.dead_code import drop_dead_code
from tests.compiler.passes.chains import Chain, assert_same
from tests.compiler.passes.read_graph import body, read


def test_what_no_output_depends_on_is_dropped() -> None:
    """Exporters leave branches behind that nobody reads."""
    graph = read("g (float[2] x) => (float[2] y) { a = Relu(x) b = Neg(a) y = Abs(x) }")
    assert body(drop_dead_code(graph)) == ["y = Abs (x)"]


def test_an_unread_output_loses_its_name() -> None:
    """Kernels need not compute what nobody reads; the parts of a split are all made, to know their places."""
    graph = read(
        """g (float[4,3] x) => (float[4,3] y, float[2,3] b) {
          y, mean = LayerNormalization <axis = 1> (x, w)
          w = Constant <value = float[3] {1, 2, 3}> ()
          a, b = Split <axis = 0> (x) }""".replace(
            "y, mean = LayerNormalization <axis = 1> (x, w)", ""
        ).replace("a, b", "y, mean = LayerNormalization <axis = 1> (x, w) a, b"),
    )
    assert body(drop_dead_code(graph)) == [
        "y = LayerNormalization <axis=1> (x, w)",
        "a, b = Split <axis=0, num_outputs=2> (x)",
    ]


@pytest.mark.parametrize("wanted", ["i", "mean"])
def test_a_node_of_which_only_a_later_output_is_read_computes_it(wanted: str) -> None:
    """Its kernel writes the first one in any case."""
    c = Chain(x=(1, 3, 6, 6))
    c.add("v i", "MaxPool", "x", kernel_shape=[2, 2])
    windows = np.lib.stride_tricks.sliding_window_view(c.feeds["x"], (2, 2), (2, 3)).reshape(1, 3, 5, 5, 4)
    places = (
        np.arange(3 * 6 * 6).reshape(1, 3, 6, 6)[:, :, :5, :5] + np.array([0, 1, 6, 7])[windows.argmax(-1)]
    )
    c.values["i"] = places  # onnx's reference counts in another image
    c.add("y mean", "LayerNormalization", "x", c.constant("w", np.ones(6)))
    assert_same(drop_dead_code(c.graph(wanted)), c)


def test_a_graph_without_dead_nodes_stays_the_same_object() -> None:
    """Passes run until none finds anything, which they say by handing their graph back."""
    graph = read("g (float[2] x) => (float[2] y) { y = Abs(x) }")
    assert drop_dead_code(graph) is graph
