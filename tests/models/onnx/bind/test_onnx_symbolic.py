"""Graphs with open sizes, found by binding at a few: what does not follow from the sizes has none."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pliant.errors import ShapeError
from pliant.ir.symbolic import plain_value
from pliant.models.onnx.bind.onnx_bind import bind_first
from pliant.models.onnx.bind.onnx_blocks import BoundPart
from pliant.models.onnx.bind.onnx_constants import constants_at
from pliant.models.onnx.bind.onnx_symbolic import SymbolicGraph, symbolic_graph
from pliant.models.onnx.onnx_file import open_onnx
from pliant.run.session.ports import symbols
from tests.compiler.passes.read_graph import EVERY_OPERATOR
from tests.models.onnx_models import parse

ROWS = parse("""
    g (float[N,4] x) => (float[M] y)
    <int64[1] all = {-1}>
    { y = Reshape(x, all) }
""")


def _found(model: Any, shapes: Mapping[str, tuple[int, ...]]) -> SymbolicGraph | None:
    opened = open_onnx(model)

    def graph(given: dict[str, tuple[int, ...]]) -> BoundPart:
        return bind_first(opened, {}, supported=EVERY_OPERATOR, shapes=given, keeps_lookups=True)

    return symbolic_graph(dict(shapes), {p.name: symbols(p) for p in opened.inputs}, graph)


def test_types_follow_from_the_open_size() -> None:
    """At 5 rows the output has 20 elements; at 7 it has 28, without binding again."""
    found = _found(ROWS, {"x": (5, 4)})
    assert found is not None
    assert found.family.sizes({"x": (7, 4)}) == (7,)
    assert tuple(map(plain_value, found.at((7,)).graph.types["y"].shape)) == (28,)


def test_sizes_that_broadcast_are_never_open() -> None:
    """A size of 1 is stretched where others are not: a graph for 5 rows is not that for one."""
    found = _found(ROWS, {"x": (5, 4)})
    assert found is not None
    assert found.family.sizes({"x": (1, 4)}) is None


def test_a_model_that_takes_another_way_beyond_some_size_has_no_family() -> None:
    """Sizes at hand lie between those it is bound at, so that a bend on either side shows."""
    bent = parse("""
        g (float[N] x) => (float[M] y)
        <int64[1] most = {20}, int64[1] zero = {0}>
        { n = Shape(x) m = Min(n, most) y = Slice(x, zero, m) }
    """)
    assert _found(bent, {"x": (5,)}) is None


@pytest.mark.parametrize("n", [5, 6, 33, 64])
@pytest.mark.parametrize("step", [2, 3, 32])
def test_a_model_that_rounds_its_size_has_no_family(n: int, step: int) -> None:
    """All of 2, 6 and 1024 are even: an odd size would be cut as if it were even."""
    rounded = parse(f"""
        g (float[N] x) => (float[M] y)
        <int64[1] step = {{{step}}}, int64[1] zero = {{0}}>
        {{ n = Shape(x) parts = Div(n, step) end = Mul(parts, step) y = Slice(x, zero, end) }}
    """)
    assert _found(rounded, {"x": (n,)}) is None


def test_sizes_that_go_together_are_open_together() -> None:
    """A decoder's mask is as long as its past and a row: neither can grow alone."""
    model = parse("""
        g (float[P,4] past, float[1,4] x, float[T] mask) => (float[T] y)
        <int64[1] last = {1}>
        { all = Concat<axis=0>(past, x) sums = ReduceSum<keepdims=0>(all, last) y = Mul(sums, mask) }
    """)
    found = _found(model, {"past": (8, 4), "x": (1, 4), "mask": (9,)})
    assert found is not None
    assert found.family.sizes({"past": (30, 4), "x": (1, 4), "mask": (31,)}) == (30,)
    assert found.family.sizes({"past": (30, 4), "x": (1, 4), "mask": (30,)}) is None


def test_constants_that_follow_from_sizes_are_made_for_each() -> None:
    """Positions and masks are folded when a model is bound; those of other sizes are parts or sums."""
    model = parse("""
        g (float[P,4] past, float[N] x) => (float[N] y, int64[1] place)
        <int64 zero = {0}, int64 one = {1}, int64[1] first = {0}>
        {
          n = Shape(x) m = Squeeze(n) places = Range(zero, m, one) real = Cast<to=1>(places) y = Add(x, real)
          s = Shape(past) t = Gather(s, first) place = Identity(t)
        }
    """)
    found = _found(model, {"past": (8, 4), "x": (6,)})
    assert found is not None
    made = {str(constant.dtype): constant for constant in found.made.values()}
    assert np.array_equal(made["float32"].at((8, 3)), np.arange(3, dtype=np.float32))
    assert np.array_equal(made["int64"].at((11, 6)), [11])


def test_grids_are_made_for_sizes_that_are_open_together() -> None:
    """Masks of a batch are looked up in one row of numbers: text times length, and place."""
    model = parse("""
        g (float[B,N] x) => (int64[B,N] y)
        <int64 zero = {0}, int64 one = {1}, int64[1] right = {1}>
        {
          s = Shape(x) b = Gather(s, zero) n = Gather(s, one) rows = Range(zero, b, one)
          columns = Range(zero, n, one) starts = Mul(rows, n) down = Unsqueeze(starts, right)
          y = Add(down, columns)
        }
    """)
    found = _found(model, {"x": (3, 5)})
    assert found is not None
    (made,) = found.made.values()
    assert np.array_equal(made.at((4, 7)), np.arange(28).reshape(4, 7))


def test_shapes_that_do_not_go_together_are_an_error() -> None:
    """The caller says what is wrong; a family must not be looked for again and again."""
    model = parse("g (float[N,4] x, float[M,4] w) => (float[N,4] y) { y = Add(x, w) }")
    with pytest.raises(ShapeError):
        _found(model, {"x": (5, 4), "w": (3, 4)})


def test_what_waits_is_the_same_for_all_sizes_and_what_it_reads_follows_from_them() -> None:
    """A part behind data is bound for another size without walking the model again."""
    model = parse("""
        g (float[N,4] x) => (int64[2,M] at, int64[K] sizes)
        <float zero = {0}, int64[1] more = {5}>
        {
          over = Greater(x, zero) at = NonZero(over) s = Shape(x) sizes = Concat<axis=0>(s, more)
        }
    """)
    found = _found(model, {"x": (6, 4)})
    assert found is not None
    assert [placed.node.op_type for placed in found.waiting] == ["NonZero"]
    assert np.array_equal(constants_at(found.known, (9,))["sizes"], [9, 4, 5])
