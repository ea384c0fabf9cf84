"""What is expected of a shape that is not compiled yet, and of one that is."""

import time
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

import pliant
from pliant.api.compile_onnx import compile
from pliant.errors import InputError
from pliant.ir.dilation import Dilation
from pliant.ir.endpoint import Request
from pliant.run.array_sessions.compile_times import CompileTimes
from pliant.run.array_sessions.onnx_session import OnnxSession
from tests.run.array_sessions.attention_model import ids, write_attention

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def asked(session: OnnxSession, n: int) -> Request:
    return session.request(ids(1, n))


def test_the_time_is_that_of_the_last_ones() -> None:
    """The first compiles kernels that later shapes share, so it is soon outweighed, but bounds them."""
    times = CompileTimes()
    assert 0.0 < times.expected.median_s < 1.0
    for seconds in (5.0, 0.2, 0.3, 0.1):
        times.observe(seconds)
    assert times.expected.median_s == pytest.approx(0.25)
    assert times.expected.p95_s == 5.0
    for _ in range(8):
        times.observe(0.2)
    assert times.expected.p95_s == 0.2


def test_a_new_shape_is_expected_to_be_compiled_first(tmp_path: Path) -> None:
    """Under a memory limit each length has an image of its own: an answer to a known one is no measure."""
    with compile(write_attention(tmp_path / "a.onnx"), threads=1, memory=10**9) as session:
        assert session.compiling(asked(session, 5)) is not None
        for _ in range(3):
            session.answer(asked(session, 5))
        assert session.compiling(asked(session, 5)) is None
        compiling = session.compiling(asked(session, 6))
        assert compiling is not None
        ready, other = (session.estimate(asked(session, n)) for n in (5, 6))
        assert ready.seconds == session.curve().at(5)
        assert other.seconds == session.curve().at(6) + compiling.median_s
        assert other.bound_s is not None
        assert other.bound_s >= session.levels()[-1].bound_curve.at(6) + compiling.p95_s
        session.answer(asked(session, 6))
        assert session.estimate(asked(session, 6)).seconds == session.curve().at(6)


def test_compiling_is_no_part_of_an_answers_time(tmp_path: Path) -> None:
    """Else the next answer to the same shape would be expected to take as long."""
    with compile(write_attention(tmp_path / "a.onnx"), threads=1, memory=10**9) as session:
        session.run(ids(1, 3))  # its time is not taken from another answer's, either
        reply = session.answer(asked(session, 3))
        assert reply.whole_s == reply.seconds
        reply = session.answer(asked(session, 7))
        assert reply.whole_s is not None
        assert reply.whole_s < reply.seconds


def test_another_threads_answer_does_not_change_what_compiling_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins and fails while this one, which has compiled, runs: on a slower device, which sleeps."""
    failed: list[type[Exception]] = []

    def ask_badly() -> None:
        try:
            session.answer(Request(1, tensors={"ids": np.zeros((1, 1), np.float32)}))
        except InputError as error:
            failed.append(type(error))

    def sleep(seconds: float) -> None:
        other = Thread(target=ask_badly)
        other.start()
        other.join()

    dilation = Dilation(compute=2.0)
    path = str(write_attention(tmp_path / "a.onnx"))
    with pliant.open(path, threads=1, memory=10**9, dilation=dilation) as session:
        request = asked(session, 7)
        monkeypatch.setattr(time, "sleep", sleep)
        reply = session.answer(request)
    assert failed
    assert reply.whole_s is not None
    assert reply.whole_s < reply.seconds


def test_a_form_for_all_sizes_is_ready_for_them(tmp_path: Path) -> None:
    """Without a memory limit, one executable serves many lengths, which are bound and not compiled."""
    with compile(write_attention(tmp_path / "a.onnx", batch="batch"), threads=1) as session:
        assert session.compiling(asked(session, 40)) is not None
        session.run(ids(1, 40))
        assert session.compiling(asked(session, 41)) is None


def test_the_first_answer_of_a_bucket_is_compiled_twice(tmp_path: Path) -> None:
    """Once for the bucket and once for the size itself, with which it is compared."""
    path = write_attention(tmp_path / "words.onnx", mixes=False)
    with compile(path, threads=1, memory=10**9, buckets={"n": (16, 48)}) as session:
        session.run(ids(1, 16))
        exact, padded = (session.compiling(asked(session, n)) for n in (48, 40))
        assert exact is not None
        assert padded == exact.times(2.0)
        session.run(ids(1, 40))
        assert session.compiling(asked(session, 40)) is None
        assert session.compiling(asked(session, 39)) is None
        assert session.compiling(Request(60, tensors={"ids": np.zeros((1, 60), np.int64)})) is None
