"""GELU as exporters write it becomes one node: as text, and with equal results."""

import pytest

from pliant.compiler.fusion.fuse_gelu import fuse_gelu
from tests.compiler.passes.chains import Chain, assert_same, lines


def _erf(c: Chain, order: str) -> str:
    scaled = c.add("u", "Div", "x", 2**0.5) if order != "mul" else c.add("u", "Mul", 0.5**0.5, "x")
    one = c.add("a", "Add", c.add("e", "Erf", scaled), 1.0)
    if order == "late":
        return c.add("y", "Mul", c.add("p", "Mul", "x", one), 0.5)
    if order == "half":
        return c.add("y", "Mul", c.add("h", "Mul", 0.5, one), "x")
    return c.add("y", "Mul", c.add("h", "Mul", "x", 0.5), one)


def _tanh(c: Chain, order: str) -> str:
    square = c.add("s", "Mul", "x", "x")
    cube = c.add("c", "Mul", square, "x") if order == "late" else c.add("c", "Pow", "x", 3.0)
    inner = c.add("i", "Add", "x", c.add("k", "Mul", cube, 0.044715))
    one = c.add("a", "Add", 1.0, c.add("t", "Tanh", c.add("u", "Mul", inner, 0.7978845608028654)))
    return c.add("y", "Mul", c.add("h", "Mul", 0.5, "x"), one)


@pytest.mark.parametrize("order", ["late", "half", "early", "mul"])
@pytest.mark.parametrize("form", ["none", "tanh"])
def test_every_order_of_its_products_is_gelu(form: str, order: str) -> None:
    """torch's two exporters, TensorFlow's and hand-written graphs multiply in different orders."""
    chain = Chain(x=(3, 5))
    graph = chain.graph((_erf if form == "none" else _tanh)(chain, order))
    fused = fuse_gelu(graph)
    assert f"y = Gelu <approximate={form!r}> (x)" in lines(fused)
    assert_same(fused, chain)


def test_what_only_looks_like_gelu_stays() -> None:
    """Another constant is another function."""
    chain = Chain(x=(3, 5))
    one = chain.add("a", "Add", chain.add("e", "Erf", chain.add("u", "Div", "x", 1.4)), 1.0)
    graph = chain.graph(chain.add("y", "Mul", chain.add("p", "Mul", "x", one), 0.5))
    assert fuse_gelu(graph) is graph


def test_an_inner_tensor_that_is_read_elsewhere_stays() -> None:
    """The erf itself is an output here."""
    chain = Chain(x=(3, 5))
    graph = chain.graph(_erf(chain, "late"), "a")
    assert fuse_gelu(graph) is graph
