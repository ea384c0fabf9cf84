"""Products with coded weights, against numpy on what the codes stand for; int8 against its own integers."""

from collections.abc import Mapping
from math import erf, sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import make_image
from pliant.compiler.passes.code_weights import code_weights
from pliant.compiler.rewrite.coder import CachingCoder
from pliant.ir.graph import Attribute, Graph, Node, TensorType
from pliant.kernels.coded.int8_form import int8_form
from pliant.kernels.emit.isa import (
    AVX2,
    AVX2_VNNI,
    AVX512,
    AVX512_VBMI,
    AVX512_VNNI,
    X86_64,
    Isa,
    to_portable,
)
from pliant.run.graph.array_stage import open_image
from pliant.store.coding.matrix import code_matrix
from pliant.store.coding.quantize import fit
from tests.compiler.rules.run_node import machine
from tests.store.coding.test_matrix import meant, weights

ISAS = [AVX2, X86_64, *(to_portable(isa) for isa in (AVX512, AVX2_VNNI, AVX512_VNNI, AVX512_VBMI))]


def named(isa: Isa) -> str:
    return f"{isa.name}{isa.features}"


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the session, so that no kernel is compiled twice."""
    return tmp_path_factory.mktemp("kernels")


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run(
    a: np.ndarray,
    b: np.ndarray,
    bits: int,
    *,
    isa: Isa = AVX2,
    is_int8: bool = False,
    attributes: Mapping[str, Attribute] | None = None,
    bias: np.ndarray | None = None,
    residual: np.ndarray | None = None,
    op: str = "FusedMatMul",
    shape: tuple[int, ...] = (),
    cache: Path | None = None,
) -> np.ndarray:
    """The product, its constant b coded; nothing of b in float32 is left in the graph."""
    given = {"a": a, "b": b} | {x: v for x, v in (("c", bias), ("r", residual)) if v is not None}
    inputs = ["a", "b", "c" if bias is not None else "", "r" if residual is not None else ""]
    while not inputs[-1]:
        inputs.pop()
    types = {x: TensorType("float32", array.shape) for x, array in given.items()}
    types["y"] = TensorType("float32", shape or (*a.shape[:-1], b.shape[-1]))
    node = Node(op, tuple(inputs), ("y",), attributes or {}, "it")
    constants = {x: given[x] for x in ("b", "c") if x in given}
    feeds = {x: array for x, array in given.items() if x not in constants}
    graph = Graph((node,), tuple(feeds), ("y",), types, constants)
    coded = code_weights(graph, CachingCoder(bits), "int8" if is_int8 else "fp32")
    assert "b" not in coded.types
    assert coded.nodes[-1].op == ("PlaneMatMulInteger" if is_int8 else "PlaneMatMul")
    library, pool = machine(isa, cache)
    return open_image(make_image(coded, Target(isa, 2)), pool, library).run(feeds)["y"]


def integers(a: np.ndarray, b: np.ndarray, bits: int, isa: Isa) -> np.ndarray:
    """a @ b as int8 computes it: a and the codebook in whole steps, what is beyond in float."""
    form, coded, fitted = int8_form(isa), code_matrix(b, bits), fit(b.reshape(-1))
    step = np.float32(coded.largest / min(form.weight, 127))
    book = np.rint(coded.codebook * (np.float32(1) / step))  # a half rounds as the kernels' does
    book = book[fitted.codes >> (6 - bits)]
    exact = b.reshape(-1) / step
    most = form.most_steps(coded.segment_rows * coded.n_segments)
    kept = np.clip(exact, -most, most)
    is_beyond = np.abs(exact) > most
    steps = np.where(fitted.is_outlier, np.where(is_beyond, exact, np.rint(kept)), book).reshape(b.shape)
    q, scales = rounded(a, isa)
    product: np.ndarray = (q @ steps) * scales * step
    return product


def rounded(a: np.ndarray, isa: Isa) -> tuple[np.ndarray, np.ndarray]:
    """Whole steps of each row and their worth, in float32 as the kernel computes: a tie rounds alike."""
    form, zero = int8_form(isa), np.float32(0)
    low = np.minimum(a.min(-1, keepdims=True), zero)
    high = np.maximum(a.max(-1, keepdims=True), zero)
    levels = np.float32(2 * form.activation + 1 if form.is_bytes else form.activation)
    size = high - low if form.is_bytes else np.maximum(high, -low)
    by = levels / np.maximum(size, np.float32(1e-30))
    least = np.rint(low * by) if form.is_bytes else -levels
    q = np.minimum(np.rint(a * by), levels + least) if form.is_bytes else np.rint(a * by)
    return q.astype(np.float64), size * (np.float32(1) / levels)


def has_tie(b: np.ndarray, bits: int, isa: Isa) -> bool:
    """Whether a centroid lies in the middle between two whole steps, where the last bit decides."""
    coded = code_matrix(b, bits)
    steps = coded.codebook * (min(int8_form(isa).weight, 127) / coded.largest)
    return bool((np.abs(np.abs(steps) % 1 - 0.5) < 1e-4).any())


@pytest.mark.parametrize("isa", ISAS, ids=named)
@pytest.mark.parametrize("bits", range(1, 7))
def test_every_bitwidth_on_every_isa(bits: int, isa: Isa, cache: Path) -> None:
    """Against float64 on the weights that the codes stand for."""
    a, b = normal(13, 96), weights(96, 80)
    y = run(a, b, bits, isa=isa, cache=cache)
    np.testing.assert_allclose(y, a.astype(np.float64) @ meant(b, bits), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("isa", ISAS, ids=named)
@pytest.mark.parametrize("bits", [1, 2, 4, 5, 6])
def test_int8_is_what_its_integers_say(bits: int, isa: Isa, cache: Path) -> None:
    """Sums of integers are exact; what is left is float32's rounding of scales, and of large outliers."""
    a, b = normal(13, 96), weights(96, 80)
    y = run(a, b, bits, isa=isa, is_int8=True, cache=cache)
    np.testing.assert_allclose(y, integers(a, b, bits, isa), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("isa", ISAS, ids=named)
def test_int8_of_a_sparse_matrix_keeps_its_weights(isa: Isa, cache: Path) -> None:
    """All weights but the outliers are 0, and so is the codebook: steps follow the outliers."""
    a, b = normal(5, 256), np.zeros((256, 64), np.float32)
    np.put_along_axis(b, np.argsort(normal(256, 64, seed=1), 0)[:4], 0.25, 0)
    y = run(a, b, 6, isa=isa, is_int8=True, cache=cache)
    np.testing.assert_allclose(y, integers(a, b, 6, isa), rtol=1e-5, atol=1e-5)
    # Four activations, each rounded by at most half of a row's 127 steps.
    bound = 4 * 0.25 * (a.max() - a.min()) / 127
    np.testing.assert_allclose(y, a.astype(np.float64) @ b, atol=bound)


@pytest.mark.parametrize("isa", ISAS, ids=named)
@pytest.mark.parametrize("n_large", [1, 40, 2000])
def test_int8_of_outliers_far_beyond_the_rest(n_large: int, isa: Isa, cache: Path) -> None:
    """Outliers of 100 000 steps, alone, or so many in a column that a sum of their steps would overflow."""
    a, b = np.abs(normal(5, 4096)), normal(4096, 48) * np.float32(1e-4)
    b[:n_large, 17] = 0.5
    y = run(a, b, 4, isa=isa, is_int8=True, attributes={"activation": "relu"}, cache=cache)
    wanted = np.maximum(integers(a, b, 4, isa), 0)
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS, ids=named)
@pytest.mark.parametrize("depth", [8320, 66_311])
def test_sums_of_the_largest_products_do_not_overflow(depth: int, isa: Isa, cache: Path) -> None:
    """All rounded to their largest integers, both signs: 32 bits hold each sum, in fewer steps if need be."""
    a, b = np.ones((2, depth), np.float32), np.ones((depth, 16), np.float32)
    a[1] = -1
    y = run(a, b, 2, isa=isa, is_int8=True, cache=cache)
    np.testing.assert_allclose(y, a.astype(np.float64) @ b, rtol=1e-5)


def test_longer_sums_than_int32_holds_are_float() -> None:
    """255 * 127 times K beyond 66 311 exceeds int32: activations stay in float32."""
    a, b = np.ones((1, 66_400), np.float32), np.ones((66_400, 16), np.float32)
    types = {x: TensorType("float32", shape) for x, shape in (("a", a.shape), ("b", b.shape), ("y", (1, 16)))}
    graph = Graph((Node("MatMul", ("a", "b"), ("y",), {}, "it"),), ("a",), ("y",), types, {"b": b})
    assert [node.op for node in code_weights(graph, CachingCoder(2), "int8").nodes] == ["PlaneMatMul"]


@settings(max_examples=25)
@given(st.integers(1, 20), st.integers(32, 150), st.integers(16, 90), st.integers(1, 6), st.booleans())
def test_any_shape(rows: int, depth: int, columns: int, bits: int, is_int8: bool) -> None:
    """Rows, K and N that fill no tile, group or segment; nothing beyond them is read into the result."""
    depth = max(depth, -(-4096 // columns))
    a, b = normal(rows, depth), weights(depth, columns)
    assume(not (is_int8 and has_tie(b, bits, AVX2)))
    wanted = integers(a, b, bits, AVX2) if is_int8 else a.astype(np.float64) @ meant(b, bits)
    np.testing.assert_allclose(run(a, b, bits, is_int8=is_int8), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize("isa", [AVX2, X86_64], ids=lambda isa: isa.name)
def test_deep_and_tall(isa: Isa, is_int8: bool, cache: Path) -> None:
    """K in several segments and blocks, more rows than a block has, no multiple of anything."""
    a, b = normal(530, 4500), weights(4500, 37)
    wanted = integers(a, b, 5, isa) if is_int8 else a.astype(np.float64) @ meant(b, 5)
    bound = 1e-5 * np.sqrt((wanted**2).mean()) * 10
    np.testing.assert_allclose(
        run(a, b, 5, isa=isa, is_int8=is_int8, cache=cache), wanted, rtol=1e-4, atol=bound
    )


@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize("columns", [64, 37])
@pytest.mark.parametrize("activation", ["", "gelu", "gelu_tanh", "relu", "tanh"])
def test_what_follows_the_product_is_kept(activation: str, columns: int, is_int8: bool) -> None:
    """Bias and activation, or bias and residual, as FusedMatMul has them, at whole and ragged columns."""
    a, b, bias = normal(7, 128), weights(128, columns), normal(columns, seed=1)
    residual = None if activation else normal(7, columns, seed=2)
    y = run(a, b, 6, is_int8=is_int8, bias=bias, residual=residual, attributes={"activation": activation})
    sums = integers(a, b, 6, AVX2) if is_int8 else a.astype(np.float64) @ meant(b, 6)
    functions = {
        "": lambda x: x if residual is None else x + residual,
        "relu": lambda x: np.maximum(x, 0),
        "tanh": np.tanh,
        "gelu": np.vectorize(lambda x: 0.5 * x * (1 + erf(x / sqrt(2)))),
        "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    }
    np.testing.assert_allclose(y, functions[activation](sums + bias), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_int8", [False, True])
def test_operands_seen_through_views(is_int8: bool) -> None:
    """A batch, columns of a wider tensor, and weights that stand transposed (a torch Linear's Gemm)."""
    x, b = normal(2, 5, 100), weights(70, 64)
    a = x[:, :, 20:84]
    view = (20, 2, 5, 64, 500, 100, 1)
    attributes: dict[str, Attribute] = {"a_view": view, "b_view": (0, 64, 70, 1, 64)}
    y = run(x, b, 6, is_int8=is_int8, attributes=attributes, shape=(2, 5, 70))
    flat, turned = np.ascontiguousarray(a).reshape(10, 64), np.ascontiguousarray(b.T)
    wanted = integers(flat, turned, 6, AVX2) if is_int8 else flat.astype(np.float64) @ meant(b, 6).T
    np.testing.assert_allclose(y.reshape(10, 70), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_int8", [False, True])
def test_gemm_with_its_factor(is_int8: bool) -> None:
    """alpha is part of what is coded; transB is how the weights are read."""
    a, b, bias = normal(3, 64), weights(70, 64), normal(70, seed=3)
    attributes: dict[str, Attribute] = {"transB": 1, "alpha": 0.5}
    y = run(a, b, 6, is_int8=is_int8, op="Gemm", attributes=attributes, bias=bias, shape=(3, 70))
    turned = np.ascontiguousarray(b.T) * np.float32(0.5)
    wanted = integers(a, turned, 6, AVX2) if is_int8 else a.astype(np.float64) @ meant(turned, 6)
    np.testing.assert_allclose(y, wanted + bias, rtol=1e-4, atol=1e-4)


def test_a_matrix_of_few_values_is_exact() -> None:
    """At most 64 different weights have a centroid each; without outliers there is nothing to patch."""
    b = np.random.default_rng(0).integers(-8, 8, (64, 64)).astype(np.float32) / 64
    a = normal(4, 64)
    np.testing.assert_allclose(run(a, b, 6), a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)


def test_nan_in_a_row_stays_in_its_row() -> None:
    """Integers hold no NaN: int8 carries it in the row's scale."""
    a = normal(3, 64)
    a[1, 5] = np.nan
    for is_int8 in (False, True):
        y = run(a, weights(64, 70), 6, is_int8=is_int8)
        np.testing.assert_array_equal(np.isnan(y).all(1), [False, True, False])
        assert np.isfinite(y[[0, 2]]).all()
