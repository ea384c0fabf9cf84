"""Element-wise trees become one node: as text, and with equal results."""

from itertools import pairwise

import numpy as np

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import make_image
from pliant.compiler.fusion.fuse_maps import fuse_maps
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.emit.isa import host_isa
from pliant.run.graph.array_stage import open_image
from tests.compiler.rules.run_node import machine


def _graph(nodes: list[tuple[str, str, str]], outputs: str, **shapes: tuple[int, ...]) -> Graph:
    """Nodes as (op, inputs, output); every tensor is float32 of the shape given, or else [2, 3]."""
    made = [Node(op, tuple(x.split()), (y,), name=y) for op, x, y in nodes]
    names = {x for node in made for x in (*node.inputs, *node.outputs)}
    types = {x: TensorType("float32", shapes.get(x, (2, 3))) for x in sorted(names)}
    produced = {y for _, _, y in nodes}
    inputs = tuple(sorted(names - produced))
    return Graph(tuple(made), inputs, tuple(outputs.split()), types)


def _lines(graph: Graph) -> list[str]:
    return [str(node) for node in graph.nodes]


def test_a_chain_becomes_one_node() -> None:
    """x * sigmoid(x + b), with b broadcast: each tensor is read once."""
    graph = _graph([("Add", "x b", "s"), ("Sigmoid", "s", "g"), ("Mul", "x g", "y")], "y", b=(3,))
    text = "(mul:float32 x0:float32 (sigmoid:float32 (add:float32 x0:float32 x1:float32)))"
    assert _lines(fuse_maps(graph)) == [f"y = Map <expression='{text}'> (x, b)"]


def test_what_is_read_twice_stays() -> None:
    """A tensor with two readers, or an output of the graph, is made once and kept."""
    nodes = [("Exp", "x", "e"), ("Neg", "e", "n"), ("Abs", "e", "y")]
    assert fuse_maps(graph := _graph(nodes, "n y")) is graph
    graph = _graph([("Exp", "x", "e"), ("Neg", "e", "y")], "e y")
    assert fuse_maps(graph) is graph


def test_what_is_broadcast_is_not_computed_again() -> None:
    """exp of three numbers stays three exponentials."""
    graph = _graph([("Exp", "b", "e"), ("Mul", "x e", "y")], "y", b=(3,), e=(3,))
    assert fuse_maps(graph) is graph


def test_other_operators_end_a_chain() -> None:
    """Two maps around a transpose."""
    nodes = [
        ("Exp", "x", "e"),
        ("Neg", "e", "n"),
        ("Transpose", "n", "t"),
        ("Abs", "t", "a"),
        ("Relu", "a", "y"),
    ]
    graph = _graph(nodes, "y", t=(3, 2), a=(3, 2), y=(3, 2))
    assert [node.op for node in fuse_maps(graph).nodes] == ["Map", "Transpose", "Map"]


def test_a_reader_twice_over_is_one_reader() -> None:
    """Squaring a map: the tree is written twice and computed once."""
    graph = _graph([("Tanh", "x", "t"), ("Mul", "t t", "y")], "y")
    (line,) = _lines(fuse_maps(graph))
    assert line.count("tanh") == 2
    assert line.endswith("(x)")


def test_trees_have_a_bound() -> None:
    """Squaring again and again doubles the text each time."""
    names = [f"t{i}" for i in range(12)]
    nodes = [("Mul", f"{a} {a}", b) for a, b in pairwise(names)]
    assert 1 < len(fuse_maps(_graph(nodes, "t11")).nodes) < 11


def test_the_fused_graph_computes_the_same() -> None:
    """Against the graph as it was, and numpy; with a tail and a broadcast row and column."""
    nodes = [
        ("Sub", "x m", "c"),
        ("Mul", "c c", "q"),
        ("Add", "q v", "w"),
        ("Sqrt", "w", "r"),
        ("Div", "c r", "y"),
    ]
    shapes = dict.fromkeys("xcqwry", (5, 37)) | {"m": (37,), "v": (5, 1)}
    graph = _graph(nodes, "y", **shapes)
    rng = np.random.default_rng(0)
    feeds = {x: rng.random(graph.types[x].shape).astype(np.float32) for x in graph.inputs}
    isa = host_isa()
    library, pool = machine(isa)
    answers = [
        open_image(make_image(g, Target(isa, 2)), pool, library).run(feeds)["y"]
        for g in (graph, fuse_maps(graph))
    ]
    centred = feeds["x"].astype(np.float64) - feeds["m"]
    wanted = centred / np.sqrt(centred**2 + feeds["v"])
    assert [node.op for node in fuse_maps(graph).nodes] == ["Sub", "Map"]
    np.testing.assert_array_equal(*answers)
    np.testing.assert_allclose(answers[0], wanted, rtol=1e-6)
