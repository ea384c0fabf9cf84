"""MatMul, Gemm and FusedMatMul through the compiler, against numpy in float64 and onnx's reference."""

from collections.abc import Sequence
from itertools import permutations
from math import erf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.compiler.executable.call import Target
from pliant.compiler.rules.rules import lower
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.emit.isa import AVX2, AVX512, X86_64, Isa, to_portable
from tests.compiler.rules.run_node import run_node, type_of

ISAS = [AVX2, X86_64, to_portable(AVX512)]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the session, so that no kernel is compiled twice."""
    return tmp_path_factory.mktemp("kernels")


def normal(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(shape)
    return (values * 3).astype(dtype) if dtype.startswith(("int", "uint")) else values.astype(dtype)


def run(
    op: str,
    inputs: Sequence[np.ndarray | None],
    shape: tuple[int, ...],
    attributes: dict[str, Any] | None = None,
    *,
    isa: Isa = AVX2,
    constants: Sequence[int] = (),
    cache: Path | None = None,
) -> np.ndarray:
    first = inputs[0]
    assert first is not None
    types = [TensorType(first.dtype.name, shape)]
    return run_node(op, inputs, attributes, types=types, isa=isa, constants=constants, cache=cache)[0]


SHAPES = [
    ((2, 3), (3, 4)),
    ((128, 130), (130, 50)),
    ((7,), (7,)),
    ((7,), (7, 20)),
    ((5, 7), (7,)),
    ((2, 3, 20, 9), (9, 33)),
    ((2, 3, 20, 9), (3, 9, 17)),
    ((2, 1, 4, 5), (3, 5, 16)),
    ((3, 1, 5), (5, 6)),
    ((7,), (4, 7, 18)),
    ((4, 6, 7), (7,)),
    ((300, 400), (400, 16)),
    ((1, 800), (800, 40)),
    ((9, 2051), (2051, 40)),
    ((3, 0), (0, 5)),
    ((0, 3), (3, 5)),
    ((3, 4), (4, 0)),
    ((2, 0, 4), (4, 5)),
]


@pytest.mark.parametrize("is_constant", [False, True], ids=["runtime", "constant"])
@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
def test_a_product_of_any_ranks_is_numpys(isa: Isa, is_constant: bool, cache: Path) -> None:
    """Vectors, batches, broadcasting, tails of every kind, and nothing at all."""
    for a_shape, b_shape in SHAPES:
        a, b = normal(*a_shape), normal(*b_shape, seed=1)
        wanted = np.matmul(a.astype(np.float64), b.astype(np.float64))
        got = run("MatMul", [a, b], wanted.shape, isa=isa, constants=[1] if is_constant else [], cache=cache)
        # A float32 sum of K terms errs by some sqrt(K) ulps of its terms.
        np.testing.assert_allclose(
            got, wanted, rtol=2e-6, atol=4e-6 * max(a_shape[-1], 1) ** 0.5, err_msg=f"{a_shape} @ {b_shape}"
        )


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "int64", "uint32", "uint64"])
def test_other_types_multiply(dtype: str, cache: Path) -> None:
    """ONNX's MatMul takes them; integers wrap around."""
    for a_shape, b_shape in SHAPES[:12]:
        a, b = normal(*a_shape, dtype=dtype), normal(*b_shape, seed=1, dtype=dtype)
        wanted = np.matmul(a, b) if "int" in dtype else np.matmul(a.astype(float), b.astype(float))
        got = run("MatMul", [a, b], wanted.shape, cache=cache)
        assert got.dtype == dtype
        rtol, atol = {"float64": (1e-12, 1e-12), "float16": (1e-3, 1e-3)}.get(dtype, (0.0, 0.0))
        np.testing.assert_allclose(got, wanted, rtol=rtol, atol=atol)


@pytest.mark.parametrize("c_shape", [None, (), (1,), (5,), (1, 5), (3, 1), (3, 5)])
@pytest.mark.parametrize("constants", [(), (1,), (1, 2)])
@pytest.mark.parametrize(("trans_a", "trans_b"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_gemm_is_its_formula(
    trans_a: int, trans_b: int, constants: tuple[int, ...], c_shape: tuple[int, ...] | None, cache: Path
) -> None:
    """alpha A' B' + beta C, with C of every shape that broadcasts, held or not held."""
    a = normal(7, 3) if trans_a else normal(3, 7)
    b = normal(5, 7, seed=1) if trans_b else normal(7, 5, seed=1)
    c = None if c_shape is None else np.asarray(normal(*c_shape, seed=2), np.float32)
    for alpha, beta in ((1.0, 1.0), (0.5, 2.0), (2.0, 0.0)):
        left, right = (a.T if trans_a else a), (b.T if trans_b else b)
        wanted = alpha * left.astype(np.float64) @ right + (0 if c is None else beta * c)
        attributes = {"transA": trans_a, "transB": trans_b, "alpha": alpha, "beta": beta}
        held = [i for i in constants if i < 2 or c is not None]
        got = run("Gemm", [a, b, c], (3, 5), attributes, constants=held, cache=cache)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_gemm_multiplies_doubles(cache: Path) -> None:
    """The general kernel applies alpha and beta too."""
    a, b, c = (normal(*s, dtype="float64", seed=i) for i, s in enumerate([(3, 4), (4, 5), (5,)]))
    got = run("Gemm", [a, b, c], (3, 5), {"alpha": 0.5, "beta": 2.0}, cache=cache)
    np.testing.assert_allclose(got, 0.5 * a @ b + 2.0 * c, rtol=1e-12)


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "int64"])
def test_wide_rows_of_any_type_go_in_vectors_to_their_end(dtype: str, isa: Isa, cache: Path) -> None:
    """Vectors in chains, alone and single columns, with a term by column, by row, or none; B either way."""
    rtol = {"float64": 1e-12, "float16": 4e-3}.get(dtype, 0.0)  # half floats: rounded once, on numbers to 30
    a, b = normal(3, 9, dtype=dtype), normal(9, 64 + 32 + 16 + 3, seed=1, dtype=dtype)
    for c in (None, normal(115, seed=2, dtype=dtype), normal(3, 1, seed=3, dtype=dtype)):
        exact = np.float64 if np.dtype(dtype).kind == "f" else dtype
        wanted = a.astype(exact) @ b.astype(exact) + (0 if c is None else c.astype(exact))
        for turned in (0, 1):
            inputs = [a, np.ascontiguousarray(b.T) if turned else b, c][: 2 if c is None else 3]
            got = run("Gemm", inputs, wanted.shape, {"transB": turned}, isa=isa, cache=cache)
            np.testing.assert_allclose(got, wanted, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("has_more", [False, True], ids=["bare", "with bias and residual"])
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_rows_in_any_order_are_one_product_or_few_large_ones(order: tuple[int, ...], has_more: bool) -> None:
    """Sequence-first layers read [L, B, K] from [B, L, K]: L products of B rows took five times as long."""
    extents = (2, 1, 11)
    a, b = normal(*extents, 24), normal(24, 40, seed=1)
    bias, residual = normal(40, seed=2), normal(*(extents[i] for i in order), 40, seed=3)
    seen = a.transpose((*order, 3))
    view = (0, *seen.shape, *(s // 4 for s in seen.strides))
    inputs = (a, b, bias, residual) if has_more else (a, b)
    graph = fused_graph(inputs, {"a_view": view}, residual.shape)
    (call,) = (c for part in lower(graph, Target(AVX2)) for c in part.calls)
    n_rows, n_products = call.fields["n_rows"], np.prod(call.fields["extents"])  # type: ignore[arg-type]
    assert (n_products, n_rows) in ((1, 22), (2, 11))
    wanted = seen.astype(np.float64) @ b + (bias + residual if has_more else 0)
    got = run("FusedMatMul", inputs, wanted.shape, {"a_view": view}, constants=[1])
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def fused_graph(inputs: Sequence[np.ndarray], attributes: dict[str, Any], shape: tuple[int, ...]) -> Graph:
    """One FusedMatMul whose second operand is constant."""
    given = dict(zip("abcd", inputs, strict=False))
    types = {x: type_of(array) for x, array in given.items()} | {"y": TensorType("float32", shape)}
    node = Node("FusedMatMul", tuple(given), ("y",), attributes)
    return Graph((node,), tuple(x for x in given if x != "b"), ("y",), types, {"b": given["b"]})


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "tanh", None])
@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
def test_bias_residual_and_activation_ride_along(isa: Isa, activation: str | None, cache: Path) -> None:
    """The fused product is what its three or four nodes were."""
    functions = {
        None: lambda x: x,
        "gelu": lambda x: x / 2 * (1 + np.vectorize(erf)(x / 2**0.5)),
        "gelu_tanh": lambda x: x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
        "relu": lambda x: np.maximum(x, 0),
        "tanh": np.tanh,
    }
    for columns in (32, 50):
        a, b, bias = normal(2, 13, 24), normal(24, columns, seed=1), normal(columns, seed=2)
        residual = normal(2, 13, columns, seed=3)
        attributes = {} if activation is None else {"activation": activation}
        x = a.astype(np.float64) @ b + bias + residual
        got = run(
            "FusedMatMul",
            [a, b, bias, residual],
            (2, 13, columns),
            attributes,
            isa=isa,
            constants=[1, 2],
            cache=cache,
        )
        np.testing.assert_allclose(got, functions[activation](x), rtol=1e-5, atol=1e-5)


def test_operands_are_read_through_views(cache: Path) -> None:
    """A transposed or sliced operand costs no copy of its own."""
    a, b = normal(2, 4, 6, 8), normal(2, 4, 5, 8, seed=1)
    # a as [2, 6, 4, 8] heads in the middle; b transposed in its last two dimensions.
    a_view = (0, 2, 6, 4, 8, 192, 8, 48, 1)
    b_view = (0, 2, 1, 8, 5, 160, 0, 1, 8)
    wanted = a.transpose(0, 2, 1, 3) @ b[:, :1].transpose(0, 1, 3, 2)
    got = run("FusedMatMul", [a, b], (2, 6, 4, 5), {"a_view": a_view, "b_view": b_view}, cache=cache)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize("constants", [(), (0,), (1,)], ids=["runtime", "constant a", "constant b"])
def test_one_column_of_windows_is_numpys(isa: Isa, constants: Sequence[int], cache: Path) -> None:
    """A convolution whose weights differ from row to row: A's columns are contiguous, its windows overlap."""
    rows, weights = normal(14, 10), normal(8, 5, 1, seed=1)
    windows = np.lib.stride_tricks.as_strided(rows.reshape(-1)[20:], (8, 10, 5), (40, 4, 40))
    wanted = windows.astype(np.float64) @ weights
    got = run(
        "FusedMatMul",
        [rows, weights],
        (8, 10, 1),
        {"a_view": (20, 8, 10, 5, 10, 1, 10)},
        isa=isa,
        constants=constants,
        cache=cache,
    )
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_nan_and_infinity_pass(cache: Path) -> None:
    """A product with them is what numpy says, and its neighbours are untouched."""
    a, b = normal(9, 20), normal(20, 19, seed=1)
    a[3, 4], a[5, 6], b[7, 18] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        wanted = a.astype(np.float64) @ b
    np.testing.assert_allclose(run("MatMul", [a, b], (9, 19), cache=cache), wanted, rtol=1e-5, atol=1e-5)
    assert type_of(a).dtype == "float32"
