"""A schedule changes where bytes lie, never what they say: any forms, in any layouts, give equal outputs."""

import random
from collections.abc import Callable

import numpy as np
import onnx
import pytest

from pliant.compiler.layout.apply_schedule import apply_schedule
from pliant.compiler.layout.layout_forms import build_problem, measurement_keys, with_times
from pliant.compiler.layout.window_forms import LOOPS
from pliant.compiler.passes.passes import simplify
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.emit.isa import X86_64, Isa, host_isa
from tests.compiler.layout.models import (
    a_model,
    a_network,
    a_span_convolution,
    a_transformer,
    expected,
    feeds_of,
    graph_of,
    run,
)

UNFUSED = ("attention", "matmul", "norm", "gelu")


def check(graph: Graph, model: onnx.ModelProto, isa: Isa | None = None) -> None:
    """Outputs as onnx's reference has them; float32 sums in another order differ by some 1e-6."""
    feeds = feeds_of(model)
    got = run(graph, feeds, isa)
    for name, want in expected(model, feeds).items():
        np.testing.assert_allclose(got[name], want, rtol=2e-4, atol=2e-5, err_msg=f"{name}\n{graph}")


@pytest.mark.parametrize("build", [a_network, a_transformer, a_span_convolution])
@pytest.mark.parametrize("without", [(), (*UNFUSED, "maps")])
def test_any_schedule_computes_the_same(
    build: Callable[[], onnx.ModelProto], without: tuple[str, ...]
) -> None:
    """Random layouts for all tensors and random forms for all operators, reorders wherever they differ."""
    model = build()
    graph = graph_of(model, without)
    problem = build_problem(graph)
    check(graph, model)
    for seed in range(4):
        chance = random.Random(seed)
        layouts = {edge: chance.choice(options) for edge, options in problem.layouts.items()}
        forms = [chance.choice(operator.forms) for operator in problem.operators]
        applied = apply_schedule(graph, layouts, forms)
        check(applied.graph, model)
        check(simplify(applied.graph, ("channels_last",)), model)


@pytest.mark.parametrize("build", [a_network, a_transformer, a_span_convolution])
def test_every_form_of_every_operator_runs(build: Callable[[], onnx.ModelProto]) -> None:
    """Each form on its own, on the baseline instruction set too: none is offered that cannot be run."""
    model = build()
    graph = graph_of(model, UNFUSED)
    problem = build_problem(graph)
    for i, operator in enumerate(problem.operators):
        for form in operator.forms[1:]:
            forms = [form if j == i else o.forms[0] for j, o in enumerate(problem.operators)]
            check(
                apply_schedule(graph, problem.default, forms).graph,
                model,
                X86_64 if i % 3 == 0 else host_isa(),
            )


@pytest.mark.parametrize("order", LOOPS)
def test_plain_loops_leave_the_names_of_other_tensors_alone(order: str) -> None:
    """TorchScript names tensors x, x.1, x.2: none of them is the form's own."""
    rng = np.random.default_rng(1)
    sizes = {"w": (2, 2, 3, 3), "b": (2,), "v": (5, 5), "c": (5,)}
    weights = {x: rng.standard_normal(n).astype(np.float32) for x, n in sizes.items()}
    bounds = {"least": np.array(0, np.float32), "most": np.array(1, np.float32)}
    ops = ("Neg", "Abs", "Tanh", "Sigmoid", "Softsign", "Erf", "Sin", "Cos")
    others = ("y.0", "y.1", "y.pads", "y.padded", "y.low", "y.high", "z.0", "z.1")
    nodes: list[tuple[str, str, str, dict[str, object]]] = [
        *((op, "x", name, {}) for op, name in zip(ops, others, strict=True)),
        ("Conv", "x w b", "p", {"pads": [1, 1, 1, 1]}),
        ("Clip", "p least most", "y", {}),
        ("MatMul", "y v", "q", {}),
        ("Add", "q c", "r", {}),
        ("Relu", "r", "z", {}),
        ("Concat", " ".join((*others, "z")), "s", {"axis": 1}),
    ]
    model = a_model(nodes, {"x": (1, 2, 4, 5)}, weights | bounds, "s")
    graph = graph_of(model, ("maps",))
    problem = build_problem(graph)
    forms = [next((f for f in o.forms if f.variant == order), o.forms[0]) for o in problem.operators]
    applied = apply_schedule(graph, problem.default, forms).graph
    assert {"LoopConv", "LoopMatMul"} <= {node.op for node in applied.nodes}
    check(applied, model)


def test_a_result_of_plain_loops_gets_a_gap_behind_its_rows() -> None:
    """The loops pad their input, and the reorder of their result pads its rows: with other amounts."""
    model = a_span_convolution()
    graph = graph_of(model, ("maps",))
    problem = build_problem(graph)
    layouts = problem.default | {"d": next(layout for layout in problem.layouts["d"] if "+" in layout)}
    forms = [
        next((f for f in o.forms if o.name == "d" and f.variant == LOOPS[0]), o.forms[0])
        for o in problem.operators
    ]
    applied = apply_schedule(graph, layouts, forms).graph
    assert [node.op for node in applied.nodes].count("Pad") == 3, str(applied)
    check(applied, model)


def test_layouts_that_convolutions_share_need_no_reorder_between_them() -> None:
    """Channels last from the first convolution to the last: as text."""
    graph = graph_of(a_network())
    problem = build_problem(graph)
    wanted = measurement_keys(graph, problem)
    problem = with_times(problem, wanted, dict.fromkeys(wanted.forms.values(), 1e-6))
    inside = {e: "0231" if "0231" in options else options[0] for e, options in problem.layouts.items()}
    applied = apply_schedule(graph, inside, [problem.best(o, inside)[1] for o in problem.operators])
    assert applied.n_reorders <= 1, str(applied.graph)  # the image that comes in
    assert str(applied.graph.types["p"]) == "float32[2,4,7,6]"


def test_a_transpose_is_absorbed_by_the_layout_of_what_it_reads() -> None:
    """Text in, text out: a product writes its result where the transpose would have put it."""
    f = "float32"
    types = {"a": (4, 2, 3), "b": (4, 3, 5), "c": (4, 2, 5), "y": (2, 4, 5)}
    graph = Graph(
        (
            Node("MatMul", ("a", "b"), ("c",)),
            Node("Transpose", ("c",), ("y",), {"perm": (1, 0, 2)}),
        ),
        ("a", "b"),
        ("y",),
        {x: TensorType(f, shape) for x, shape in types.items()},
    )
    problem = build_problem(graph)
    assert problem.layouts["c"] == ("012", "021", "102")
    layouts = problem.default | {"c": "102"}
    forms = [
        next(form for form in o.forms if form.outputs == (layouts[o.name],)) for o in problem.operators[:1]
    ]
    forms += [next(form for form in problem.operators[1].forms if form.inputs == ("102",))]
    assert str(simplify(apply_schedule(graph, layouts, forms).graph)) == (
        "graph (float32[4,2,3] a, float32[4,3,5] b)\n"
        "  y = FusedMatMul <a_view=(0, 4, 2, 3, 6, 3, 1), b_view=(0, 4, 3, 5, 15, 5, 1), "
        "y_view=(0, 4, 2, 5, 5, 20, 1)> (a, b)\n"
        "  return float32[2,4,5] y\n"
    )


def test_the_default_schedule_is_the_graph_itself() -> None:
    """Nothing is touched where nothing is chosen: ONNX in, the same nodes out."""
    graph = graph_of(a_transformer())
    problem = build_problem(graph)
    applied = apply_schedule(graph, problem.default, [o.forms[0] for o in problem.operators])
    assert str(applied.graph) == str(graph)


def test_equal_operators_are_measured_once() -> None:
    """Twelve layers ask for what one asks for."""
    n, shape = 12, (3, 8, 8)
    nodes = tuple(Node("MatMul", (f"x{i}", f"x{i}"), (f"x{i + 1}",)) for i in range(n))
    graph = Graph(nodes, ("x0",), (f"x{n}",), {f"x{i}": TensorType("float32", shape) for i in range(n + 1)})
    problem = build_problem(graph)
    wanted = measurement_keys(graph, problem)
    assert len(set(wanted.forms.values())) < len(wanted.forms) / 3
    assert set(wanted.forms.values()) | set(wanted.reorders.values()) == set(wanted.samples)
