"""Float32 products through AMX, against float64: within what two bfloat16 numbers leave of one."""

from pathlib import Path

import numpy as np
import pytest

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import make_image
from pliant.compiler.passes.code_weights import code_weights
from pliant.compiler.rewrite.coder import CachingCoder
from pliant.compiler.rules.rules import lower
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.emit.isa import AVX512_AMX, AVX512_BF16, Isa, is_runnable, to_portable
from pliant.run.graph.array_stage import open_image
from tests.compiler.rules.product.test_lower_bf16_matmul import graph_of, normal
from tests.compiler.rules.run_node import machine, run_node
from tests.kernels import reference
from tests.rows import TILE_ROWS, integer_name
from tests.store.coding.test_matrix import meant, weights

# A number less the two that stand for it is at most 2**-17 of it, the product of the lower parts 2**-16.
SPLIT_ERROR = 2.0**-15


@pytest.fixture(scope="session", params=TILE_ROWS, ids=integer_name)
def isa(request: pytest.FixtureRequest) -> Isa:
    """AMX, by whatever runs it here, and its portable lowering."""
    found: Isa = request.param
    return found


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the session, so that no kernel is compiled twice."""
    return tmp_path_factory.mktemp("kernels")


def run(graph: Graph, feeds: dict[str, np.ndarray], isa: Isa, cache: Path) -> np.ndarray:
    """The answer of a graph whose products tiles make."""
    image = make_image(graph, Target(isa, 2))
    assert [call.kernel.name for call in image.calls] == ["split_rows", "gemm_split"]
    library, pool = machine(isa, cache)
    return open_image(image, pool, library).run(feeds)["y"]


def near(y: np.ndarray, wanted: np.ndarray, a: np.ndarray, b: np.ndarray) -> bool:
    scale = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)) + 1
    return bool((np.abs(y - wanted) <= SPLIT_ERROR * scale).all())


@pytest.mark.parametrize(
    ("shape", "columns"), [((3, 130), 50), ((40, 64), 64), ((2, 3, 20, 96), 100), ((33, 1600), 16)]
)
def test_a_constant_matrix_of_any_shape(isa: Isa, shape: tuple[int, ...], columns: int, cache: Path) -> None:
    """Depths and columns that are no whole group; batches are rows."""
    a, b = normal(*shape), normal(shape[-1], columns, seed=1)
    y = run(graph_of(a, b), {"a": a}, isa, cache)
    assert near(y, np.matmul(a.astype(np.float64), b.astype(np.float64)), a, b)


def test_products_of_the_same_rows_split_them_once(isa: Isa, cache: Path) -> None:
    """As Q, K and V do; what another product made is split for itself. The last product reads them still."""
    arrays = {"a": normal(40, 96), "b": normal(96, 64, seed=1), "c": normal(96, 96, seed=2)}
    nodes = [("a", "b", "y"), ("a", "c", "z"), ("z", "b", "w"), ("a", "b", "x")]
    values = {name: array.astype(np.float64) for name, array in arrays.items()}
    for left, right, made in nodes:
        values[made] = values[left] @ values[right]
    types = {name: TensorType("float32", value.shape) for name, value in values.items()}
    products = tuple(Node("MatMul", (left, right), (y,), {}, y) for left, right, y in nodes)
    constants = {name: arrays[name] for name in ("b", "c")}
    image = make_image(Graph(products, ("a",), ("y", "w", "x"), types, constants), Target(isa, 2))
    names = [call.kernel.name for call in image.calls]
    assert (names.count("split_rows"), names.count("gemm_split")) == (2, 4)
    library, pool = machine(isa, cache)
    answers = open_image(image, pool, library).run({"a": arrays["a"]})
    for y in ("y", "x"):
        assert near(answers[y], values[y], arrays["a"], arrays["b"])
    scale = np.abs(values["a"]) @ np.abs(values["c"]) @ np.abs(values["b"])
    assert (np.abs(answers["w"] - values["w"]) <= 2 * SPLIT_ERROR * (scale + 1)).all()


@pytest.mark.parametrize("name", ["", "gelu", "relu", "tanh"])
def test_what_follows_the_product_is_kept(isa: Isa, name: str, cache: Path) -> None:
    """Bias and activation, or a residual."""
    a, b, bias, residual = normal(2, 5, 128), normal(128, 37), normal(37, seed=1), normal(2, 5, 37, seed=2)
    extra = {} if name else {"r": residual}
    attributes = {"activation": name} if name else {}
    graph = graph_of(a, b, attributes=attributes, bias=bias, residual=None if name else residual)
    y = run(graph, {"a": a, **extra}, isa, cache)
    flat = None if name else residual.reshape(10, 37)
    wanted = reference.gemm(a.reshape(10, 128), b, bias, name or None, flat)
    np.testing.assert_allclose(y.reshape(10, 37), wanted, rtol=3e-5, atol=3e-4)


def test_gemm_with_its_factor_and_a_turned_matrix(isa: Isa, cache: Path) -> None:
    """alpha is part of the weights before they are split; transB reads columns."""
    a, b = normal(7, 96), normal(96, 80)
    attributes = {"transB": 1, "alpha": 0.37}
    graph = graph_of(a, np.ascontiguousarray(b.T), op="Gemm", attributes=attributes, columns=80)
    assert near(run(graph, {"a": a}, isa, cache), 0.37 * (a.astype(np.float64) @ b), a, b)


@pytest.mark.parametrize("bits", [3, 6])
def test_coded_weights(isa: Isa, bits: int, cache: Path) -> None:
    """Codes are bfloat16 as they are, their outliers have lower parts."""
    a, b = normal(13, 96), weights(96, 80)
    y = run(code_weights(graph_of(a, b), CachingCoder(bits), "fp32"), {"a": a}, isa, cache)
    assert near(y, a.astype(np.float64) @ meant(b, bits), a, b)


def test_errors_are_a_few_millionths(isa: Isa, cache: Path) -> None:
    """Relative to the result's size, on normal numbers: what float32 may promise."""
    a, b = normal(64, 768), normal(768, 96, seed=1)
    wanted = a.astype(np.float64) @ b
    error = run(graph_of(a, b), {"a": a}, isa, cache) - wanted
    assert np.sqrt((error**2).mean() / (wanted**2).mean()) < 5e-6


@pytest.mark.parametrize(
    ("a_shape", "b_shape", "constants"),
    [
        ((2, 96), (96, 80), [1]),
        ((7, 96), (96, 80), []),
        ((4, 7, 96), (4, 96, 80), [1]),
        ((20, 8), (8, 9), [1]),
    ],
)
def test_other_products_run_in_vectors(
    a_shape: tuple[int, ...], b_shape: tuple[int, ...], constants: list[int], cache: Path
) -> None:
    """Of two rows, of a few with a matrix that comes with the run, and small ones: as without AMX."""
    a, b = normal(*a_shape), normal(*b_shape, seed=1)
    types = [TensorType("float32", (*a_shape[:-1], b_shape[-1]))]
    made = [
        run_node("MatMul", [a, b], types=types, isa=row, constants=constants, cache=cache)[0]
        for row in (TILE_ROWS[0], AVX512_BF16 if is_runnable(AVX512_BF16) else to_portable(AVX512_BF16))
    ]
    np.testing.assert_array_equal(*made)


def test_both_parts_of_a_matrix_are_packed_once() -> None:
    """As many bytes as float32 takes, made at first, not at each run."""
    a, b = normal(20, 96), normal(96, 80)
    node = Node("MatMul", ("a", "b"), ("y",), {}, "it")
    types = {"a": TensorType("float32", a.shape), "b": TensorType("float32", b.shape)}
    types["y"] = TensorType("float32", (20, 80))
    (made,) = lower(Graph((node,), ("a",), ("y",), types, {"b": b}), Target(AVX512_AMX, 1))
    assert [packed.n_bytes for packed in made.packed.values()] == [b.nbytes]
    assert made.temporaries == {"y|split": a.nbytes}
