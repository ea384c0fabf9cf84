"""Rows that would share the sets of a cache get a gap behind them, and nobody else notices."""

import random
from dataclasses import replace

import numpy as np
import pytest

from pliant.compiler.layout.apply_schedule import apply_schedule
from pliant.compiler.layout.layout_forms import build_problem, measurement_keys, with_times
from pliant.compiler.layout.row_gaps import insert_gaps
from pliant.ir.graph import Graph, Node, TensorType
from tests.compiler.layout.models import a_span_convolution, expected, feeds_of, graph_of, run

WIDE = 1024


def a_block(width: int = WIDE, last: str = "MatMul") -> Graph:
    """x @ w1 through an activation, @ w2, along a residual."""
    rng = np.random.default_rng(0)
    shapes = {"x": (2, 9, 40), "h": (2, 9, width), "y": (2, 9, 40)}
    weights = {"w1": (40, width), "b1": (width,), "w2": (width, 40)}
    constants = {x: (rng.standard_normal(n) / 8).astype(np.float32) for x, n in weights.items()}
    types = {x: TensorType("float32", n) for x, n in {**shapes, **weights}.items()}
    nodes = (
        Node("FusedMatMul", ("x", "w1", "b1"), ("h",), {"activation": "relu"}),
        Node("FusedMatMul", ("h", "w2", "", "x"), ("y",)),
    )
    return Graph(nodes, ("x",), ("y",), types, constants)


def test_a_tensor_between_products_gets_gaps_as_text() -> None:
    """Both products say through views where its rows are; 64 bytes more a row, and nothing else changes."""
    assert str(insert_gaps(a_block())).splitlines()[-3:] == [
        f"  h = FusedMatMul <a_view=(0, 2, 9, 40, 360, 40, 1), activation='relu', "
        f"b_view=(0, 40, {WIDE}, {WIDE}, 1), y_view=(0, 2, 9, {WIDE}, {9 * 1040}, 1040, 1)> (x, w1, b1)",
        f"  y = FusedMatMul <a_view=(0, 2, 9, {WIDE}, {9 * 1040}, 1040, 1), b_view=(0, {WIDE}, 40, 40, 1)> "
        "(h, w2, , x)",
        "  return float32[2,9,40] y",
    ]


def test_products_with_gaps_are_those_without() -> None:
    """The same bits: only addresses change."""
    graph = a_block()
    x = np.random.default_rng(1).standard_normal((2, 9, 40)).astype(np.float32)
    np.testing.assert_array_equal(run(insert_gaps(graph), {"x": x})["y"], run(graph, {"x": x})["y"])


@pytest.mark.parametrize("with_bias", [False, True])
def test_a_constant_residual_is_read_as_it_lies(with_bias: bool) -> None:
    """It is read through the strides of the result, so the result of such a product has no gaps."""
    rng = np.random.default_rng(0)
    shapes = {"w": (64, WIDE), "c": (1, 9, WIDE), "b": (WIDE,), "v": (WIDE, 40)}
    constants = {x: (rng.standard_normal(n) / 8).astype(np.float32) for x, n in shapes.items()}
    types = {x: (1, 9, n) for x, n in {"x": 64, "h": WIDE, "y": 40}.items()} | shapes
    nodes = (
        Node("FusedMatMul", ("x", "w", "b" if with_bias else "", "c"), ("h",)),
        Node("MatMul", ("h", "v"), ("y",)),
    )
    graph = Graph(nodes, ("x",), ("y",), {x: TensorType("float32", n) for x, n in types.items()}, constants)
    x = rng.standard_normal((1, 9, 64)).astype(np.float32)
    wide = {name: array.astype(np.float64) for name, array in constants.items()}
    h = x @ wide["w"] + wide["c"] + (wide["b"] if with_bias else 0)
    for given in (graph, insert_gaps(graph)):
        # Sums of 1024 terms of size 1 in float32 differ from float64 by some 1e-6 times their root.
        np.testing.assert_allclose(run(given, {"x": x})["y"], h @ wide["v"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", ["short rows", "an output", "another reader", "a residual"])
def test_no_other_tensor_gets_gaps(case: str) -> None:
    """The caller's arrays and other operators know dense tensors only; narrow rows spread over the sets."""
    graph = a_block(1040 if case == "short rows" else WIDE)
    if case == "an output":
        graph = replace(graph, outputs=("y", "h"))
    elif case == "another reader":
        types = {**graph.types, "z": graph.types["h"]}
        graph = replace(graph, nodes=(*graph.nodes, Node("Relu", ("h",), ("z",))), types=types)
    elif case == "a residual":
        types = {**graph.types, "z": graph.types["h"]}
        added = Node("FusedMatMul", ("x", "w1", "", "h"), ("z",))
        graph = replace(graph, nodes=(*graph.nodes, added), outputs=("y", "z"), types=types)
    assert insert_gaps(graph) is graph


def an_attention_layer() -> Graph:
    """Queries, keys and values, attention, a layer norm along a residual, one more product."""
    rng = np.random.default_rng(2)
    rows, width, heads = 7, 24, 3
    weights = dict.fromkeys(("wq", "wk", "wv", "wo", "wy"), (width, width)) | {"g": (width,), "b": (width,)}
    constants = {x: (rng.standard_normal(n) / 4).astype(np.float32) for x, n in weights.items()}
    view = (0, 1, heads, rows, width // heads, rows * width, width // heads, width, 1)
    views = {f"{x}_view": view for x in "qkvy"}
    nodes = (
        *(Node("FusedMatMul", ("x", f"w{i}"), (i,)) for i in "qkv"),
        Node("FusedAttention", ("q", "k", "v"), ("a",), {**views, "scale": 0.3}),
        Node("FusedMatMul", ("a", "wo", "", "x"), ("o",), {"a_view": (0, 1, rows, width, 0, width, 1)}),
        Node("LayerNormalization", ("o", "g", "b"), ("n",), {"axis": -1}),
        Node("FusedMatMul", ("n", "wy", "", "o"), ("y",)),
    )
    types = {x: TensorType("float32", (1, rows, width)) for x in ("x", "q", "k", "v", "o", "n", "y")}
    types |= {"a": TensorType("float32", (1, rows, heads, width // heads))}
    types |= {x: TensorType("float32", n) for x, n in weights.items()}
    return Graph(nodes, ("x",), ("y",), types, constants)


def test_products_norms_and_attention_run_with_gaps_wherever_they_are_offered() -> None:
    """A schedule may choose them by measuring; three layouts at least for every tensor within a layer."""
    graph = an_attention_layer()
    problem = build_problem(graph)
    inner = {"q", "k", "v", "o", "n"}
    assert all(len(problem.layouts[x]) >= 3 and any("+" in n for n in problem.layouts[x]) for x in inner)
    x = np.random.default_rng(1).standard_normal((1, 7, 24)).astype(np.float32)
    wanted = run(graph, {"x": x})["y"]
    gaps = {e: next((n for n in options if "+" in n), options[0]) for e, options in problem.layouts.items()}
    keyed = measurement_keys(graph, problem)
    costly = with_times(problem, keyed, dict.fromkeys(keyed.forms.values(), 1e-6))
    applied = apply_schedule(graph, gaps, [costly.best(o, gaps)[1] for o in costly.operators])
    assert applied.n_reorders == 1, str(applied.graph)  # the last residual, which lies as the output does
    np.testing.assert_array_equal(run(applied.graph, {"x": x})["y"], wanted)
    for i, operator in enumerate(problem.operators):
        for form in operator.forms[1:]:
            forms = [form if j == i else o.forms[0] for j, o in enumerate(problem.operators)]
            got = run(apply_schedule(graph, problem.default, forms).graph, {"x": x})["y"]
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5, err_msg=f"{operator.name} {form}")
    for seed in range(4):
        chance = random.Random(seed)
        layouts = {e: chance.choice(options) for e, options in problem.layouts.items()}
        forms = [chance.choice(o.forms) for o in problem.operators]
        got = run(apply_schedule(graph, layouts, forms).graph, {"x": x})["y"]
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5, err_msg=f"seed {seed}")


def test_gaps_go_from_norm_to_windows_without_a_reorder() -> None:
    """Transposes, convolutions, element-wise operators and a pad step over them, as products and norms do."""
    model = a_span_convolution()
    graph = graph_of(model, ("maps",))
    problem = build_problem(graph)
    makers = {o.name: o for o in problem.operators}
    inner = ("n", "t", "d", "c", "s", "m0", "m", "q", "v", "vp.rows")
    assert set(inner) < set(makers), str(graph)
    assert all(len(problem.layouts[x]) >= 3 for x in inner), problem.layouts
    gaps = problem.default | {x: next(n for n in problem.layouts[x] if "+" in n) for x in inner}
    keyed = measurement_keys(graph, problem)
    costly = with_times(problem, keyed, dict.fromkeys(keyed.forms.values(), 1e-6))
    applied = apply_schedule(graph, gaps, [costly.best(o, gaps)[1] for o in costly.operators])
    assert applied.n_reorders == 0, str(applied.graph)
    text = str(applied.graph)
    assert "d = FusedConv <group=32, pads=(1, 1), x_gap=16, " in text
    assert (
        "c = FusedMatMul <a_view=(0, 1, 7, 32, 336, 48, 1), activation='relu', b_view=(0, 32, 32, 1, 32), "
        in text
    )
    assert "y = FusedMatMul <a_view=(0, 7, 2, 16, 3, 48, 16, 1, 48), " in text
    feeds = feeds_of(model)
    wanted = expected(model, feeds)["y"]
    np.testing.assert_allclose(run(applied.graph, feeds)["y"], wanted, rtol=2e-4, atol=2e-5)


def test_rows_shorter_than_a_gap_get_none() -> None:
    """It would move more than it could save."""
    types = {"a": (9, 8, 20), "b": (9, 20, 15), "y": (9, 8, 15), "z": (9, 8, 15)}
    nodes = (Node("MatMul", ("a", "b"), ("y",)), Node("Relu", ("y",), ("z",)))
    graph = Graph(nodes, ("a", "b"), ("z",), {x: TensorType("float32", n) for x, n in types.items()})
    assert build_problem(graph).layouts["y"] == ("012", "021")
