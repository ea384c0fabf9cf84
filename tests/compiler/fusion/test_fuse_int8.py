"""Dynamically quantized products become one quantization and one product: as text, with equal results."""

import numpy as np

from pliant.compiler.fusion.fuse_int8 import fuse_int8
from tests.compiler.passes.chains import Chain, assert_same


def _product(c: Chain, name: str, columns: int, quantized: str) -> str:
    random = np.random.default_rng(columns)
    w = c.constant(f"{name}.w", random.integers(-127, 128, (24, columns)), "int8")
    zero = c.constant(f"{name}.zero", 0, "int8")
    scale = c.constant(f"{name}.scale", random.random(columns) / 100)
    bias = c.constant(f"{name}.bias", random.standard_normal(columns))
    sums = c.add(f"{name}.sums", "MatMulInteger", f"{quantized}", w, f"{quantized}.point", zero)
    real = c.add(f"{name}.real", "Cast", sums, to=1)
    both = c.add(f"{name}.both", "Mul", f"{quantized}.step", scale)
    return c.add(f"{name}.y", "Add", c.add(f"{name}.scaled", "Mul", real, both), bias)


def test_products_of_one_tensor_share_its_quantization() -> None:
    """Query and key of one hidden state; one of them goes through an activation."""
    c = Chain(x=(2, 5, 24))
    c.add("q q.step q.point", "DynamicQuantizeLinear", "x")
    a = c.add("y", "Relu", _product(c, "a", 32, "q"))
    b = _product(c, "b", 7, "q")
    fused = fuse_int8(c.graph(a, b))
    assert sum(node.op == "DynamicQuantizeRows" for node in fused.nodes) == 1
    products = [node for node in fused.nodes if node.op == "QuantizedMatMul"]
    assert len(products) == 2
    assert products[0].inputs[0] == products[1].inputs[0] == "x.rows"
    assert products[0].attributes == {"activation": "relu"}
    assert_same(fused, c, 1e-4)


def test_a_scale_for_each_row_is_none_for_columns() -> None:
    """As many rows as columns: the number of scales does not tell them apart."""
    c = Chain(x=(4, 24))
    c.add("q q.step q.point", "DynamicQuantizeLinear", "x")
    w = c.constant("w", np.random.default_rng(0).integers(-127, 128, (24, 4)), "int8")
    real = c.add("real", "Cast", c.add("sums", "MatMulInteger", "q", w, "q.point"), to=1)
    both = c.add("both", "Mul", "q.step", c.constant("scale", [[0.1], [0.2], [0.3], [0.4]]))
    graph = c.graph(c.add("y", "Mul", real, both))
    assert all(node.op != "QuantizedMatMul" for node in fuse_int8(graph).nodes)


def test_integers_that_are_read_elsewhere_stay() -> None:
    """An output of int32 sums is no float product."""
    c = Chain(x=(2, 5, 24))
    c.add("q q.step q.point", "DynamicQuantizeLinear", "x")
    graph = c.graph(_product(c, "a", 8, "q"), "a.sums")
    assert fuse_int8(graph) is graph
