"""Element-wise kernels: how operands are walked, and what every operation and conversion gives."""

import ctypes
import math
from collections.abc import Sequence
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.kernels.emit.dtypes import DTYPES
from pliant.kernels.emit.expression import Expr, leaf
from pliant.kernels.rows.map import MAX_OUTER, SCRATCH_BYTES, MapArgs, map_ir, map_name, plan_map
from pliant.kernels.runtime.jit import Library
from tests.kernels.kernel_call import address, call


def evaluate(library: Library, tree: Expr, *operands: np.ndarray, shape: Sequence[int] = ()) -> np.ndarray:
    """The tree over arrays, by its kernel; the output stands between guards that must stay."""
    shape = tuple(shape) or np.broadcast_shapes(*(a.shape for a in operands))
    way = plan_map(shape, [a.shape for a in operands])
    assert way is not None
    dtype = np.dtype(getattr(ml_dtypes, tree.dtype, tree.dtype))
    out = np.full(int(np.prod(shape)) + 64, 1).astype(dtype)
    args = MapArgs(out=out[32:].ctypes.data, inner=way.inner, rows=way.rows, rank=len(way.sizes))
    args.unit_rows, args.unit_inner, args.chunks = way.unit_rows, way.unit_inner, way.chunks
    args.x[: len(operands)] = [np.ascontiguousarray(a).ctypes.data for a in operands]
    args.sizes[: len(way.sizes)] = way.sizes
    for i, steps in enumerate(way.strides):
        args.strides[i * MAX_OUTER : i * MAX_OUTER + len(steps)] = steps
    name = map_name(tree, way.pattern)
    call(address(library, name, map_ir, tree, way.pattern), args, way.n_units, SCRATCH_BYTES)
    assert (out[:32] == 1).all()
    assert (out[-32:] == 1).all()
    return out[32:-32].reshape(shape)


def prepare(library: Library, trees: Sequence[Expr], pattern: str) -> None:
    """Compile many kernels in one child process: starting one takes longer than most kernels do."""
    library.load_functions({map_name(t, pattern): partial(map_ir, library.isa, t, pattern) for t in trees})


def _array(values: Sequence[float] | np.ndarray, dtype: str) -> np.ndarray:
    return np.asarray(values).astype(getattr(ml_dtypes, dtype, dtype))


SHAPES = [
    [(5, 7), (5, 7)],
    [(33,), (1,)],
    [(3, 1, 5), (4, 1)],
    [(2, 3, 4, 5), (3, 1, 5)],
    [(), ()],
    [(1, 9000), (3, 1)],
    [(300, 40), (40,)],
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_operands_are_broadcast_as_by_numpy(library: Library, shapes: list[tuple[int, ...]]) -> None:
    """Both orders: the pattern, strides and offsets of each operand are its own."""
    a, b = (np.random.default_rng(i).random(s).astype(np.float32) for i, s in enumerate(shapes))
    tree = leaf(0, "float32") - leaf(1, "float32")
    np.testing.assert_array_equal(evaluate(library, tree, a, b), a - b)
    np.testing.assert_array_equal(evaluate(library, tree, b, a), b - a)


def test_neighbouring_dimensions_are_merged() -> None:
    """Equal shapes are one row; a bias makes rows; a column is one value a row."""
    assert plan_map((2, 3, 4), [(2, 3, 4), (2, 3, 4)]).pattern == "cc"  # type: ignore[union-attr]
    way = plan_map((2, 3, 4), [(2, 3, 4), (4,)])
    assert way is not None
    assert (way.inner, way.sizes, way.pattern) == (4, (6,), "cc")
    way = plan_map((2, 3, 4), [(2, 3, 4), (2, 3, 1)])
    assert way is not None
    assert (way.inner, way.pattern, way.strides) == (4, "cs", ((4,), (1,)))


_SIDES = st.lists(st.integers(1, 4), max_size=6)


@given(shape=_SIDES, data=st.data())
def test_a_walk_visits_what_numpy_broadcasts(shape: list[int], data: st.DataObject) -> None:
    """Every output position, from the numbers that the kernel gets, against an array of positions."""
    first = data.draw(st.integers(0, len(shape)))
    operand = [data.draw(st.sampled_from([1, n])) for n in shape[first:]]
    way = plan_map(shape, [shape, operand])
    assert way is not None
    numbers = np.arange(math.prod(operand)).reshape(operand)
    visited = []
    for row in range(way.rows):
        left, at = row, 0
        for size, stride in zip(way.sizes, way.strides[1], strict=True):
            left, index = divmod(left, size)
            at += index * stride
        steps = np.arange(way.inner) if way.pattern[1] == "c" else np.zeros(way.inner, int)
        visited += list(at + steps)
    assert visited == list(np.broadcast_to(numbers, shape).ravel())


def test_too_many_separate_dimensions_are_refused() -> None:
    """The argument structure has room for a fixed number."""
    ones = [2 if d % 2 else 1 for d in range(20)]
    assert plan_map([2] * 20, [[2] * 20, ones]) is None


def test_an_output_may_be_its_input(library: Library) -> None:
    """In place: every element is read before it is written, in the last, partial vector too."""
    x = np.arange(43, dtype=np.float32)
    way = plan_map(x.shape, [x.shape])
    assert way is not None
    tree = leaf(0, "float32") * leaf(0, "float32")
    args = MapArgs(out=x.ctypes.data, inner=43, rows=1, rank=1, unit_rows=1, unit_inner=43, chunks=1)
    args.x[0], args.sizes[0] = x.ctypes.data, 1
    call(address(library, map_name(tree, "c"), map_ir, tree, "c"), args, 1, SCRATCH_BYTES)
    np.testing.assert_array_equal(x, np.arange(43, dtype=np.float32) ** 2)


INTEGERS = [f"{sign}int{n}" for sign in ("", "u") for n in (8, 16, 32, 64)]
WIDE = ["float32", "float64", "bool", "int8", "int64", "uint16", "uint64"]


@pytest.mark.parametrize("source", WIDE)
def test_every_dtype_becomes_every_other(library: Library, source: str) -> None:
    """Values that both can hold; floats lose their fraction."""
    targets = [*WIDE, "float16", "bfloat16"]
    prepare(library, [leaf(0, source).cast(t) for t in targets], "c")
    for target in targets:
        values = np.array([0, 1, 2, 3, 5, 100, 127])
        if not {source[0], target[0]} & {"u", "b"}:
            values = np.concatenate([values, -values])
        x = _array(values, source)
        if source.startswith("float") and "int" in target:
            x = np.concatenate([x, _array([0.5, 1.9, 99.99], source)])
        y = evaluate(library, leaf(0, source).cast(target), x)
        np.testing.assert_array_equal(y, _array(x, target), err_msg=target)


def test_what_an_integer_cannot_hold(library: Library) -> None:
    """Floats go to the nearest there is, NaN to 0; integers wrap around."""
    x = np.array([1e20, -1e20, np.nan, np.inf, -300.0], np.float32)
    y = evaluate(library, leaf(0, "float32").cast("int32"), x)
    np.testing.assert_array_equal(y, [2**31 - 1, -(2**31), 0, 2**31 - 1, -300])
    y = evaluate(library, leaf(0, "float32").cast("uint8"), x)
    np.testing.assert_array_equal(y, [255, 0, 0, 255, 0])
    wide = np.array([300, -1, 2**40 + 5])
    np.testing.assert_array_equal(evaluate(library, leaf(0, "int64").cast("uint8"), wide), [44, 255, 5])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_floats_are_rounded_once_to_nearest_even(library: Library, dtype: str) -> None:
    """Every half, what lies halfway between two and close to it; from float32 and float64."""
    every = np.arange(1 << 16, dtype=np.uint16).view(getattr(ml_dtypes, dtype, dtype))
    with np.errstate(invalid="ignore"):
        exact = every.astype(np.float64)
    exact = exact[np.isfinite(exact)]
    middle = (np.sort(exact)[1:] + np.sort(exact)[:-1]) / 2
    x = np.concatenate(
        [exact, middle, middle * (1 + 2.0**-40), middle * (1 - 2.0**-40), [1e9, -np.inf, np.nan]]
    )
    trees = [leaf(0, source).cast(dtype) for source in ("float32", "float64")]
    prepare(library, trees, "c")
    with np.errstate(over="ignore"):
        for source in (x, x.astype(np.float32)):
            y = evaluate(library, leaf(0, str(source.dtype)).cast(dtype), source)
            with np.errstate(invalid="ignore"):
                wanted = _once(source, dtype)
            np.testing.assert_array_equal(y.astype(np.float64), wanted)


def _once(x: np.ndarray, dtype: str) -> np.ndarray:
    """x rounded to `dtype` without a stop at float32; ml_dtypes makes that stop."""
    if dtype == "float16" or x.dtype == np.float32:
        return _array(x, dtype).astype(np.float64)
    exponent = np.maximum(np.frexp(x)[1], -125)
    scale = np.ldexp(1.0, exponent - 8)
    y = np.where(np.isfinite(x), np.rint(x / scale) * scale, x)
    return np.where(np.abs(y) > 3.3895313892515355e38, np.copysign(np.inf, y), y)


SMALL = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn")


@pytest.mark.parametrize("dtype", [*SMALL, "float8_e8m0fnu", "int4", "uint4", "int2", "uint2"])
def test_every_small_number_is_read_exactly(library: Library, dtype: str) -> None:
    """All codes of a byte, or of the bits there are."""
    n = 1 << (8 if "8" in dtype else 4 if "4" in dtype else 2)
    x = np.arange(n, dtype=np.uint8).view(getattr(ml_dtypes, dtype))
    y = evaluate(library, leaf(0, dtype).cast("float32"), x)
    np.testing.assert_array_equal(y, x.astype(np.float32))


@pytest.mark.parametrize("dtype", SMALL)
def test_small_floats_are_rounded_as_by_ml_dtypes(library: Library, dtype: str) -> None:
    """Every number, what lies between two, both infinities, NaN, and the sign of zero."""
    n = 16 if dtype.startswith("float4") else 256
    exact = np.arange(n, dtype=np.uint8).view(getattr(ml_dtypes, dtype)).astype(np.float32)
    exact = np.sort(exact[np.isfinite(exact)])
    middle = (exact[1:] + exact[:-1]) / 2
    x = np.concatenate([exact, middle, middle * 1.001, middle * 0.999, [-0.0, 0.0, 1e-12, -1e-12, 1e9, -1e9]])
    x = np.concatenate([x, [np.inf, -np.inf, np.nan]]).astype(np.float32)
    y = evaluate(library, leaf(0, "float32").cast(dtype), x)
    np.testing.assert_array_equal(y.view(np.uint8), _array(x, dtype).view(np.uint8))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_no_integer_division_traps(library: Library, dtype: str) -> None:
    """By zero the result is 0; the lowest integer by -1 wraps around; else C's and Python's rules."""
    info = np.iinfo(dtype)
    numbers = [n for n in (info.min, info.max, -7, 7, 0, 1, -1, 3, -3) if info.min <= n <= info.max]
    a, b = (v.ravel() for v in np.meshgrid(*[np.array(numbers, dtype)] * 2))
    x, y = leaf(0, dtype), leaf(1, dtype)
    pairs = [(int(n), int(d)) for n, d in zip(a, b, strict=True)]

    def divided(n: int, d: int) -> int:
        quotient = abs(n) // abs(d) * (1 if (n < 0) == (d < 0) else -1)
        return (quotient - info.min) % (info.max - info.min + 1) + info.min

    quotients = [divided(n, d) if d else 0 for n, d in pairs]
    rests = [int(math.fmod(n, d)) if d in (1, -1) else n - d * divided(n, d) if d else 0 for n, d in pairs]
    modulos = [n % d if d else 0 for n, d in pairs]
    prepare(library, [x / y, x.with_("fmod", y), x.with_("mod", y)], "cc")
    np.testing.assert_array_equal(evaluate(library, x / y, a, b), np.array(quotients, dtype))
    np.testing.assert_array_equal(evaluate(library, x.with_("fmod", y), a, b), np.array(rests, dtype))
    np.testing.assert_array_equal(evaluate(library, x.with_("mod", y), a, b), np.array(modulos, dtype))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
def test_shifts_and_powers_of_integers_are_total(library: Library, dtype: str) -> None:
    """A shift by the width or more, a negative exponent: values, not undefined behaviour."""
    bits = DTYPES[dtype].bits
    a = _array([1, 2, 3, 100, 77], dtype)
    by = _array([0, 1, bits - 1, bits, bits + 3], dtype)
    x, y = leaf(0, dtype), leaf(1, dtype)
    a, by = (v.ravel() for v in np.meshgrid(a, by))
    left = [(int(n) << int(s)) & ((1 << bits) - 1) if s < bits else 0 for n, s in zip(a, by, strict=True)]
    right = [int(n) >> int(s) if s < bits else 0 for n, s in zip(a, by, strict=True)]
    wanted = np.array(left, np.uint64).astype(dtype)
    np.testing.assert_array_equal(evaluate(library, x.with_("shl", y), a, by), wanted)
    np.testing.assert_array_equal(evaluate(library, x.with_("shr", y), a, by), np.array(right, dtype))
    base, exponent = _array([2, 3, 1, 5, 0, 7], dtype), _array([6, 4, 100, 0, 0, 1], dtype)
    np.testing.assert_array_equal(evaluate(library, x.with_("pow", y), base, exponent), base**exponent)
    if dtype.startswith("int"):
        base, exponent = _array([2, 1, -1, -1, 0], dtype), _array([-1, -2, -2, -3, -1], dtype)
        y = evaluate(library, x.with_("pow", y), base, exponent)
        np.testing.assert_array_equal(y, [0, 1, 1, -1, 0])


def test_nan_decides_a_minimum(library: Library) -> None:
    """Of either operand, as in numpy."""
    a = np.array([1, np.nan, 2, np.nan], np.float32)
    b = np.array([2, 1, np.nan, np.nan], np.float32)
    y = evaluate(library, leaf(0, "float32").with_("min", leaf(1, "float32")), a, b)
    np.testing.assert_array_equal(y, np.minimum(a, b))


def test_the_argument_structure_has_no_holes() -> None:
    """Ahead of time it is written into a C file, field by field."""
    total = sum(ctypes.sizeof(kind) for _, kind in MapArgs._fields_)
    assert total == ctypes.sizeof(MapArgs)
