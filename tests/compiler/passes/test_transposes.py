"""Pass `transposes`, as text."""

from pliant.compiler.passes.passes import simplify
from pliant.compiler.passes.transposes import merge_transposes
from tests.compiler.passes.read_graph import body, read

PAIR = """g (float[2,3,4] x) => (float[p,q,r] y) {{
  a = Transpose <perm = [2, 0, 1]> (x) b = Transpose <perm = [{}]> (a) y = Relu(b) }}"""


def test_two_transposes_are_one() -> None:
    """The inner permutation is applied first: axis i of the result is axis inner[outer[i]] of the input."""
    merged = merge_transposes(read(PAIR.format("0, 2, 1")))
    assert body(merged)[1:] == ["b = Transpose <perm=(2, 1, 0)> (x)", "y = Relu (b)"]
    assert merged.types["b"].shape == (4, 3, 2)


def test_a_transpose_and_its_inverse_are_none() -> None:
    """Layout changes of exporters cancel."""
    assert body(simplify(read(PAIR.format("1, 2, 0")), without=["maps"])) == ["y = Relu (x)"]


def test_a_missing_permutation_reverses_the_axes() -> None:
    """ONNX's default."""
    graph = read("g (float[2,3,4] x) => (float[p,q,r] y) { a = Transpose(x) b = Transpose(a) y = Relu(b) }")
    assert body(merge_transposes(graph))[1] == "b = Transpose <perm=(0, 1, 2)> (x)"
