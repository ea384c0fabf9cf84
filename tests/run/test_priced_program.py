"""What runs is a schedule of the program that is priced and shown, whatever the session."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pliant
from pliant.api.compile_onnx import compile
from pliant.ir.cost import Span, SpanState
from pliant.ir.dilation import Dilation
from pliant.ir.link import Link
from pliant.ir.program import Program, bind
from pliant.ir.schedule import violations
from pliant.models.recurrent.recurrent_spec import RecurrentSpec
from pliant.run.array_sessions import recurrent_session
from pliant.run.execute import execute
from pliant.run.execute_inline import execute_inline, inline_spans
from pliant.run.graph import graph_runner
from pliant.run.submodel import pipeline
from pliant.run.submodel.plans.submodel_planner import SessionOptions
from tests.models.onnx_models import parse
from tests.recurrent_models import write_recurrent
from tests.run.conftest import OpenElastic, paper_profile

Ran = list[tuple[Program, Sequence[Span]]]
SUM = "g (float[n,4] x, float[4] b) => (float[n,4] y) { y = Add(x, b) }"
WHERE = """g (float[n,4] x) => (float[n,4] y, int64[2,k] i) {
    z = Relu(x)  i = NonZero(z)  y = Neg(z)
}"""
TEXT = "the story was not good"


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Every program that is executed from now on, with its spans."""
    seen: Ran = []

    def recorded(execute: Any, program: Program, *args: Any) -> tuple[Span, ...]:
        spans: tuple[Span, ...] = execute(program, *args)
        seen.append((program, spans))
        return spans

    def recorded_alone(program: Program, compute: Any) -> Sequence[float]:
        readings_s = execute_inline(program, compute)
        seen.append((program, inline_spans(program, readings_s)))
        return readings_s

    monkeypatch.setattr(pipeline, "execute", partial(recorded, execute))
    for module in (graph_runner, recurrent_session):
        monkeypatch.setattr(module, "execute_inline", recorded_alone)
    return seen


def _check(ran: Ran, at_least: int) -> None:
    assert len(ran) >= at_least
    for program, spans in ran:
        assert not list(violations(program, spans))


def test_an_onnx_session_runs_the_program_of_its_plan(ran: Ran) -> None:
    """Of several steps: compiled parts and what data decide between them."""
    session = compile(parse(WHERE), threads=2, images=8)
    for n in (1, 3):
        session.run({"x": np.ones((n, 4), np.float32)})
    _check(ran, 2)
    assert all(len(program.segments[0].steps) > 1 for program, _ in ran)
    assert {program for program, _ in ran} == {image.program for image in session.plan.images}
    profile = session.profile({"x": np.ones((3, 4), np.float32)}, 2)
    assert (profile.program, profile.spans) in ran


def test_an_onnx_session_of_one_step_tells_of_it_as_of_a_program(ran: Ran) -> None:
    """Its one step is called without a loop over steps; what is shown and timed is the same program."""
    session = compile(parse(SUM), threads=2, images=8)
    feeds = [{"x": np.ones((n, 4), np.float32), "b": np.ones(4, np.float32)} for n in (1, 2, 2)]
    session.run_many(feeds)
    assert not ran
    profile = session.profile(feeds[2], 2)
    assert profile.program in {image.program for image in session.plan.images}
    assert not list(violations(profile.program, profile.spans))
    assert profile.spans[0].end_s > profile.spans[0].start_s


def test_a_recurrent_session_runs_the_program_of_its_plan(ran: Ran, tmp_path: Path) -> None:
    """One program for all lengths: the one that is shown has the length bound."""
    model = write_recurrent(tmp_path / "m", RecurrentSpec("lstm", 10, 6, 8, labels=("bad", "good")))
    with pliant.open(model, threads=1) as session:
        ids = np.zeros((1, 3), np.int64)
        session.run({"ids": ids})
        profile: Any = session.profile({"ids": ids}, 2)
        _check(ran, 4)
        shown: Any = session.explain(3)
        assert {bind(program, {"words": 3}) for program, _ in ran} == {shown.program} == {profile.program}


@pytest.mark.parametrize("io_slowdown", [1.0, 100.0])
def test_an_elastic_session_runs_the_program_that_was_priced(
    ran: Ran, elastic_session: OpenElastic, io_slowdown: float
) -> None:
    """Late loads are cut or skipped, and batches wait for all of them; the order stays that of the plan."""
    options = SessionOptions(0.012, 0, length=8, adapts=False)
    with elastic_session(options, profile=paper_profile(disk=Link(1e-6, 1e9))) as session:
        session.runner.dilation = Dilation(io=io_slowdown)
        replies = [session(TEXT) for _ in range(3)]
        if io_slowdown == 1.0:
            session([TEXT] * 3)
    _check(ran, 3)
    for reply, (program, spans) in zip(replies, ran, strict=False):
        assert spans == reply.details.spans
        tokens = {"tokens": reply.length}
        assert bind(reply.details.program, tokens) == program
        assert not list(violations(program, reply.details.predicted_spans))
    if io_slowdown > 1.0:
        assert any(span.state is not SpanState.RAN for _, spans in ran for span in spans)
