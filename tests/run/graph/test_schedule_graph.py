"""Sessions under every schedule answer alike; what is measured once is not measured again."""

from pathlib import Path

import numpy as np
import pytest

import pliant
from pliant.api import compile_onnx as compiled
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import make_image
from pliant.compiler.layout.choose_layouts import choose_schedule
from pliant.compiler.layout.layout_forms import build_problem, measurement_keys, with_times
from pliant.errors import InputError
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.emit.isa import host_isa
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.profile.form_costs import CostFile
from pliant.run.graph.array_stage import open_image
from pliant.run.graph.schedule_graph import GraphScheduler
from tests.compiler.layout.models import a_network, a_transformer, expected, feeds_of, graph_of, run


@pytest.mark.parametrize("kind", ["static", "none", "paper", "exact"])
def test_every_schedule_answers_as_onnx_does(kind: compiled.ScheduleKind) -> None:
    """Against onnx's reference, on convolutions and on a transformer."""
    for model in (a_network(), a_transformer()):
        feeds = feeds_of(model)
        session = pliant.compile(model, schedule=kind, threads=2)
        got = session.run(feeds)
        for name, want in expected(model, feeds).items():
            np.testing.assert_allclose(got[name], want, rtol=2e-4, atol=2e-5, err_msg=f"{kind} {name}")
        report = session.schedule
        assert (report is None) == (kind == "static")
        if report is not None:
            assert report.kind == kind
            assert report.predicted_s <= report.default_s


def test_the_second_plan_measures_nothing(tmp_path: Path) -> None:
    """The table on disk answers, in this process and in the next."""
    library = Library(host_isa())
    with ThreadPool(2, library) as pool:
        graph = graph_of(a_network())
        costs = CostFile(tmp_path / "costs.json")
        first = GraphScheduler("exact", pool, library, costs).schedule(graph).report
        second = GraphScheduler("exact", pool, library, costs).schedule(graph).report
    assert first is not None
    assert second is not None
    assert first.measured > 0
    assert second.measured == 0
    assert second.predicted_s == pytest.approx(first.predicted_s)


def test_plain_loops_are_what_none_runs() -> None:
    """The ablation's baseline: no tile, no packed panel, default layouts."""
    graph = graph_of(a_network())
    problem = build_problem(graph)
    schedule = choose_schedule(problem, "none")
    assert schedule.layouts == problem.default
    assert {f.variant for o, f in zip(graph.nodes, schedule.forms, strict=True) if "Conv" in o.op} == {"ijk"}


def test_operators_are_told_in_plain_loops_reordered_and_as_chosen(tmp_path: Path) -> None:
    """Figures 8 to 10: a reordered loop is one of the plain ones, and what has no loops counts the same."""
    library = Library(host_isa())
    with ThreadPool(1, library) as pool:
        graph = graph_of(a_network())
        found = GraphScheduler("exact", pool, library, CostFile(tmp_path / "costs.json")).time_operators(
            graph
        )
    assert sum(row.n for row in found) == len(graph.nodes)
    for row in found:
        assert row.reordered_s <= row.loops_s
        if not row.has_loops:
            assert row.reordered_s == row.loops_s == row.default_s
    assert any(row.has_loops for row in found)


def test_noise_does_not_choose() -> None:
    """Forms within some per cent of the default count as equal: nothing is turned for them."""
    graph = graph_of(a_network())
    problem = build_problem(graph)
    wanted = measurement_keys(graph, problem, all_loops=True)
    noise = np.random.default_rng(0)
    table = {key: 1e-4 * (1.0 + 0.03 * noise.random()) for key in wanted.samples}
    schedule = choose_schedule(with_times(problem, wanted, table), "exact")
    assert schedule.layouts == problem.default


def test_an_unknown_schedule_is_refused() -> None:
    """A misspelt option must not silently mean the default."""
    with pytest.raises(InputError, match="no schedule"):
        pliant.compile(a_network(), schedule="exat")  # type: ignore[arg-type]


def test_both_loop_orders_run() -> None:
    """i-k-j beside i-j-k: convolutions with groups, strides and pads, and products, in either order."""
    from pliant.compiler.layout.apply_schedule import apply_schedule

    for model in (a_network(), a_transformer()):
        graph = graph_of(model)
        problem = build_problem(graph)
        for order in ("ijk", "ikj"):
            forms = [next((f for f in o.forms if f.variant == order), o.forms[0]) for o in problem.operators]
            got = run(apply_schedule(graph, problem.default, forms).graph, feeds_of(model))
            for name, want in expected(model, feeds_of(model)).items():
                np.testing.assert_allclose(got[name], want, rtol=2e-4, atol=2e-5)


def test_plain_loops_keep_a_bias_that_is_named_after_the_result() -> None:
    """A folded batch norm names it so: as a column of the same name it was added along rows."""
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.standard_normal((6, 4, 1, 1)).astype(np.float32),
        "y.bias": rng.standard_normal(6).astype(np.float32),
    }
    x = rng.standard_normal((1, 4, 5, 6)).astype(np.float32)
    types = {name: TensorType("float32", a.shape) for name, a in arrays.items()}
    types |= {"x": TensorType("float32", x.shape), "y": TensorType("float32", (1, 6, 5, 6))}
    graph = Graph((Node("Conv", ("x", "w", "y.bias"), ("y",)),), ("x",), ("y",), types, arrays)
    library = Library(host_isa())
    with ThreadPool(1, library) as pool:
        planned = GraphScheduler("none", pool, library).schedule(graph).graph
        assert "LoopConv" in {node.op for node in planned.nodes}
        got = open_image(make_image(planned, Target(library.isa)), pool, library).run({"x": x})["y"]
    want = np.einsum("oi,nihw->nohw", arrays["w"][:, :, 0, 0], x) + arrays["y.bias"][:, None, None]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
