"""Pass `identities`, as text."""

import pytest

from pliant.compiler.passes.identities import drop_identities
from tests.compiler.passes.read_graph import body, read

ONE = "c = Constant <value = float {1}> ()"
ZERO = "c = Constant <value = float {0}> ()"


@pytest.mark.parametrize(
    "node",
    [
        "b = Identity(a)",
        "b = Cast <to = 1> (a)",
        "b = Transpose <perm = [0, 1]> (a)",
        f"{ONE} b = Mul(a, c)",
        f"{ONE} b = Mul(c, a)",
        f"{ONE} b = Div(a, c)",
        f"{ONE} b = Pow(a, c)",
        f"{ZERO} b = Add(c, a)",
        f"{ZERO} b = Sub(a, c)",
        "s = Constant <value = int64[2] {2, 3}> () b = Reshape(a, s)",
        "s = Constant <value = int64[2] {1, 1}> () b = Expand(a, s)",
        "s = Constant <value = int64[4] {0, 0, 0, 0}> () b = Pad(a, s)",
        "s = Constant <value = int64[1] {0}> () e = Constant <value = int64[1] {9}> () b = Slice(a, s, e, s)",
        "b = Concat <axis = 1> (a)",
        "b = Max(a)",
    ],
)
def test_a_node_that_passes_its_input_on_is_dropped(node: str) -> None:
    """Exporters write casts, expands and multiplications by one that do nothing."""
    graph = read(f"g (float[2,3] x) => (float[2,3] y) {{ a = Relu(x) {node} y = Neg(b) }}")
    assert body(drop_identities(graph)) == ["a = Relu (x)", "y = Neg (a)"]


@pytest.mark.parametrize(
    "node",
    [
        f"{ONE} b = Sub(c, a)",
        f"{ONE} b = Div(c, a)",
        "c = Constant <value = float[1,2,3] {1, 1, 1, 1, 1, 1}> () d = Mul(a, c) b = Squeeze(d)",
        "b = Transpose(a)",
        "s = Constant <value = int64[1] {-1}> () e = Constant <value = int64[1] {-99}> () "
        "z = Constant <value = int64[1] {0}> () b = Slice(a, s, e, z, s)",
    ],
)
def test_a_node_that_does_something_stays(node: str) -> None:
    """1 - x, 1 / x, a broadcast to another rank, a reversal: each looks like one of the above."""
    graph = read(f"g (float[2,3] x) => (float[p,q] y) {{ a = Relu(x) {node} y = Neg(b) }}")
    assert drop_identities(graph) is graph


def test_an_output_keeps_its_name() -> None:
    """The caller asks for outputs by name; the node before makes it under that name."""
    graph = read("g (float[2] x) => (float[2] y) { a = Relu(x) b = Neg(a) y = Identity(a) z = Abs(b) }")
    assert body(drop_identities(graph))[0] == "y = Relu (x)"


def test_an_identity_between_names_that_must_both_be_stays() -> None:
    """An output that is an input, or a second name of another output, is a copy."""
    graph = read(
        "g (float[2] x) => (float[2] y, float[2] u, float[2] v) "
        "{ y = Identity(x) a = Relu(x) u = Identity(a) v = Identity(a) }"
    )
    assert body(drop_identities(graph)) == ["y = Identity (x)", "u = Relu (x)", "v = Identity (u)"]
