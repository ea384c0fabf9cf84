"""Which products take their weights in codes, and what they become: as text."""

import numpy as np
import pytest

from pliant.compiler.passes.code_weights import code_weights
from pliant.compiler.rewrite.coder import CachingCoder
from pliant.errors import GraphError
from pliant.ir.graph import Graph
from tests.compiler.passes.chains import Chain
from tests.store.coding.test_matrix import weights


def lines(graph: Graph) -> list[str]:
    return [str(node) for node in graph.nodes]


def test_products_take_codes_and_lookups_stay() -> None:
    """An embedding is read a few rows at a time; it stays as it is, mapped."""
    c = Chain(x=(3, 64))
    table = c.constant("table", weights(128, 64))
    looked_up = c.add("e", "Gather", table, [0, 5, 7])
    hidden = c.add("h", "Add", "x", looked_up)
    graph = c.graph(c.add("y", "MatMul", hidden, c.constant("w", weights(64, 80))))
    coded = code_weights(graph, CachingCoder(6))
    attributes = "largest={:.4f}, n_segments=1, segment_rows=64"
    (product,) = [node for node in coded.nodes if node.op == "PlaneMatMul"]
    largest = float(product.attributes["largest"])  # type: ignore[arg-type]
    assert lines(coded)[:2] == lines(graph)[:2]
    assert str(product).replace(repr(largest), f"{largest:.4f}") == (
        f"y = PlaneMatMul <{attributes.format(largest)}> (h, w|0|planes, w|0|codebook, "
        "w|0|outlier_rows, w|0|outlier_offsets, w|0|outlier_values)"
    )
    assert "table" in coded.constants
    assert "w" not in coded.types
    assert str(coded.types["w|0|planes"]) == "uint8[6,640]"


def test_int8_products_of_one_tensor_share_its_rounding() -> None:
    """Query, key and value of one hidden state: its rows are rounded once."""
    c = Chain(x=(2, 5, 64))
    outputs = [
        c.add(y, "MatMul", "x", c.constant(f"{y}.w", weights(64, 80, seed))) for seed, y in enumerate("qkv")
    ]
    coded = code_weights(c.graph(*outputs), CachingCoder(6), "int8")
    assert [node.op for node in coded.nodes] == ["QuantizeRows"] + ["PlaneMatMulInteger"] * 3
    assert str(coded.types[coded.nodes[0].outputs[0]]) == "int16[10,64]"
    assert {node.inputs[:2] for node in coded.nodes[1:]} == {coded.nodes[0].outputs}


def test_one_matrix_is_coded_once() -> None:
    """Two products with the same weights share them, and so do graphs for other shapes of one model."""
    c = Chain(x=(2, 64))
    w = c.constant("w", weights(64, 64))
    graph = c.graph(c.add("y", "MatMul", c.add("h", "MatMul", "x", w), w))
    coder = CachingCoder(4)
    first, second = code_weights(graph, coder), code_weights(graph, coder)
    assert first.nodes[0].inputs[1:] == first.nodes[1].inputs[1:]
    assert all(first.constants[x] is second.constants[x] for x in first.constants)


@pytest.mark.parametrize("shape", [(31, 512), (512, 15), (32, 127)])
def test_small_matrices_stay(shape: tuple[int, int]) -> None:
    """No whole group of 32 by 16, or fewer than 64 weights for each of 64 centroids."""
    c = Chain(x=(2, shape[0]))
    graph = c.graph(c.add("y", "MatMul", "x", c.constant("w", weights(*shape))))
    with pytest.raises(GraphError, match=r"no product .* 6-bit codes .* weights='fp32'"):
        code_weights(graph, CachingCoder(6))


def test_what_has_no_code_stays() -> None:
    """Weights that are not finite, and those of which most would be outliers; other products are coded."""
    c = Chain(x=(2, 64))
    endless = weights(64, 64)
    endless[0, 0] = np.inf
    wide = weights(64, 64, scale=30.0)
    h = c.add("h", "MatMul", "x", c.constant("fine", weights(64, 64)))
    graph = c.graph(
        c.add("a", "MatMul", h, c.constant("endless", endless)),
        c.add("b", "MatMul", h, c.constant("wide", wide)),
    )
    assert [node.op for node in code_weights(graph, CachingCoder(6)).nodes] == [
        "PlaneMatMul",
        "MatMul",
        "MatMul",
    ]


def test_other_products_stay() -> None:
    """Weights on the left, a product of two activations, batches of matrices."""
    c = Chain(x=(64, 64))
    left = c.add("l", "MatMul", c.constant("w", weights(64, 64)), "x")
    square = c.add("s", "MatMul", left, "x")
    stack = c.add("y", "MatMul", square, c.constant("many", weights(128, 64).reshape(2, 64, 64)))
    last = c.add("z", "MatMul", stack, c.constant("v", weights(64, 64)))
    ops = [node.op for node in code_weights(c.graph(last), CachingCoder(6)).nodes]
    assert ops == ["MatMul", "MatMul", "MatMul", "PlaneMatMul"]
