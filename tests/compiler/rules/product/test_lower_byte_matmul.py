"""Products with weights in bytes, against float64 on the rounded weights and activations."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import make_image
from pliant.compiler.passes.byte_weights import byte_weights
from pliant.compiler.rules.product.byte_matrix import round_columns
from pliant.errors import GraphError
from pliant.ir.graph import Attribute, Graph, Node, TensorType
from pliant.kernels.coded.int8_form import resident_form
from pliant.kernels.emit.isa import Isa, host_isa
from pliant.models.encoder.encoder_graph import ComputeDtype
from pliant.run.graph.array_stage import open_image
from tests.compiler.rules.product.test_lower_bf16_matmul import graph_of, normal
from tests.compiler.rules.run_node import machine
from tests.kernels import reference
from tests.rows import INTEGER_ROWS, integer_name

HERE = host_isa()
COMPUTE: tuple[ComputeDtype, ...] = ("fp32", "int8")
TOLERANCE = {"rtol": 2e-5, "atol": 2e-5}
"""Sums in float32 of some hundred products; those of int8 are exact, then scaled."""


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the session, so that no kernel is compiled twice."""
    return tmp_path_factory.mktemp("kernels")


def run(
    graph: Graph, feeds: Mapping[str, np.ndarray], compute: ComputeDtype, n_threads: int = 2,
    isa: Isa = HERE, cache: Path | None = None,
) -> np.ndarray:  # fmt: skip
    """The product of a graph with one node, its weights in bytes."""
    made = byte_weights(graph, compute)
    ops = ["ByteMatMul"] if compute == "fp32" else ["QuantizeRows", "ByteMatMulInteger"]
    assert [node.op for node in made.nodes] == ops
    library, pool = machine(isa, cache)
    return open_image(make_image(made, Target(isa, n_threads)), pool, library).run(dict(feeds))["y"]


def wanted(a: np.ndarray, b: np.ndarray, compute: ComputeDtype, isa: Isa = HERE) -> np.ndarray:
    """a @ b in float64, rounded as the processor's form says."""
    form = resident_form(isa)
    most = 127 if compute == "fp32" else form.weight
    largest = np.abs(b).max(0)
    step = (largest / np.float32(most)).astype(np.float32)
    with np.errstate(invalid="ignore"):
        whole = np.where(step > 0, np.rint(b / step), 0.0)
    weights = whole.astype(np.float64) * step
    flat = a.reshape(-1, a.shape[-1])
    if compute == "int8":
        flat = _rounded(flat, isa)
    return (flat.astype(np.float64) @ weights).reshape(*a.shape[:-1], b.shape[1])


def _rounded(a: np.ndarray, isa: Isa) -> np.ndarray:
    """Rows in whole steps times what one is worth, in float32 as the kernel computes: a tie rounds alike."""
    form, zero = resident_form(isa), np.float32(0)
    low = np.minimum(a.min(-1, keepdims=True), zero)
    high = np.maximum(a.max(-1, keepdims=True), zero)
    levels = np.float32(2 * form.activation + 1 if form.is_bytes else form.activation)
    size = high - low if form.is_bytes else np.maximum(high, -low)
    by = levels / np.maximum(size, np.float32(1e-30))
    most = levels + np.rint(low * by) if form.is_bytes else levels
    q = np.minimum(np.rint(a * by), most)
    return q.astype(np.float64) * (size * (np.float32(1) / levels))


@pytest.mark.parametrize("isa", INTEGER_ROWS, ids=integer_name)
@pytest.mark.parametrize("rows", [1, 21])
def test_int8_is_what_its_integers_say_on_every_row(rows: int, isa: Isa, cache: Path) -> None:
    """Packed for each row as its instructions want it."""
    a, b = normal(rows, 100), normal(100, 70)
    y = run(graph_of(a, b), {"a": a}, "int8", isa=isa, cache=cache)
    np.testing.assert_allclose(y, wanted(a, b, "int8", isa), **TOLERANCE)


@pytest.mark.parametrize("isa", INTEGER_ROWS, ids=integer_name)
@pytest.mark.parametrize("depth", [8256, 8320, 66_311])
def test_sums_of_the_largest_products_do_not_overflow(depth: int, isa: Isa, cache: Path) -> None:
    """All rounded to their largest integers, both signs: 32 bits hold each sum, in fewer steps if need be."""
    a, b = np.ones((2, depth), np.float32), np.ones((depth, 16), np.float32)
    a[1] = -1
    y = run(graph_of(a, b), {"a": a}, "int8", isa=isa, cache=cache)
    np.testing.assert_allclose(y, a.astype(np.float64) @ b, rtol=1e-5)


def test_longer_sums_than_int32_holds_are_float() -> None:
    """255 * 127 times K beyond 66 311 exceeds int32: activations stay in float32."""
    a, b = np.ones((1, 66_400), np.float32), np.ones((66_400, 16), np.float32)
    graph = graph_of(a, b)
    assert [node.op for node in byte_weights(graph, "int8").nodes] == ["ByteMatMul"]
    library, pool = machine(HERE)
    y = open_image(make_image(byte_weights(graph, "int8"), Target(HERE, 2)), pool, library).run({"a": a})["y"]
    np.testing.assert_allclose(y, np.full((1, 16), 66_400.0), rtol=1e-5)


@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(1, 40),
    depth=st.integers(32, 200),
    columns=st.integers(16, 300),
    compute=st.sampled_from(COMPUTE),
)
def test_any_shape(rows: int, depth: int, columns: int, compute: ComputeDtype) -> None:
    """Depths that are no whole turn, columns that are no whole group, panel or chunk."""
    depth = max(depth, -(-4096 // columns))
    a, b = normal(rows, depth), normal(depth, columns, seed=columns)
    y = run(graph_of(a, b), {"a": a}, compute)
    np.testing.assert_allclose(y, wanted(a, b, compute), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("compute", COMPUTE)
def test_threads_change_nothing(compute: ComputeDtype, cache: Path) -> None:
    """A column is summed by one thread, whichever it is."""
    a, b = normal(37, 320), normal(320, 200)
    one, two = (run(graph_of(a, b), {"a": a}, compute, n, cache=cache) for n in (1, 2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("compute", COMPUTE)
@pytest.mark.parametrize("name", ["", "gelu"])
def test_what_follows_the_product_is_kept(name: str, compute: ComputeDtype, cache: Path) -> None:
    """Bias, residual and activation, of rows in more dimensions than one."""
    a, b = normal(2, 5, 128), normal(128, 37)
    bias, residual = normal(37, seed=1), normal(2, 5, 37, seed=2)
    attributes: dict[str, Attribute] = {"activation": name} if name else {}
    extra = {} if name else {"residual": residual}
    graph = graph_of(a, b, attributes=attributes, bias=bias, **extra)
    y = run(graph, {"a": a, **({"r": residual} if extra else {})}, compute, cache=cache)
    sums = wanted(a, b, compute).reshape(10, 37)
    added = None if name else residual.reshape(10, 37)
    expected = reference.gemm(np.eye(10), sums, bias, name or None, added)
    np.testing.assert_allclose(y.reshape(10, 37), expected, **TOLERANCE)


@pytest.mark.parametrize("compute", COMPUTE)
def test_gemm_with_its_factor_and_a_turned_matrix(compute: ComputeDtype, cache: Path) -> None:
    """alpha is part of the weights, rounded with them; transB reads columns."""
    a, b = normal(7, 96), normal(96, 80)
    attributes: dict[str, Attribute] = {"transB": 1, "alpha": 0.37}
    graph = graph_of(a, np.ascontiguousarray(b.T), op="Gemm", attributes=attributes, columns=80)
    y = run(graph, {"a": a}, compute, cache=cache)
    np.testing.assert_allclose(y, wanted(a, b * np.float32(0.37), compute), **TOLERANCE)


def test_integers_with_scales_are_rounded_to_columns(cache: Path) -> None:
    """A model whose weights are bytes with a scale for each block: int8 products round them anew."""
    a, rng = normal(6, 96), np.random.default_rng(3)
    codes = rng.integers(-128, 128, (96, 80)).astype(np.int8)
    scales, zeros = np.abs(normal(3, 80, seed=4)) * np.float32(0.01), rng.integers(-9, 9, (3, 80))
    b = (codes - np.repeat(zeros, 32, 0)).astype(np.float32) * np.repeat(scales, 32, 0)
    known = {"b": codes, "s": scales, "z": zeros.astype(np.int16)}
    types = {"a": TensorType("float32", (6, 96)), "y": TensorType("float32", (6, 80))}
    types |= {x: TensorType(str(array.dtype), array.shape) for x, array in known.items()}
    attributes: dict[str, Attribute] = {"b_view": (0, 96, 80, 80, 1), "element": "int16"}
    node = Node("ScaledMatMul", ("a", "b", "s", "z"), ("y",), attributes, "it")
    graph = Graph((node,), ("a",), ("y",), types, known)
    y = run(graph, {"a": a}, "int8", cache=cache)
    np.testing.assert_allclose(y, wanted(a, b, "int8"), **TOLERANCE)
    with pytest.raises(GraphError, match="no product with a constant matrix"):
        byte_weights(graph, "fp32")  # they are integers with scales already


@pytest.mark.parametrize("compute", COMPUTE)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_column_that_is_not_finite_answers_nan(value: float, compute: ComputeDtype, cache: Path) -> None:
    """Bytes hold neither NaN nor infinity: the column's step carries them on, others keep theirs."""
    a, b = normal(3, 64), normal(64, 80)
    b[5, 11] = value
    y = run(graph_of(a, b), {"a": a}, compute, cache=cache)
    np.testing.assert_array_equal(np.isnan(y).all(0), np.arange(80) == 11)
    assert np.isfinite(np.delete(y, 11, 1)).all()


def test_columns_are_rounded_by_their_own_largest() -> None:
    """A column of zeros has a step of 0; tiny ones and large ones keep their ratio."""
    matrix = normal(64, 3) * np.array([1.0, 0.0, 1e-30], np.float32)
    whole, steps = round_columns(matrix, 127)
    assert np.abs(whole).max(0).tolist() == [127, 0, 127]
    assert steps[1] == 0.0
    np.testing.assert_allclose(whole * steps, matrix, atol=0.5001 * steps.max())


def test_products_of_one_tensor_share_its_rounding() -> None:
    """Query, key and value read the same rows."""
    b = normal(64, 64)
    types = {x: TensorType("float32", (3, 64)) for x in "axyz"} | {"b": TensorType("float32", (64, 64))}
    nodes = tuple(Node("MatMul", ("a", "b"), (y,), {}, y) for y in "xyz")
    made = byte_weights(Graph(nodes, ("a",), tuple("xyz"), types, {"b": b}), "int8")
    assert [node.op for node in made.nodes] == ["QuantizeRows", *["ByteMatMulInteger"] * 3]


def test_a_graph_without_a_large_constant_matrix_is_refused() -> None:
    """Bytes would do nothing there, and say nothing."""
    a, b = normal(3, 16), normal(16, 16)
    with pytest.raises(GraphError, match=r"no product with a constant matrix .* weights='fp32'"):
        byte_weights(graph_of(a, b))
