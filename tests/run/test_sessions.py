"""What holds for sessions on graphs, compiled or loaded: ports, pools, memory."""

import threading
import time
import tracemalloc
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pliant
from pliant.api.compile_onnx import compile, compile_image
from pliant.compiler.aot.compiled_directory import save
from pliant.compiler.executable.call import Target
from pliant.kernels.emit.isa import host_isa
from pliant.run.array_sessions.array_session import ArraySession as Session
from tests.models.onnx_models import parse

MODEL = parse(
    "g (float[256,128] x, float[128,128] w) => (float[256,128] y, double[256,128] z) "
    "{ a = MatMul(x, w) b = Softmax(a) y = MatMul(b, w) z = Cast <to = 11> (b) }"
)
FEEDS = {
    x: np.random.default_rng(i).standard_normal(shape).astype(np.float32)
    for i, (x, shape) in enumerate({"x": (256, 128), "w": (128, 128)}.items())
}
ARRAY_BYTES = FEEDS["w"].nbytes


@pytest.fixture(params=["compiled", "loaded"])
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Session]:
    """The same model, as `pliant.compile` and as `pliant.load` give it, on two threads."""
    with _open(request.param, tmp_path, 2) as opened:
        yield opened


def _open(kind: str, directory: Path, threads: int) -> Session:
    if kind == "compiled":
        return compile(MODEL, threads=threads)
    save(compile_image(MODEL, Target(host_isa(), threads))[1], directory / "saved")
    return pliant.load(directory / "saved", threads=threads)


def test_ports_are_described_as_onnxruntime_does(session: Session) -> None:
    """Code that sets up its arrays from `get_inputs()` needs no change."""
    onnxruntime = pytest.importorskip("onnxruntime")
    theirs = onnxruntime.InferenceSession(MODEL.SerializeToString(), providers=["CPUExecutionProvider"])
    for ours, known in (
        (session.get_inputs(), theirs.get_inputs()),
        (session.get_outputs(), theirs.get_outputs()),
    ):
        assert [(p.name, p.type, p.shape) for p in ours] == [(p.name, p.type, p.shape) for p in known]


def test_a_session_shows_what_it_is(session: Session) -> None:
    """At a prompt or in a log: what goes in, what comes out, on how many threads."""
    assert "x: float32[256,128]" in repr(session)
    assert "z: float64[256,128]" in repr(session)
    assert "2 threads" in repr(session)
    session.close()
    assert "closed" in repr(session)


@pytest.mark.parametrize("kind", ["compiled", "loaded"])
def test_a_dropped_session_is_gone_at_once(kind: str, tmp_path: Path) -> None:
    """Its memory must not wait for the garbage collector, which knows nothing of its size."""
    opened = _open(kind, tmp_path, 1)
    opened.run(FEEDS)
    held = weakref.ref(opened)
    del opened
    assert held() is None


def test_outputs_that_are_given_cost_no_memory(session: Session) -> None:
    """After the first run, a run into given arrays allocates nothing of an array's size."""
    out = {y: a.copy() for y, a in session.run(FEEDS).items()}
    tracemalloc.start()
    for _ in range(3):
        session.run(FEEDS, out)
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    for _ in range(20):
        session.run(FEEDS, out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak - before < ARRAY_BYTES // 4


@pytest.mark.parametrize("kind", ["compiled", "loaded"])
def test_threads_are_as_many_as_asked_for_and_park(kind: str, tmp_path: Path) -> None:
    """Workers of a session that waits for requests cost no processor time."""
    with _open(kind, tmp_path, 3) as session:
        session.run(FEEDS)
        assert session.plan.n_threads == 3
        assert {"pliant-1", "pliant-2"} <= {thread.name for thread in threading.enumerate()}
        idle = threading.Event()
        idle.wait(0.05)  # time to park: what is measured is the time after it
        before = time.process_time()
        idle.wait(0.25)
        assert time.process_time() - before < 0.02


def test_sessions_of_both_kinds_share_a_pool(session: Session) -> None:
    """Ten models must not be ten times the threads; runs of different sessions take turns on it."""
    threads = threading.enumerate()
    others = [compile(MODEL, threads=2) for _ in range(2)]
    assert threading.enumerate() == threads
    wanted = session.run(FEEDS)["y"]
    wrong: list[int] = []

    def work(one: Session) -> None:
        answers = [one.run(FEEDS)["y"] for _ in range(20)]
        wrong.extend(1 for y in answers if not np.array_equal(y, wanted))

    users = [threading.Thread(target=work, args=(one,)) for one in (session, *others)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert not wrong
