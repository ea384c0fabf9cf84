"""Table 3: the paper's votes against all assignments, on two models of our own and on random graphs.

Figure 11's models are not in the paper's text: (a) is a chain of convolutions and poolings, (b) two branches
of products that a sum and a concatenation join; every edge between operators has at least three layouts.
"""

import random
from pathlib import Path
from statistics import median

import numpy as np

import checkout  # noqa: F401 - research lies there
from pliant.api import compile_onnx as compiled
from pliant.compiler.layout.exact_layouts import choose_exactly
from pliant.compiler.layout.layout_problem import LayoutProblem, Operator, OperatorForm
from pliant.compiler.layout.majority_vote import choose_by_vote
from pliant.ir.graph import Graph, Node, TensorType
from pliant.run.graph.schedule_graph import GraphScheduler
from research.layout_brute_force import brute_force
from runtimes import THREADS

PAPER_LOSS = {"a": 0.17, "b": 0.09}
SEEDS = range(5)


def measure(cache: Path, n_drawn: int) -> list[dict[str, object]]:
    """A row for each model: the loss of the worst of SEEDS beside the paper's."""
    rows: list[dict[str, object]] = []
    for which, graph in (("a", _linear()), ("b", _branched())):
        problem = _priced(graph, cache)
        best_s, _ = brute_force(problem)
        votes = [choose_by_vote(problem, seed).seconds for seed in SEEDS]
        n_edges, n_layouts = _layouts(problem, graph)
        rows.append(
            {
                "model": f"({which}) {'linear' if which == 'a' else 'branched'}",
                "operators": len(problem.operators),
                "edges between operators": n_edges,
                "layouts of each, at least": n_layouts,
                "default [ms]": 1e3 * problem.seconds(problem.default),
                "brute force [ms]": 1e3 * best_s,
                "votes, worst of 5 seeds [ms]": 1e3 * max(votes),
                "exact [ms]": 1e3 * choose_exactly(problem).seconds,
                "loss of votes": max(votes) / best_s - 1.0,
                "loss in the paper": PAPER_LOSS[which],
            }
        )
    losses = _random_losses(n_drawn)
    drawn = dict.fromkeys(rows[0], "") | {
        "model": f"{len(losses)} branched graphs, times drawn",
        "operators": 8,
        "loss of votes": f"median {median(losses):.3f}, largest {max(losses):.3f}",
    }
    return [*rows, drawn]


def _priced(graph: Graph, cache: Path) -> LayoutProblem:
    """The problem of a graph, every form measured."""
    library, pool = compiled.shared_pool(THREADS, cache)
    return GraphScheduler("exact", pool, library).make_problem(graph)


def _layouts(problem: LayoutProblem, graph: Graph) -> tuple[int, int]:
    """The number of edges between operators, and the fewest layouts of an edge."""
    inner = [e for e in problem.edges if e not in graph.inputs and e not in graph.outputs]
    fewest = min(len(problem.layouts[e]) for e in inner)
    assert fewest >= 3, problem.layouts
    return len(inner), fewest


def _linear() -> Graph:
    """Convolutions and poolings in a row."""
    rng = np.random.default_rng(0)
    nodes, types, constants = [], {"x": TensorType("float32", (1, 16, 48, 80))}, {}
    x, channels, image = "x", 16, (48, 80)
    for i, outs in enumerate((32, 32, 48, 64, 24)):
        kernel = 3 if i % 2 == 0 else 1
        w = rng.standard_normal((outs, channels, kernel, kernel)).astype(np.float32)
        constants[f"w{i}"], types[f"w{i}"] = w, TensorType("float32", w.shape)
        pads = (kernel // 2,) * 4
        nodes.append(Node("Conv", (x, f"w{i}"), (f"c{i}",), {"pads": pads}))
        types[f"c{i}"] = TensorType("float32", (1, outs, *image))
        x, channels = f"c{i}", outs
        if i in (1, 3):
            image = (image[0] // 2, image[1] // 2)
            nodes.append(Node("MaxPool", (x,), (f"p{i}",), {"kernel_shape": (2, 2), "strides": (2, 2)}))
            types[f"p{i}"] = TensorType("float32", (1, outs, *image))
            x = f"p{i}"
    return Graph(tuple(nodes), ("x",), (x,), types, constants)


def _branched() -> Graph:
    """Two branches of products of three dimensions, joined by a sum and a concatenation."""
    shape = (64, 64, 64)
    f = [
        Node("Transpose", ("x",), ("a",), {"perm": (1, 0, 2)}),
        Node("MatMul", ("a", "y"), ("b",)),
        Node("Softmax", ("b",), ("c",), {"axis": 1}),
        Node("MatMul", ("y", "a"), ("d",)),
        Node("Transpose", ("d",), ("e",), {"perm": (1, 0, 2)}),
        Node("Add", ("c", "e"), ("g",)),
        Node("MatMul", ("g", "c"), ("h",)),
        Node("Concat", ("h", "e"), ("z",), {"axis": 1}),
    ]
    types = {x: TensorType("float32", shape) for x in "xyabcdegh"}
    types["z"] = TensorType("float32", (64, 128, 64))
    return Graph(tuple(f), ("x", "y"), ("z",), types)


def _random_losses(n: int) -> list[float]:
    """The losses of votes on graphs with random times."""
    layouts = ("row", "column", "panel")
    losses = []
    for seed in range(n):
        chance = random.Random(seed)
        edges, operators = ["in"], []
        for i in range(8):
            inputs = tuple(chance.sample(edges[-3:], min(len(edges), chance.choice((1, 2)), 3)))
            keys = {tuple(chance.choice(layouts) for _ in range(len(inputs) + 1)) for _ in range(8)}
            keys.add(("row",) * (len(inputs) + 1))
            forms = tuple(OperatorForm(k[:-1], k[-1:], chance.uniform(1.0, 5.0)) for k in sorted(keys))
            operators.append(Operator(f"o{i}", inputs, (f"e{i}",), forms))
            edges.append(f"e{i}")
        read = {e for o in operators for e in o.inputs}
        options_ = {e: layouts if e in read and e != "in" else ("row",) for e in edges}
        reorder = {e: {(a, b): 1.5 for a in layouts for b in layouts if a != b} for e in edges}
        problem = LayoutProblem(tuple(operators), options_, reorder)
        losses.append(choose_by_vote(problem, seed).seconds / choose_exactly(problem).seconds - 1.0)
    return losses
