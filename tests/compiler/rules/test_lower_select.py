"""Top k, one-hot, triangles, unpooling, cache rows and constants through a session, against numpy."""

import numpy as np
import pytest

from pliant.ir.graph import TensorType
from pliant.kernels.emit.isa import AVX2, AVX512, X86_64, Isa, to_portable
from tests.compiler.rules.move.test_lower_move import check, ints, numbers
from tests.compiler.rules.run_node import run_node, type_of

HOST = to_portable(AVX2)
EVERY_ISA = pytest.mark.parametrize(
    "isa", [to_portable(isa) for isa in (AVX512, AVX2, X86_64)], ids=lambda isa: isa.name
)


def _top(x: np.ndarray, k: int, axis: int, is_largest: bool, isa: Isa = HOST) -> list[np.ndarray]:
    shape = tuple(k if i == axis % x.ndim else n for i, n in enumerate(x.shape))
    types = [TensorType(x.dtype.name, shape), TensorType("int64", shape)]
    attributes = {"axis": axis, "largest": int(is_largest)}
    return run_node("TopK", [x, ints(k)], attributes, types=types, isa=isa, constants=(1,))


@EVERY_ISA
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int64", "uint64"])
@pytest.mark.parametrize("k", [1, 2, 7, 50])
def test_the_best_k_in_order(dtype: str, k: int, isa: Isa) -> None:
    """Few distinct values: of equal ones the lower index comes first, as in a stable sort."""
    x = np.random.default_rng(k).integers(0, 20, (3, 50, 2)).astype(dtype)
    for is_largest in (True, False):
        values, places = _top(x, k, 1, is_largest, isa)
        keys = x.astype(np.float64) * (-1 if is_largest else 1)
        wanted = np.argsort(keys, axis=1, kind="stable")[:, :k]
        np.testing.assert_array_equal(places, wanted)
        np.testing.assert_array_equal(values, np.take_along_axis(x, wanted, axis=1))


def test_top_k_of_unordered_numbers() -> None:
    """Infinities are numbers, zeros of both signs are equal, large integers keep their last digit."""
    x = np.float32([-np.inf, 0.0, -0.0, np.inf, 1.0])
    np.testing.assert_array_equal(_top(x, 5, 0, True)[1], [3, 4, 1, 2, 0])
    large = np.array([2**63 - 1, 2**63, 2**64 - 1, 0], np.uint64)
    np.testing.assert_array_equal(_top(large, 3, 0, True)[1], [2, 1, 0])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_hot(axis: int) -> None:
    """Negative indices count from the end; outside the depth every place is off."""
    places = np.array([[0, 4, -1], [-5, 5, -6]])
    check("OneHot", [places, np.array(5), np.float32([2, 3])], {"axis": axis}, constants=(1,))


def test_one_hot_of_floats() -> None:
    """ONNX allows indices of any numeric type."""
    check("OneHot", [np.float32([1.0, 2.0]), np.array(4), np.array([0, 1])], constants=(1,))


@EVERY_ISA
@pytest.mark.parametrize("k", [-20, -3, 0, 2, 20, 2**62, -(2**63)])
@pytest.mark.parametrize("is_upper", [True, False])
def test_triangles(k: int, is_upper: bool, isa: Isa) -> None:
    """The diagonal is known only at run time; far outside it keeps all or nothing."""
    x = numbers(2, 5, 19)
    wanted = np.triu(x, max(min(k, 99), -99)) if is_upper else np.tril(x, max(min(k, 99), -99))
    (y,) = run_node("Trilu", [x, np.array(k)], {"upper": int(is_upper)}, types=[type_of(x)], isa=isa)
    np.testing.assert_array_equal(y, wanted)


def test_constants_known_from_shapes() -> None:
    """No call at all: their value is packed with the weights."""
    check("EyeLike", [numbers(3, 5)], {"k": 1})
    check("Shape", [numbers(3, 5, 7)], {"start": 1})
    check("Size", [numbers(3, 5, 7)])
    check("ConstantOfShape", [ints(2, 3)], constants=(0,))
    check("Range", [np.array(v, np.float32) for v in (1, 3, 0.25)], constants=(0, 1, 2))


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_cache_rows_stay_inside(mode: str) -> None:
    """Rows past the end wrap around, or are left out: never written outside."""
    cache, update = np.zeros((2, 3, 4, 5), np.float32), np.ones((2, 3, 2, 5), np.float32)
    for first in ([0, 2], [3, 2**62], [-1, -(2**63)]):
        inputs = [cache, update, np.array(first)]
        (y,) = run_node("TensorScatter", inputs, {"mode": mode}, types=[type_of(cache)], isa=HOST)
        for b in range(2):
            rows = [first[b] + t for t in range(2)]
            rows = [r % 4 for r in rows] if mode == "circular" else [r for r in rows if 0 <= r < 4]
            wanted = np.isin(np.arange(4), rows).astype(np.float32)
            np.testing.assert_array_equal(y[b], np.broadcast_to(wanted[None, :, None], (3, 4, 5)))


def test_compress_under_a_known_condition() -> None:
    """Runs of kept positions are copied as one; a short condition drops the rest."""
    x, condition = numbers(4, 6), np.array([True, True, False, True])
    check("Compress", [x, condition], {"axis": 1}, constants=(1,))
    check("Compress", [x, condition], constants=(1,))
