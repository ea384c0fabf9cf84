"""The table of rules: what it has no kernel for, and what a rule trips over, is named."""

import pytest

from pliant.compile.call import Target
from pliant.compile.lower.rules import lower
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.isa import AVX2

FLOATS = TensorType("float32", (4, 6))


def test_all_operators_without_a_kernel_are_named() -> None:
    """Whoever builds graphs by hand learns of all of them at once."""
    nodes = (Node("Nonsense", ("x",), ("a",), name="n"), Node("Absurd", ("a",), ("y",)))
    graph = Graph(nodes, ("x",), ("y",), dict.fromkeys("xay", FLOATS))
    with pytest.raises(GraphError, match=r"no kernel exists for Absurd, Nonsense \(first at node 'n'\)"):
        lower(graph, Target(AVX2))


def test_an_attribute_a_rule_cannot_use_names_the_node() -> None:
    """ONNX's inference lets wild attributes pass; they must not come out as a bare assertion."""
    node = Node("Transpose", ("x",), ("y",), {"perm": (7, 0)}, "wild")
    graph = Graph((node,), ("x",), ("y",), dict.fromkeys("xy", FLOATS))
    with pytest.raises(GraphError, match=r"node 'wild' \(Transpose\)"):
        lower(graph, Target(AVX2))
