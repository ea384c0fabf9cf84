"""Products in bfloat16, against float64 on the numbers that both factors are rounded to."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import make_image
from pliant.compiler.passes.code_weights import code_weights
from pliant.compiler.passes.pair_weights import pair_weights
from pliant.compiler.rewrite.coder import CachingCoder
from pliant.errors import GraphError, InputError
from pliant.ir.graph import Attribute, Graph, Node, TensorType
from pliant.kernels.emit.isa import AVX512_BF16, AVX512_VBMI, Isa, to_portable
from pliant.run.graph.array_stage import open_image
from tests.compiler.rules.run_node import machine
from tests.kernels import reference
from tests.kernels.coded.test_gemm_bf16 import nearest
from tests.store.coding.test_matrix import meant, weights

BF16 = to_portable(AVX512_BF16)
TOLERANCE = {"rtol": 2e-5, "atol": 2e-5}
"""Sums in float32 of some hundred products."""


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the session, so that no kernel is compiled twice."""
    return tmp_path_factory.mktemp("kernels")


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def graph_of(
    a: np.ndarray,
    b: np.ndarray,
    *,
    attributes: Mapping[str, Attribute] | None = None,
    bias: np.ndarray | None = None,
    residual: np.ndarray | None = None,
    op: str = "FusedMatMul",
    columns: int | None = None,
) -> Graph:
    """One product, whose b and bias are constants."""
    arrays = {"a": a, "b": b} | {x: v for x, v in (("c", bias), ("r", residual)) if v is not None}
    inputs = ["a", "b", "c" if bias is not None else "", "r" if residual is not None else ""]
    while not inputs[-1]:
        inputs.pop()
    types = {x: TensorType("float32", array.shape) for x, array in arrays.items()}
    types["y"] = TensorType("float32", (*a.shape[:-1], columns or b.shape[-1]))
    node = Node(op, tuple(inputs), ("y",), attributes or {}, "it")
    constants = {x: arrays[x] for x in ("b", "c") if x in arrays}
    return Graph((node,), tuple(x for x in arrays if x not in constants), ("y",), types, constants)


def run(
    graph: Graph, feeds: Mapping[str, np.ndarray], bits: int | None, n_threads: int = 2,
    isa: Isa = BF16, cache: Path | None = None,
) -> np.ndarray:  # fmt: skip
    """The product from resident pairs, or from codes of `bits`."""
    made = pair_weights(graph) if bits is None else code_weights(graph, CachingCoder(bits), "bf16")
    assert [node.op for node in made.nodes] == [
        "RoundRows",
        "PairMatMul" if bits is None else "PlaneMatMulBfloat",
    ]
    library, pool = machine(isa, cache)
    return open_image(make_image(made, Target(isa, n_threads)), pool, library).run(dict(feeds))["y"]


def rounded(b: np.ndarray, bits: int | None) -> np.ndarray:
    """What the kernel multiplies with: b, or what its codes stand for, to the nearest bfloat16."""
    return nearest(b if bits is None else meant(b, bits))


@pytest.mark.parametrize("bits", [None, 1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("rows", [1, 13])
def test_resident_and_coded_weights(rows: int, bits: int | None, cache: Path) -> None:
    """Every bitwidth, outliers among them, and weights that stay as they are."""
    a, b = normal(rows, 96), weights(96, 80)
    y = run(graph_of(a, b), {"a": a}, bits, cache=cache)
    np.testing.assert_allclose(y, nearest(a) @ rounded(b, bits), **TOLERANCE)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 40),
    depth=st.integers(32, 200),
    columns=st.integers(16, 150),
    bits=st.sampled_from([None, 2, 6]),
)
def test_any_shape(rows: int, depth: int, columns: int, bits: int | None) -> None:
    """Depths that are no whole group, columns that are no whole group or panel."""
    depth = max(depth, -(-4096 // columns))
    a, b = normal(rows, depth), weights(depth, columns, seed=columns)
    y = run(graph_of(a, b), {"a": a}, bits)
    np.testing.assert_allclose(y, nearest(a) @ rounded(b, bits), **TOLERANCE)


@pytest.mark.parametrize("bits", [None, 4])
def test_threads_change_nothing(bits: int | None, cache: Path) -> None:
    """A column is summed by one thread, whichever it is."""
    a, b = normal(37, 320), weights(320, 200)
    one, two = (run(graph_of(a, b), {"a": a}, bits, n, cache=cache) for n in (1, 2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("bits", [None, 5])
@pytest.mark.parametrize("columns", [64, 37])
@pytest.mark.parametrize("name", ["", "gelu", "gelu_tanh", "relu", "tanh"])
def test_what_follows_the_product_is_kept(name: str, columns: int, bits: int | None, cache: Path) -> None:
    """Bias, residual and activation."""
    a, b = normal(2, 5, 128), weights(128, columns)
    bias, residual = normal(columns, seed=1), normal(2, 5, columns, seed=2)
    attributes = {"activation": name} if name else {}
    extra = {} if name else {"residual": residual}
    graph = graph_of(a, b, attributes=attributes, bias=bias, **extra)
    y = run(graph, {"a": a, **({"r": residual} if extra else {})}, bits, cache=cache)
    flat = None if name else residual.reshape(10, columns)
    wanted = reference.gemm(nearest(a.reshape(10, 128)), rounded(b, bits), bias, name or None, flat)
    np.testing.assert_allclose(y.reshape(10, columns), wanted, **TOLERANCE)


@pytest.mark.parametrize("bits", [None, 6])
def test_gemm_with_its_factor_and_a_turned_matrix(bits: int | None, cache: Path) -> None:
    """alpha is part of the weights, rounded with them; transB reads columns."""
    a, b = normal(7, 96), weights(96, 80)
    graph = graph_of(
        a, np.ascontiguousarray(b.T), op="Gemm", attributes={"transB": 1, "alpha": 0.37}, columns=80
    )
    y = run(graph, {"a": a}, bits, cache=cache)
    np.testing.assert_allclose(y, nearest(a) @ rounded(b * np.float32(0.37), bits), **TOLERANCE)


def test_products_of_one_tensor_share_its_rounding() -> None:
    """Query, key and value read the same rows."""
    b = weights(64, 64)
    types = {x: TensorType("float32", (3, 64)) for x in "axyz"} | {"b": TensorType("float32", (64, 64))}
    nodes = tuple(Node("MatMul", ("a", "b"), (y,), {}, y) for y in "xyz")
    made = pair_weights(Graph(nodes, ("a",), tuple("xyz"), types, {"b": b}))
    assert [node.op for node in made.nodes] == ["RoundRows", *["PairMatMul"] * 3]


def test_a_graph_without_a_large_constant_matrix_is_refused() -> None:
    """bfloat16 would do nothing there, and say nothing."""
    a, b = normal(3, 16), normal(16, 16)
    with pytest.raises(GraphError, match=r"no product with a constant matrix .* compute='fp32'"):
        pair_weights(graph_of(a, b))


def test_a_processor_without_products_of_bfloat16_refuses(cache: Path) -> None:
    """The message names what is missing, what there is, and what to ask instead."""
    a, b = normal(3, 96), weights(96, 80)
    said = r"avx512.* lacks .*avx512-bf16.*Instead of compute='bf16', give 'int8'"
    with pytest.raises(InputError, match=said):
        run(graph_of(a, b), {"a": a}, None, isa=to_portable(AVX512_VBMI), cache=cache)
