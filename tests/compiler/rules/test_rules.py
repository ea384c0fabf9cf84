"""The table of rules: what it has no kernel for, and what a rule trips over, is named."""

import pytest

from pliant.compiler.executable.call import LoweredNode, Target
from pliant.compiler.rules import rules
from pliant.compiler.rules.rules import lower
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.emit.isa import AVX2

FLOATS = TensorType("float32", (4, 6))


def test_all_operators_without_a_kernel_are_named() -> None:
    """Whoever builds graphs by hand learns of all of them at once."""
    nodes = (Node("Nonsense", ("x",), ("a",), name="n"), Node("Absurd", ("a",), ("y",)))
    graph = Graph(nodes, ("x",), ("y",), dict.fromkeys("xay", FLOATS))
    with pytest.raises(GraphError, match=r"no kernel exists for Absurd, Nonsense \(first at node 'n'\)"):
        lower(graph, Target(AVX2))


def test_an_attribute_a_rule_cannot_use_names_the_node() -> None:
    """ONNX's inference lets wild attributes pass; the user has to find the node."""
    node = Node("Transpose", ("x",), ("y",), {"perm": (7, 0)}, "wild")
    graph = Graph((node,), ("x",), ("y",), dict.fromkeys("xy", FLOATS))
    with pytest.raises(
        GraphError, match=r"node 'wild' \(Transpose\).*\(x: float32\[4,6\]\): \[7, 0\] is not an order"
    ):
        lower(graph, Target(AVX2))


@pytest.mark.parametrize("kind", [AssertionError, TypeError, KeyError, ValueError, ZeroDivisionError])
def test_a_mistake_in_a_rule_stays_what_it_is(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """Told as an error of the user's model, a bug of ours would never be reported."""
    mistake = kind("ours")

    def rule(node: Node, graph: Graph, target: Target) -> LoweredNode:
        raise mistake

    monkeypatch.setattr(rules, "RULES", {"Relu": rule})
    graph = Graph((Node("Relu", ("x",), ("y",)),), ("x",), ("y",), dict.fromkeys("xy", FLOATS))
    with pytest.raises(kind) as caught:
        lower(graph, Target(AVX2))
    assert caught.value is mistake
