"""Pass `dead`, as text."""

from pliant.compiler.passes.dead_code import drop_dead_code
from tests.compiler.passes.read_graph import body, read


def test_what_no_output_depends_on_is_dropped() -> None:
    """Exporters leave branches behind that nobody reads."""
    graph = read("g (float[2] x) => (float[2] y) { a = Relu(x) b = Neg(a) y = Abs(x) }")
    assert body(drop_dead_code(graph)) == ["y = Abs (x)"]


def test_an_unread_output_loses_its_name() -> None:
    """Kernels need not compute what nobody reads; the parts of a split are all made, to know their places."""
    graph = read(
        """g (float[4,3] x) => (float[4,3] y, float[2,3] b) {
          y, mean = LayerNormalization <axis = 1> (x, w)
          w = Constant <value = float[3] {1, 2, 3}> ()
          a, b = Split <axis = 0> (x) }""".replace(
            "y, mean = LayerNormalization <axis = 1> (x, w)", ""
        ).replace("a, b", "y, mean = LayerNormalization <axis = 1> (x, w) a, b"),
    )
    assert body(drop_dead_code(graph)) == [
        "y = LayerNormalization <axis=1> (x, w)",
        "a, b = Split <axis=0, num_outputs=2> (x)",
    ]


def test_a_graph_without_dead_nodes_stays_the_same_object() -> None:
    """Passes run until none finds anything, which they say by handing their graph back."""
    graph = read("g (float[2] x) => (float[2] y) { y = Abs(x) }")
    assert drop_dead_code(graph) is graph
