"""Profiles of compiled sessions: every step once, named by what it came from, times that add up."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import pliant
from pliant.api.compile_onnx import compile, sample_feeds
from pliant.compiler.aot.compiled_directory import save
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.encode_image import CallEntry
from pliant.compiler.executable.image import make_image
from pliant.errors import InputError
from pliant.ir.cost import Span
from pliant.ir.program import Compute, Program, Segment, Step
from pliant.kernels.emit.isa import host_isa
from pliant.run.session.call_profile import TimedRun, profile_of
from tests.models.onnx_models import parse

MODEL = parse(
    "g (float[8,16] x, float[16,16] w, float[16] b) => (float[8,16] y) "
    "{ p = MatMul(x, w) s = Add(p, b) r = Relu(s) z = Softmax(r) y = Sqrt(z) }"
)


def test_steps_are_named_by_the_nodes_that_became_one() -> None:
    """An engineer looks for the model's nodes, not for ours."""
    session = compile(MODEL, threads=1)
    labels = [step.label for step in session.profile(sample_feeds(session.inputs), 2).steps]
    assert labels == ["p (MatMul+Add+Relu)", "z", "y"]


def test_times_add_up_and_shares_are_of_the_whole() -> None:
    """Steps follow one another: their spans meet, and their sum is the run."""
    session = compile(MODEL, threads=2)
    profile = session.profile(sample_feeds(session.inputs), 5)
    assert sum(step.share for step in profile.steps) == pytest.approx(1.0)
    assert sum(t.share for t in profile.by_operator()) == pytest.approx(1.0)
    assert sum(t.n for t in profile.by_operator()) == len(profile.steps)
    assert all(a.end_s == b.start_s for a, b in pairwise(profile.calls))
    (step,) = profile.spans
    assert step.end_s == profile.min_s <= profile.median_s
    assert step.start_s == profile.calls[0].start_s
    assert profile.calls[-1].end_s <= step.end_s
    assert all(0 < step.min_s <= step.median_s for step in profile.steps)


def test_a_product_has_its_rate() -> None:
    """2 M N K over the time, whatever it was fused with; a softmax has none."""
    session = compile(MODEL, threads=1)
    product, *others = session.profile(sample_feeds(session.inputs), 3).steps
    assert product.gflop_s == pytest.approx(2 * 8 * 16 * 16 / product.median_s / 1e9)
    assert product.gb_s == pytest.approx(4 * (8 * 16 + 16 * 16 + 16 + 8 * 16) / product.median_s / 1e9)
    assert all(step.gflop_s is None for step in others)


def test_a_profile_leaves_the_answers_alone() -> None:
    """It runs on fresh arrays of its own; those of the caller stay."""
    session = compile(MODEL, threads=2)
    feeds = sample_feeds(session.inputs)
    before = session.run(feeds)["y"]
    kept = before.copy()
    session.profile({x: -a for x, a in feeds.items()}, 2)
    assert np.array_equal(before, kept)
    assert np.array_equal(session.run(feeds)["y"], kept)


def test_operations_of_several_steps_count_once() -> None:
    """A node of a copy, a product and a finish: the product's row has the rate of all three."""
    rows = [CallEntry("k", 0, 1, 1, "conv", "Conv", flops=8_000_000_000) for _ in range(3)]
    run = TimedRun([Span(0, "cpu", 0.0, 4.0)], [np.array([0.0, 1.0, 3.0, 4.0])])
    profile = profile_of(Program((Segment((Step("cpu", Compute("graph", rows=1)),)),)), [rows], [run], 1)
    assert [step.gflop_s for step in profile.steps] == [None, 2.0, None]


def test_a_saved_session_keeps_its_names(tmp_path: Path) -> None:
    """The model may be gone where the directory is run."""
    session = compile(MODEL, threads=1)
    feeds = sample_feeds(session.inputs)
    save(make_image(session.graph(feeds), Target(host_isa())), tmp_path / "saved")
    saved = pliant.load(tmp_path / "saved", threads=1).profile(feeds, 2)
    assert [s.label for s in saved.steps] == [s.label for s in session.profile(feeds, 2).steps]


def test_the_trace_has_every_step(tmp_path: Path) -> None:
    """In the form that ui.perfetto.dev opens, times in microseconds."""
    session = compile(MODEL, threads=1)
    profile = session.profile(sample_feeds(session.inputs), 2)
    profile.write_trace(tmp_path / "trace.json")
    events = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    whole, *calls = events
    assert [e["name"] for e in calls] == [s.label for s in profile.steps]
    assert whole["ts"] + whole["dur"] == pytest.approx(profile.min_s * 1e6)
    assert whole["ts"] <= calls[0]["ts"]
    assert calls[-1]["ts"] + calls[-1]["dur"] <= whole["ts"] + whole["dur"]


def test_it_prints_as_tables() -> None:
    """`print(session.profile(feeds))` is what most will type."""
    session = compile(MODEL, threads=1)
    text = str(session.profile(sample_feeds(session.inputs), 2))
    for word in ("operator", "MatMul+Add+Relu", "GFLOP/s", "2 runs", "1 threads"):
        assert word in text


def test_no_runs_measure_nothing() -> None:
    """A median of nothing is no number."""
    session = compile(MODEL, threads=1)
    with pytest.raises(InputError, match="0 runs"):
        session.profile(sample_feeds(session.inputs), 0)
