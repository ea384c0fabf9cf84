"""Another order of execution: valid, and never of a higher peak."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.compiler.rewrite.execution_order import lower_peak, peak_bytes
from pliant.ir.graph import Graph, Node, TensorType


def a_graph(seed: int, n: int) -> Graph:
    """Random data flow; some nodes are reshapes, which own nothing."""
    chance = random.Random(seed)
    names, types = ["x"], {"x": TensorType("float32", (4,))}
    nodes = []
    for i in range(n):
        inputs = tuple(chance.choice(names[-6:]) for _ in range(chance.choice([1, 1, 2])))
        is_alias = chance.random() < 0.2
        shape = types[inputs[0]].shape if is_alias else (chance.randrange(1, 2000),)
        nodes.append(Node("Reshape" if is_alias else "Op", inputs, (f"t{i}",)))
        types[f"t{i}"] = TensorType("float32", shape)
        names.append(f"t{i}")
    read = {x for node in nodes for x in node.inputs}
    outputs = tuple(x for x in names[1:] if x not in read) or (names[-1],)
    return Graph(tuple(nodes), ("x",), outputs, types)


@given(st.integers(0, 10_000), st.integers(1, 25))
@settings(max_examples=80, deadline=None)
def test_the_peak_never_rises_and_data_flow_is_kept(seed: int, n: int) -> None:
    """Graph's own check refuses a node before what it reads; the nodes are the same ones."""
    graph = a_graph(seed, n)
    ordered = lower_peak(graph)
    assert {id(node) for node in ordered.nodes} == {id(node) for node in graph.nodes}
    assert peak_bytes(ordered) <= peak_bytes(graph)


def test_branches_run_one_after_the_other() -> None:
    """Two branches that swell and shrink: breadth first holds both, one after the other holds one."""
    big, small = TensorType("float32", (1000,)), TensorType("float32", (10,))
    nodes = (
        Node("Op", ("x",), ("a",)),
        Node("Op", ("x",), ("b",)),
        Node("Op", ("a",), ("c",)),
        Node("Op", ("b",), ("d",)),
        Node("Op", ("c", "d"), ("y",)),
    )
    types = {"x": small, "a": big, "b": big, "c": small, "d": small, "y": small}
    graph = Graph(nodes, ("x",), ("y",), types)
    ordered = lower_peak(graph)
    assert [node.outputs[0] for node in ordered.nodes] == ["a", "c", "b", "d", "y"]
    assert (peak_bytes(graph), peak_bytes(ordered)) == (8040, 4080)


def test_an_order_that_gains_nothing_is_left_alone() -> None:
    """The same object: nothing downstream has to look."""
    graph = a_graph(1, 1)
    assert lower_peak(graph) is graph
