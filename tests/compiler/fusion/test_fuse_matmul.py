"""Products take what follows them along: as text, and with equal results."""

import numpy as np
import pytest

from pliant.compiler.fusion.fuse_matmul import fuse_matmul
from tests.compiler.passes.chains import Chain, assert_same, lines


def _chain() -> Chain:
    c = Chain(x=(2, 5, 8), r=(2, 5, 12))
    c.constant("w", np.random.default_rng(1).standard_normal((8, 12)))
    c.constant("b", np.arange(12) / 12)
    return c


def test_bias_and_activation_ride_along() -> None:
    """A transformer's first feed-forward layer."""
    c = _chain()
    y = c.add("y", "Gelu", c.add("s", "Add", "b", c.add("p", "MatMul", "x", "w")))
    fused = fuse_matmul(c.graph(y))
    assert lines(fused) == ["y = FusedMatMul <activation='gelu'> (x, w, b)"]
    assert_same(fused, c)


def test_bias_and_residual_ride_along() -> None:
    """And its second one."""
    c = _chain()
    y = c.add("y", "Add", c.add("s", "Add", c.add("p", "MatMul", "x", "w"), "b"), "r")
    fused = fuse_matmul(c.graph(y))
    assert lines(fused) == ["y = FusedMatMul (x, w, b, r)"]
    assert_same(fused, c)


@pytest.mark.parametrize("lead", [(), (2,)])
def test_what_is_added_to_a_product_by_a_vector_is_no_bias(lead: tuple[int, ...]) -> None:
    """The sum's last axis is the product's rows: each has its own number."""
    c = Chain(x=(*lead, 5, 8), v=(8,), r=(5,))
    c.constant("b", np.arange(5) / 5)
    y = c.add("y", "Add", c.add("s", "Add", c.add("p", "MatMul", "x", "v"), "b"), "r")
    fused = fuse_matmul(c.graph(y))
    assert_same(fused, c)
    assert [node.op for node in fused.nodes] == (["MatMul", "Add", "Add"] if lead else ["FusedMatMul", "Add"])


def test_of_two_products_added_one_takes_the_other() -> None:
    """GPT-NeoX adds attention and feed-forward: neither may be lost, and order must hold."""
    c = _chain()
    p = c.add("p", "MatMul", "x", "w")
    q = c.add("q", "Add", c.add("q0", "MatMul", "x", "w"), "b")
    y = c.add("y", "Add", q, p)
    fused = fuse_matmul(c.graph(y))
    assert len(fused.nodes) == 2
    assert_same(fused, c)


def test_products_of_one_row_that_are_added_share_no_operator() -> None:
    """A recurrent cell at batch 1: each product could take the other as its bias, and the Tanh after it."""
    c = Chain(x=(1, 8), h=(1, 12))
    random = np.random.default_rng(1)
    w, u = (c.constant(name, random.standard_normal((n, 12)) / 4) for name, n in (("w", 8), ("u", 12)))
    y = c.add("y", "Tanh", c.add("s", "Add", c.add("p", "MatMul", "x", w), c.add("q", "MatMul", "h", u)))
    fused = fuse_matmul(c.graph(y))
    assert [node.op for node in fused.nodes] == ["MatMul", "FusedMatMul"]
    assert_same(fused, c)


def test_what_is_read_elsewhere_stays() -> None:
    """The product is an output of its own."""
    c = _chain()
    y = c.add("y", "Relu", c.add("p", "MatMul", "x", "w"))
    graph = c.graph(y, "p")
    assert fuse_matmul(graph) is graph


def test_an_add_that_broadcasts_the_product_stays() -> None:
    """The sum is larger than the product."""
    c = Chain(x=(5, 8), r=(2, 5, 12))
    c.constant("w", np.random.default_rng(1).standard_normal((8, 12)))
    graph = c.graph(c.add("y", "Add", c.add("p", "MatMul", "x", "w"), "r"))
    assert fuse_matmul(graph) is graph


def test_operands_are_read_through_transposes_and_slices() -> None:
    """Q K^T of heads cut from one tensor: nothing is moved."""
    c = Chain(x=(2, 5, 24))
    q = c.add("q", "Slice", "x", [0], [12], [2])
    k = c.add("k", "Slice", "x", [12], [24], [2])
    heads = [c.add(f"{x}h", "Reshape", x, [2, 5, 3, 4]) for x in (q, k)]
    a = c.add("a", "Transpose", heads[0], perm=[0, 2, 1, 3])
    b = c.add("b", "Transpose", heads[1], perm=[0, 2, 3, 1])
    fused = fuse_matmul(c.graph(c.add("y", "MatMul", a, b)))
    node = next(node for node in fused.nodes if node.op == "FusedMatMul")
    assert node.inputs == ("x", "x")
    assert node.attributes["b_view"] == (12, 2, 3, 4, 5, 120, 4, 1, 24)
    assert_same(fused, c)


def test_operands_are_read_through_regular_gathers() -> None:
    """Windows of rows, every second column from the end, one of two stacked matrices."""
    c = Chain(x=(2, 9, 8))
    c.constant("at", 2 * np.arange(3)[:, None] + np.arange(4), "int64")
    c.add("one", "Gather", "x", c.constant("second", 1, "int64"), axis=0)
    c.add("windows", "Gather", "one", "at", axis=0)
    c.add("rows", "Reshape", "windows", [3, 32])
    c.add("back", "Transpose", "rows", perm=[1, 0])
    w = c.constant("w", np.random.default_rng(1).standard_normal((5, 32)))
    fused = fuse_matmul(c.graph(c.add("y", "MatMul", w, "back")))
    assert lines(fused)[-1] == "y = FusedMatMul <b_view=(72, 32, 3, 1, 16)> (w, x)"
    assert_same(fused, c)


@pytest.mark.parametrize("places", [[0, 1, 3], [3, 2, 1]])
def test_operands_gathered_without_a_rule_or_backwards_are_copied(places: list[int]) -> None:
    """No strides say where they are, or none that kernels know."""
    c = Chain(x=(9, 8))
    c.add("some", "Gather", "x", places, axis=0)
    w = c.constant("w", np.random.default_rng(1).standard_normal((8, 5)))
    graph = c.graph(c.add("y", "MatMul", "some", w))
    assert fuse_matmul(graph) is graph


def test_gemm_keeps_its_transposes() -> None:
    """Linear layers of two-dimensional inputs."""
    c = Chain(x=(5, 8))
    c.constant("w", np.random.default_rng(1).standard_normal((12, 8)))
    c.constant("b", np.arange(12) / 12)
    y = c.add("y", "Tanh", c.add("p", "Gemm", "x", "w", "b", transB=1, alpha=0.5))
    fused = fuse_matmul(c.graph(y))
    assert lines(fused) == [
        "y = FusedMatMul <activation='tanh', alpha=0.5, b_view=(0, 8, 12, 1, 8)> (x, w, b)"
    ]
    assert_same(fused, c)
