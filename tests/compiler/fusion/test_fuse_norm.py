"""Normalisations written in primitives become one node: as text, and with equal results."""

import numpy as np
import pytest

from pliant.compiler.fusion.fuse_norm import fuse_norm
from tests.compiler.passes.chains import Chain, assert_same, lines


def _root(c: Chain, x: str, how: str) -> str:
    squares = c.add("sq", "Pow", x, 2.0) if how == "pow" else c.add("sq", "Mul", x, x)
    variance = c.add("v", "ReduceMean", squares, [-1], keepdims=1)
    return c.add("r", "Sqrt", c.add("ve", "Add", variance, 1e-5))


@pytest.mark.parametrize("affine", [0, 1, 2])
@pytest.mark.parametrize("how", ["pow", "mul"])
def test_layer_norm_in_primitives_is_one_node(how: str, affine: int) -> None:
    """As exported before opset 17, with scale and shift, scale alone, or neither."""
    c = Chain(x=(2, 3, 8))
    c.constant("w", np.arange(8) - 3.0)
    c.constant("b", np.arange(8) / 8)
    centred = c.add("d", "Sub", "x", c.add("m", "ReduceMean", "x", [-1], keepdims=1))
    y = c.add("n", "Div", centred, _root(c, centred, how))
    y = c.add("nw", "Mul", y, "w") if affine else y
    y = c.add("nwb", "Add", y, "b") if affine == 2 else y
    fused = fuse_norm(c.graph(y))
    inputs = ["x, n.ones", "x, w", "x, w, b"][affine]
    epsilon = float(np.float32(1e-5))
    assert f"{y} = LayerNormalization <axis=-1, epsilon={epsilon}> ({inputs})" in lines(fused)
    assert_same(fused, c)


def test_rms_norm_in_primitives_is_one_node() -> None:
    """As Llama's: x times the reciprocal root, times a weight."""
    c = Chain(x=(2, 3, 8))
    c.constant("w", np.arange(8) - 3.0)
    inverse = c.add("i", "Reciprocal", _root(c, "x", "pow"))
    y = c.add("y", "Mul", "w", c.add("n", "Mul", "x", inverse))
    fused = fuse_norm(c.graph(y))
    assert any(line.startswith("y = RMSNormalization") for line in lines(fused))
    assert_same(fused, c)


def test_a_mean_over_another_axis_stays() -> None:
    """Only rows are normalised by these operators' kernels."""
    c = Chain(x=(2, 3, 8))
    centred = c.add("d", "Sub", "x", c.add("m", "ReduceMean", "x", [1], keepdims=1))
    variance = c.add("v", "ReduceMean", c.add("sq", "Mul", centred, centred), [1], keepdims=1)
    graph = c.graph(c.add("y", "Div", centred, c.add("r", "Sqrt", c.add("ve", "Add", variance, 1e-5))))
    assert fuse_norm(graph) is graph
