"""Pass `common`, as text."""

from pliant.compiler.passes.common_subexpressions import merge_common_subexpressions
from tests.compiler.passes.read_graph import body, read


def test_what_is_computed_twice_is_computed_once() -> None:
    """Exporters build the mask anew in every layer."""
    graph = read(
        """g (float[2] x) => (float[2] y) {
          c = Constant <value = float {3}> () d = Constant <value = float {3}> ()
          a = Mul(x, c) b = Mul(x, d) y = Add(a, b) }"""
    )
    assert body(merge_common_subexpressions(graph)) == ["a = Mul (x, c)", "y = Add (a, a)"]


def test_attributes_types_and_inputs_tell_nodes_apart() -> None:
    """3 and 3.0, axis 0 and axis 1, x and y are different."""
    graph = read(
        """g (float[2,2] x, float[2,2] z) => (float[2,2] y) {
          a = Softmax <axis = 0> (x) b = Softmax <axis = 1> (x) c = Softmax <axis = 0> (z)
          y = Sum(a, b, c) }"""
    )
    assert merge_common_subexpressions(graph) is graph


def test_numbers_are_drawn_anew() -> None:
    """Two draws from the same distribution differ."""
    graph = read(
        "g (float[2] x) => (float[2] y) { a = RandomNormalLike(x) b = RandomNormalLike(x) y = Add(a, b) }"
    )
    assert merge_common_subexpressions(graph) is graph


def test_outputs_that_are_equal_are_copies() -> None:
    """Both names are asked for, so both exist."""
    graph = read("g (float[2] x) => (float[2] y, float[2] z) { y = Relu(x) z = Relu(x) }")
    assert body(merge_common_subexpressions(graph)) == ["y = Relu (x)", "z = Identity (y)"]
