"""Pass `reshapes`, as text."""

from pliant.compiler.passes.reshapes import merge_reshapes
from tests.compiler.passes.read_graph import body, read


def test_a_chain_of_reshapes_is_one() -> None:
    """Heads are split and merged through several shapes; only the last one counts."""
    graph = read(
        """g (float[2,3,4] x) => (float[4,1,6] y) {
          i = Constant <value = int64[1] {1}> ()
          a = Unsqueeze(x, i) b = Flatten <axis = 2> (a)
          s = Constant <value = int64[3] {4, 1, 6}> ()
          y = Reshape(b, s) }"""
    )
    merged = merge_reshapes(graph)
    assert body(merged)[-1] == "y = Reshape <allowzero=1> (x, y.shape)"
    assert merged.constants["y.shape"].tolist() == [4, 1, 6]


def test_a_shape_with_a_zero_is_said_literally() -> None:
    """In ONNX a 0 means "as before"; what is written here means an empty dimension."""
    graph = read(
        """g (float[0,3] x) => (float[p,q] y) {
          s = Constant <value = int64[1] {-1}> () t = Constant <value = int64[2] {5, 0}> ()
          a = Flatten(x) y = Reshape <allowzero = 1> (a, t) }"""
    )
    merged = merge_reshapes(graph)
    assert merged.types["y"].shape == (5, 0)
    assert merged.constants["y.shape"].tolist() == [5, 0]
