"""Float32 products of two tensors that come with a run, through AMX, against float64."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import make_image
from pliant.compiler.rewrite.view import View
from pliant.compiler.rules.product.product import Product
from pliant.compiler.rules.product.split_product import split_is_faster, splits_both
from pliant.compiler.rules.rules import lower
from pliant.ir.graph import Attribute, Graph, Node, TensorType
from pliant.ir.symbolic import Trace
from pliant.kernels.emit.isa import AVX512_AMX, AVX512_BF16, Isa
from pliant.run.graph.array_stage import open_image
from tests.compiler.rules.product.test_lower_bf16_matmul import normal
from tests.compiler.rules.product.test_split_product import cache as cache
from tests.compiler.rules.product.test_split_product import isa as isa
from tests.compiler.rules.product.test_split_product import near
from tests.compiler.rules.run_node import machine
from tests.kernels import reference
from tests.kernels.tiles.amx_trap import Executed, Trap
from tests.rows import TILE_ROWS


def graph_of(
    op: str,
    arrays: dict[str, np.ndarray],
    shape: Sequence[int],
    constants: Sequence[str] = (),
    **more: Attribute,
) -> Graph:
    """One node that reads the arrays in their order and gives y."""
    types = {x: TensorType("float32", array.shape) for x, array in arrays.items()}
    types["y"] = TensorType("float32", tuple(shape))
    inputs = tuple(x if array.size else "" for x, array in arrays.items())
    node = Node(op, inputs, ("y",), more, "it")
    feeds = tuple(x for x in inputs if x and x not in constants)
    return Graph((node,), feeds, ("y",), types, {x: arrays[x] for x in constants})


def run(graph: Graph, arrays: dict[str, np.ndarray], isa: Isa, cache: Path) -> np.ndarray:
    """The answer of a graph whose product tiles make."""
    image = make_image(graph, Target(isa, 2))
    assert [call.kernel.name for call in image.calls] == ["matmul_split"]
    library, pool = machine(isa, cache)
    return open_image(image, pool, library).run({x: arrays[x] for x in graph.inputs})["y"]


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((40, 96), (96, 64)),
        ((33, 131), (131, 81)),  # no whole tile in any direction, pairs cut in two
        ((2, 3, 47, 64), (2, 3, 64, 47)),
        ((3, 1, 20, 800), (1, 2, 800, 50)),  # both are repeated over a batch; blocks of K
        ((150, 64), (64, 401)),  # several blocks of rows and of panels
    ],
)
def test_products_of_any_shape(
    isa: Isa, a_shape: tuple[int, ...], b_shape: tuple[int, ...], cache: Path
) -> None:
    """Within what splitting leaves of each term; batches as numpy has them."""
    arrays = {"a": normal(*a_shape), "b": normal(*b_shape, seed=1)}
    wanted = np.matmul(*(x.astype(np.float64) for x in arrays.values()))
    y = run(graph_of("MatMul", arrays, wanted.shape), arrays, isa, cache)
    assert near(y, wanted, *arrays.values())


@pytest.mark.parametrize("is_turned", [(True, False), (False, True), (True, True)])
def test_gemm_with_turned_matrices_and_factors(isa: Isa, is_turned: tuple[bool, bool], cache: Path) -> None:
    """Columns of A are copied first, rows of B are read as columns; alpha and C count."""
    a, b, c = normal(64, 101), normal(101, 60, seed=1), normal(64, 60, seed=2)
    arrays = {
        x: np.ascontiguousarray(m.T) if t else m for x, m, t in zip("ab", (a, b), is_turned, strict=True)
    }
    arrays["c"] = c
    flags = {f"trans{x}": int(t) for x, t in zip("AB", is_turned, strict=True)}
    y = run(graph_of("Gemm", arrays, c.shape, alpha=0.37, **flags), arrays, isa, cache)
    assert near(y, 0.37 * (a.astype(np.float64) @ b) + c, a, b)


@pytest.mark.parametrize("name", ["gelu", "tanh"])
def test_what_follows_the_product_is_kept(isa: Isa, name: str, cache: Path) -> None:
    """Bias, residual and activation, in rows that end within a column group."""
    arrays = {"a": normal(2, 50, 96), "b": normal(2, 96, 70), "c": normal(70, seed=1)}
    arrays["r"] = normal(2, 50, 70, seed=2)
    y = run(graph_of("FusedMatMul", arrays, (2, 50, 70), ["c"], activation=name), arrays, isa, cache)
    total = arrays["a"].astype(np.float64) @ arrays["b"] + arrays["c"] + arrays["r"]
    np.testing.assert_allclose(y, reference.activation(total, name), rtol=3e-5, atol=3e-4)


def test_einsum_of_heads_and_a_known_batch(isa: Isa, cache: Path) -> None:
    """Heads between rows and columns; matrices that are known, but one for each of a batch."""
    arrays = {"q": normal(2, 40, 3, 64), "k": normal(2, 48, 3, 64, seed=1)}
    wanted = np.einsum("bihd,bjhd->bhij", *(x.astype(np.float64) for x in arrays.values()))
    graph = graph_of("Einsum", arrays, wanted.shape, equation="bihd,bjhd->bhij")
    scale = np.einsum("bihd,bjhd->bhij", *(np.abs(x) for x in arrays.values())) + 1
    assert (np.abs(run(graph, arrays, isa, cache) - wanted) <= 2.0**-15 * scale).all()
    arrays = {"a": normal(3, 48, 97), "b": normal(3, 97, 63, seed=1)}
    wanted = np.matmul(*(x.astype(np.float64) for x in arrays.values()))
    y = run(graph_of("MatMul", arrays, wanted.shape, ["b"]), arrays, isa, cache)
    assert near(y, wanted, *arrays.values())


def test_errors_are_a_few_millionths(isa: Isa, cache: Path) -> None:
    """Relative to the result's size, on normal numbers: what float32 may promise."""
    arrays = {"a": normal(64, 512), "b": normal(512, 96, seed=1)}
    wanted = arrays["a"].astype(np.float64) @ arrays["b"]
    error = run(graph_of("MatMul", arrays, wanted.shape), arrays, isa, cache) - wanted
    assert np.sqrt((error**2).mean() / (wanted**2).mean()) < 5e-6


def test_nan_and_infinity_stay_in_their_rows_and_columns(isa: Isa, cache: Path) -> None:
    """Where FMA gives infinity tiles may give NaN; a NaN of any bits stays one."""
    arrays = {"a": normal(40, 64), "b": normal(64, 48, seed=1)}
    arrays["a"][3, 5] = np.array(0xFFFFFFFF, np.uint32).view(np.float32)
    arrays["a"][17, 63], arrays["b"][9, 20] = np.inf, np.nan
    y = run(graph_of("MatMul", arrays, (40, 48)), arrays, isa, cache)
    wanted = np.isfinite(arrays["a"]).all(1)[:, None] & np.isfinite(arrays["b"]).all(0)
    np.testing.assert_array_equal(np.isfinite(y), wanted)
    assert np.isnan(y[3]).all()


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "is_faster"),
    [
        (128, 128, 64, True),  # scores of attention that was not fused
        (128, 64, 128, True),
        (16, 768, 768, True),
        (197, 197, 32, True),
        (8, 768, 768, False),  # B is split for half a tile of rows
        (2, 4096, 4096, False),
        (512, 8, 512, False),
        (32, 32, 16, False),
        (1, 16, 1, False),
        (0, 16, 16, False),
    ],
)
def test_tiles_multiply_where_they_take_fewer_cycles(
    rows: int, columns: int, depth: int, is_faster: bool
) -> None:
    """Splitting costs as much for few rows, columns or terms as for many."""
    assert split_is_faster(rows, columns, depth) == is_faster
    shapes = {"y": (rows, columns), "a": (rows, depth), "b": (depth, columns)}
    p = Product(*(View(x, 0, shape, (shape[1], 1)) for x, shape in shapes.items()))
    assert splits_both(p, Target(AVX512_AMX)) == is_faster
    assert not splits_both(p, Target(AVX512_BF16))


def test_as_many_tile_products_as_counted(cache: Path) -> None:
    """Three for each 16 rows, 16 columns and 32 terms: what the choice is made by."""
    isa = TILE_ROWS[0]
    if isa.is_portable:
        pytest.skip("needs AMX, or what its handler needs")
    arrays = {"a": normal(2, 40, 96), "b": normal(2, 96, 80, seed=1)}
    graph = graph_of("MatMul", arrays, (2, 40, 80))
    run(graph, arrays, isa, cache)
    trap = Trap(cache)
    before = trap.count(Executed.BFLOATS)
    run(graph, arrays, isa, cache)
    assert trap.count(Executed.BFLOATS) - before in (0, 2 * 3 * (3 * 5 * 3))  # 0 where the CPU has AMX
    assert not trap.is_configured


def test_scratch_holds_a_unit_whatever_the_shape() -> None:
    """No temporaries: what is split stays in a thread's scratch, within a megabyte."""
    arrays = {"a": normal(500, 640), "b": normal(640, 720, seed=1)}
    (made,) = lower(graph_of("MatMul", arrays, (500, 720)), Target(AVX512_AMX, 2))
    assert not made.temporaries
    assert not made.packed
    assert max(call.scratch_bytes for call in made.calls) < 1 << 20


def test_open_sizes_are_decided_for_all_sizes_alike() -> None:
    """Compared with a float, a symbolic size raised, and each new size of a model was compiled again."""
    trace = Trace()
    n = trace.symbol("n", 128)
    assert split_is_faster(n, n, 64)
    holds = trace.checker(("n",))
    held = [m for m in range(1, 400) if holds(m)]
    assert held == [m for m in range(1, 400) if split_is_faster(m, m, 64)]
    assert 0 < 128 - held[0] < 128
