"""Products take integer weights as they are stored: as text, and with equal results."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pliant.compiler.fusion.fuse_matmul import fuse_matmul
from pliant.compiler.fusion.fuse_scales import fuse_scales
from pliant.compiler.passes.dead_code import drop_dead_code
from pliant.ir.graph import Graph
from tests.compiler.passes.chains import Chain, assert_same

K, N, FLOAT = 96, 48, 1


def _weights(
    c: Chain, *shape: int, dtype: Any = "int8", scales: tuple[int, ...] = (), name: str = "w"
) -> str:
    random = np.random.default_rng(0)
    values = random.standard_normal(shape) if "float" in str(dtype) else random.integers(0, 120, shape)
    real = c.add(f"{name}.f", "Cast", c.constant(f"{name}.q", values, dtype), to=FLOAT)
    return c.add(name, "Mul", real, c.constant(f"{name}.s", (random.random(scales) + 0.5) / 100))


def _ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def _fused(graph: Graph) -> Graph:
    return drop_dead_code(fuse_scales(fuse_matmul(graph)))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float16", "bfloat16"])
def test_a_product_with_all_that_follows_reads_the_codes(dtype: str) -> None:
    """Cast and Mul are gone; bias and residual stay where they were."""
    c = Chain(x=(2, 3, K), r=(2, 3, N))
    w = _weights(c, K, N, dtype=ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype, scales=(1, N))
    bias = c.constant("b", np.linspace(-1, 1, N))
    y = c.add("y", "Add", c.add("z", "Add", c.add("p", "MatMul", "x", w), bias), "r")
    fused = _fused(c.graph(y))
    (node,) = fused.nodes
    assert (node.op, node.inputs) == ("ScaledMatMul", ("x", "w.q", "y.scales", "", "b", "r"))
    assert node.attributes["element"] == ("int8" if dtype == "uint8" else dtype)
    assert "w.s" not in fused.constants
    assert_same(fused, c, 1e-4)


@pytest.mark.parametrize("zero", [113.0, 7.0])
def test_zero_points_are_taken_off_when_weights_are_packed(zero: float) -> None:
    """Codes less their zero point need 16 bits where they reach from one end of the byte to the other."""
    c = Chain(x=(5, K))
    q = c.constant("q", np.random.default_rng(0).integers(0, 256, (K, N)), "uint8")
    less = c.add("d", "Sub", c.add("f", "Cast", q, to=FLOAT), c.constant("z", np.full((1, N), zero)))
    fused = _fused(c.graph(c.add("y", "MatMul", "x", c.add("w", "Mul", less, 0.01))))
    assert fused.nodes[0].attributes["element"] == "int16"
    assert_same(fused, c, 1e-4)


@pytest.mark.parametrize("zero", [0, 3])
def test_products_that_share_weights_have_scales_of_their_own(zero: int) -> None:
    """One has a factor."""
    c = Chain(x=(5, 64))
    q = c.constant("q", np.random.default_rng(0).integers(-127, 128, (64, 64)), "int8")
    s = c.constant("s", np.linspace(0.01, 0.02, 64))
    w = c.add("w", "DequantizeLinear", q, s, c.constant("z", np.full(64, zero), "int8"), axis=1)
    y = c.add("y", "MatMul", "x", w)
    z = c.add("half", "Gemm", "x", w, alpha=0.5)
    fused = _fused(c.graph(y, z))
    assert _ops(fused) == ["ScaledMatMul"] * 2
    assert_same(fused, c, 1e-4)


@pytest.mark.parametrize("blocks", [1, 3, 6])
@pytest.mark.parametrize("way", ["MatMul", "Transpose", "Gemm"])
def test_scales_by_column_and_block_in_either_orientation(way: str, blocks: int) -> None:
    """torch keeps [out, in]: a transpose or Gemm's transB turns codes and scales alike."""
    c = Chain(x=(7, K))
    shape = (K, N) if way == "MatMul" else (N, K)
    axis = shape.index(K)
    by = [N, blocks] if axis else [blocks, N]
    q = c.constant("q", np.random.default_rng(0).integers(-127, 128, shape), "int8")
    z = c.constant("z", np.random.default_rng(2).integers(-1, 2, by), "int8")
    s = c.constant("s", np.random.default_rng(1).random(by) / 100)
    w = c.add("w", "DequantizeLinear", q, s, z, axis=axis, block_size=K // blocks)
    if way == "Gemm":
        y = c.add("y", "Gemm", "x", w, c.constant("b", np.ones(N)), transB=1, alpha=0.5)
    else:
        y = c.add("y", "MatMul", "x", c.add("t", "Transpose", w) if way == "Transpose" else w)
    fused = _fused(c.graph(y))
    assert _ops(fused) == ["ScaledMatMul"]
    assert_same(fused, c, 1e-4)


@pytest.mark.parametrize("way", ["groups", "rows of groups", "heads", "no codes"])
def test_weights_that_are_reshaped_after_scaling_stay_codes(way: str) -> None:
    """Quantizers scale groups [N, G, size], as a tensor of rank 3 or as rows, and join them afterwards."""
    c = Chain(x=(5, K))
    n_groups = K // 16
    shape = {"rows of groups": (N * n_groups, 16), "heads": (K, 4, N // 4)}.get(way, (N, n_groups, 16))
    if way == "heads":
        q = c.constant("q", np.random.default_rng(0).integers(-127, 128, shape), "int8")
        w = c.add("w", "DequantizeLinear", q, c.constant("s", np.float32(0.01)))
        matrix = c.add("m", "Reshape", w, [K, N])
    else:
        w = _weights(c, *shape, scales=(*shape[:-1], 1))
        w = c.add("offset", "Add", w, 0.25) if way == "no codes" else w
        matrix = c.add("t", "Transpose", c.add("m", "Reshape", w, [N, K]))
    graph = c.graph(c.add("y", "MatMul", "x", matrix))
    fused = _fused(graph)
    assert ("ScaledMatMul" in _ops(fused)) == (way != "no codes")
    assert_same(fused, c, 1e-4)


def test_other_weights_stay_as_they_are() -> None:
    """Zero points between integers, offsets, a scale for each weight, small matrices, weights on the left."""
    for case in ("half a zero", "offset", "a scale each", "small", "left"):
        c = Chain(x=(K, K))
        shape = (K, 4) if case == "small" else (K, K)
        w = _weights(c, *shape, scales=shape if case == "a scale each" else (1, 1))
        if case == "offset":
            w = c.add("v", "Add", w, 0.25)
        if case == "half a zero":
            w = c.add("v", "Mul", c.add("u", "Sub", "w.f", 0.5), 0.1)
        graph = c.graph(c.add("y", "MatMul", *((w, "x") if case == "left" else ("x", w))))
        assert fuse_scales(graph) is graph, case
