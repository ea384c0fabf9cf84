"""Reductions along axes through a session, against onnx's reference implementation."""

from itertools import combinations

import numpy as np
import pytest

from pliant.ir.graph import TensorType
from pliant.kernels.emit.isa import AVX2, AVX512, X86_64, Isa, to_portable
from pliant.kernels.rows.reduce import plan_reduction
from tests.compiler.rules.run_node import expected, run_node

ISAS = [to_portable(isa) for isa in (AVX512, AVX2, X86_64)]
EVERY_ISA = pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
HOST = to_portable(AVX2)

OPS = [
    f"Reduce{op}"
    for op in ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"]
]


def _positive(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Numbers for which a product stays finite and a logarithm exists."""
    return (np.random.default_rng(1).random(shape) * 0.2 + 0.9).astype(dtype)


def _check(op: str, x: np.ndarray, axes: list[int], isa: Isa = HOST, keepdims: int = 1) -> None:
    attributes = {"keepdims": keepdims, "noop_with_empty_axes": 1}
    inputs = [x, np.array(axes, np.int64)]
    (wanted,) = expected(op, [x.astype(np.float64), inputs[1]], attributes)
    types = [TensorType(x.dtype.name, wanted.shape)]
    (y,) = run_node(op, inputs, attributes, types=types, isa=isa, constants=(1,))
    np.testing.assert_allclose(y, wanted, rtol=4e-6, atol=1e-6)


@EVERY_ISA
@pytest.mark.parametrize("op", OPS)
def test_every_operator_along_the_last_and_the_first_axis(op: str, isa: Isa) -> None:
    """The two kernels: rows of neighbours, and columns; with whole vectors, chains and single elements."""
    x = _positive(5, 83)
    _check(op, x, [1], isa)
    _check(op, x, [0], isa, keepdims=0)


@pytest.mark.parametrize("axes", [c for n in range(5) for c in combinations(range(4), n)])
def test_every_set_of_axes(axes: tuple[int, ...]) -> None:
    """Kept and reduced dimensions alternate in every way; no axis at all leaves the term."""
    _check("ReduceSumSquare", _positive(3, 4, 5, 6), list(axes))


def test_a_million_numbers_keep_their_digits() -> None:
    """Partial sums: adding one by one would lose three of float32's seven digits."""
    x = _positive(1 << 20)
    (y,) = run_node("ReduceSum", [x], types=[TensorType("float32", (1,))], isa=HOST)
    np.testing.assert_allclose(y, x.astype(np.float64).sum(), rtol=1e-6)


def test_reducing_nothing_gives_the_neutral_element() -> None:
    """A dimension of length zero, in the middle and alone."""
    for op, neutral in (("ReduceSum", 0), ("ReduceProd", 1), ("ReduceMax", -np.inf), ("ReduceMin", np.inf)):
        x = np.zeros((2, 0, 3), np.float32)
        axes = np.array([1])
        types = [TensorType("float32", (2, 1, 3))]
        (y,) = run_node(op, [x, axes], types=types, isa=HOST, constants=(1,))
        assert (y == neutral).all(), op


@EVERY_ISA
def test_nan_decides_a_maximum(isa: Isa) -> None:
    """As in numpy, wherever the NaN stands."""
    for place in (0, 17, 40):
        x = np.arange(41, dtype=np.float32).reshape(1, 41)
        x[0, place] = np.nan
        (y,) = run_node("ReduceMax", [x], types=[TensorType("float32", (1, 1))], isa=isa)
        assert np.isnan(y).all()


def test_log_sum_exp_neither_overflows_nor_loses_infinity() -> None:
    """exp(200) is no float32; an infinite maximum must not be subtracted from itself."""
    x = np.array([[200, 201], [-np.inf, -np.inf], [np.inf, 0]], np.float32)
    axes, types = np.array([1]), [TensorType("float32", (3, 1))]
    (y,) = run_node("ReduceLogSumExp", [x, axes], types=types, isa=HOST, constants=(1,))
    np.testing.assert_allclose(y[:, 0], [201 + np.log1p(np.exp(-1)), -np.inf, np.inf], rtol=1e-6)


@EVERY_ISA
@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64", "float64", "float16"])
def test_other_dtypes(dtype: str, isa: Isa) -> None:
    """Integers stay integers, half floats are summed in float32 and rounded once."""
    x = np.random.default_rng(0).integers(0, 9, (6, 21)).astype(dtype)
    for op in ("ReduceSum", "ReduceMax", "ReduceMin"):
        for axis in (0, 1):
            axes = np.array([axis])
            (wanted,) = expected(op, [x, axes])
            types = [TensorType(dtype, wanted.shape)]
            (y,) = run_node(op, [x, axes], types=types, isa=isa, constants=(1,))
            np.testing.assert_array_equal(y, wanted.astype(dtype))


@EVERY_ISA
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_the_place_of_an_extremum(op: str, isa: Isa) -> None:
    """Ties go to the first or to the last; along the last axis and along one before it."""
    x = np.random.default_rng(0).integers(0, 5, (7, 29)).astype(np.float32)
    for axis in (0, 1):
        for last in (0, 1):
            attributes = {"axis": axis, "select_last_index": last, "keepdims": 0}
            (wanted,) = expected(op, [x], attributes)
            (y,) = run_node(op, [x], attributes, types=[TensorType("int64", wanted.shape)], isa=isa)
            np.testing.assert_array_equal(y, wanted)


@EVERY_ISA
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "uint8", "int32", "int64"])
def test_the_place_of_an_extremum_in_rows_of_any_length(dtype: str, isa: Isa) -> None:
    """Vectors in chains, alone, and what is left; equal elements, and NaN in every part."""
    for n in (1, 3, 16, 21, 67, 150):
        x = np.random.default_rng(n).integers(1, 60, (9, n)).astype(dtype)
        if np.dtype(dtype).kind == "f":
            for row in (1, 3, 5):
                x[row, [row * n // 7, n - 1 - row * n // 11]] = np.nan
        for op, find in (("ArgMax", np.argmax), ("ArgMin", np.argmin)):
            for last in (0, 1):
                attributes = {"axis": 1, "select_last_index": last, "keepdims": 0}
                (y,) = run_node(op, [x], attributes, types=[TensorType("int64", (9,))], isa=isa)
                wanted = n - 1 - find(x[:, ::-1], axis=1) if last else find(x, axis=1)
                np.testing.assert_array_equal(y, wanted)


def test_an_extremum_is_where_the_first_nan_is() -> None:
    """As in numpy."""
    x = np.array([[1, np.nan, 5, np.nan]], np.float32)
    (y,) = run_node("ArgMax", [x], {"axis": 1}, types=[TensorType("int64", (1, 1))], isa=HOST)
    assert y[0, 0] == 1


def test_neighbouring_dimensions_are_walked_as_one() -> None:
    """A mean over height and width is one row of neighbours, not rows of width."""
    assert plan_reduction((2, 3, 4, 5), (2, 3)).fastest == (20, 1)
    assert plan_reduction((2, 1, 4, 5), (0, 1)).kept == ((1, 0),)
