"""A size beyond what a model takes is named with its limit, whatever in the model sets it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from pliant.api.compile_onnx import compile
from pliant.errors import InputError
from pliant.ir.port import Port
from pliant.run.graph.size_limit import find_size_limit
from tests.models.onnx_models import parse

ROWS = 8
TABLE = np.random.default_rng(0).standard_normal((ROWS, 4)).astype(np.float32)

# BERT: a buffer of positions, cut to the length of the input.
_BUFFER = """g (int64[B,S] ids) => (float[B,S,4] y) {
    zero = Constant <value = int64[1] {0}> ()
    s = Shape <start = 1, end = 2> (ids)  p = Slice(positions, zero, s)
    e = Gather(table, p)  f = Cast <to = 1> (ids)  g = Unsqueeze(f, last)  y = Add(e, g) }"""
# GPT-2: positions counted, looked up in a table.
_COUNTED = """g (int64[B,S] ids) => (float[B,S,4] y) {
    zero = Constant <value_int = 0> ()  one = Constant <value_int = 1> ()
    n = Shape <start = 1, end = 2> (ids)  m = Squeeze(n)  p = Range(zero, m, one)
    e = Gather(table, p)  f = Cast <to = 1> (ids)  g = Unsqueeze(f, last)  y = Add(e, g) }"""
# A causal mask, cut out of a square.
_MASK = """g (float[B,S,S] x) => (float[B,S,S] y) {
    zero = Constant <value = int64[2] {0, 0}> ()  n = Shape <start = 1, end = 3> (x)
    m = Slice(square, zero, n)  y = Add(x, m) }"""


def _model(text: str) -> Any:
    model = parse(text)
    weights = {
        "table": TABLE,
        "positions": np.arange(ROWS),
        "last": np.int64([-1]),
        "square": np.tri(ROWS, dtype=np.float32),
    }
    for name, value in weights.items():
        if name in text:
            model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


@pytest.mark.parametrize("text", [_BUFFER, _COUNTED], ids=["buffer", "counted"])
def test_a_length_beyond_the_position_table_names_both(text: str) -> None:
    """The user learns what to cut to, not what shape inference thinks; clamped positions would be silent."""
    session = compile(_model(text), threads=1)
    ids = np.arange(2 * ROWS).reshape(2, ROWS)
    np.testing.assert_allclose(session(ids).output, TABLE + ids[..., None], rtol=1e-6)
    for n in (ROWS + 1, ROWS + 1, 40):
        with pytest.raises(
            InputError, match=rf"dimension 'S' is {n} in input 'ids'.* at most {ROWS}: .*Shorten"
        ):
            session(np.ones((2, n), np.int64))
    np.testing.assert_allclose(session(ids).output, TABLE + ids[..., None], rtol=1e-6)


def test_rows_that_a_models_own_shape_has_no_room_for_are_refused() -> None:
    """An export with its batch written into a Reshape gave the first row's answer, and dropped the others."""
    model = parse(
        """g (float[B,6] x) => (float[1,C] y)
        <int64[2] s = {1, 6}> { t = Relu(x)  y = Reshape(t, s) }"""
    )
    session = compile(model, threads=1)
    assert session(np.ones((1, 6), np.float32)).output.shape == (1, 6)
    with pytest.raises(InputError, match=r"dimension 'B' is 2 in input 'x'.* at most 1: .*'y' \(Reshape\)"):
        session(np.ones((2, 6), np.float32))


def test_a_square_beyond_the_causal_mask_names_both() -> None:
    """Decoders hold a mask instead of a table."""
    with pytest.raises(InputError, match=f"dimension 'S' is {ROWS + 3} in input 'x'.* at most {ROWS}: "):
        compile(_model(_MASK), threads=1)(np.ones((2, ROWS + 3, ROWS + 3), np.float32))


def test_a_bucket_beyond_the_limit_says_so() -> None:
    """The input may be short enough and its bucket not."""
    session = compile(_model(_BUFFER), threads=1, buckets={"S": (ROWS, 2 * ROWS)})
    with pytest.raises(InputError, match=f"'S' is {2 * ROWS} .* at most {ROWS}: .*smaller buckets"):
        session(np.ones((1, ROWS + 1), np.int64))


def test_a_limit_is_named_where_dimensions_are_fixed() -> None:
    """`--dim S=100` is a mistake at compile time."""
    with pytest.raises(InputError, match=f"dimension 'S' is 100 .* at most {ROWS}: "):
        compile(_model(_BUFFER), threads=1, dims={"B": 1, "S": 100})


@given(st.integers(1, 40), st.integers(0, 60), st.integers(1, 60), st.lists(st.integers(1, 60), max_size=3))
def test_the_limit_is_the_largest_size_that_fits(b: int, limit: int, size: int, guesses: list[int]) -> None:
    """Whatever earlier limits suggest; a size that fails at 1 too is no matter of length."""
    ports = [Port("x", "int64", ("B", "S")), Port("y", "int64", ("S", 3))]
    shapes = {"x": (b, limit + size), "y": (limit + size, 3)}

    def fits(tried: dict[str, tuple[int, ...]]) -> bool:
        assert tried["y"] == (tried["x"][1], 3)
        return tried["x"][1] <= limit

    found = find_size_limit(ports, shapes, fits, guesses)
    if limit == 0:
        assert found is None
    else:
        assert found is not None
        assert (found.name, found.port, found.size, found.limit) == ("S", "x", limit + size, limit)
