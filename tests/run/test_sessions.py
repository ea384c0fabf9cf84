"""What holds for sessions, compiled or loaded: onnxruntime's ways, threads, forks, interrupts, memory."""

import copy
import os
import pickle
import select
import signal
import threading
import time
import tracemalloc
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pliant
from pliant.api.compile_onnx import compile, whole
from pliant.compiler.aot.compiled_directory import save
from pliant.compiler.executable.call import Target
from pliant.errors import InputError
from pliant.kernels.emit.isa import host_isa
from pliant.run.graph.array_session import ArraySession as Session
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
HANGS_AFTER_S = 60


@pytest.fixture(params=["compiled", "loaded"])
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Session]:
    """The same model, as `pliant.compile` and as `pliant.load` give it, on two threads."""
    with _open(request.param, tmp_path, 2) as opened:
        yield opened


def _open(kind: str, directory: Path, threads: int) -> Session:
    if kind == "compiled":
        return compile(MODEL, threads=threads)
    save(whole(MODEL, Target(host_isa(), threads))[1], directory / "saved")
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


def test_it_runs_as_onnxruntime_users_write_it(session: Session) -> None:
    """All outputs for None or an empty list, else those named, in that order."""
    wanted = session.run(FEEDS)
    for names in (None, []):
        assert [np.array_equal(a, wanted[y]) for a, y in zip(session.run(names, FEEDS), "yz", strict=True)]
    (z,) = session.run(["z"], FEEDS)
    assert np.array_equal(z, wanted["z"])
    with pytest.raises(InputError, match=r"no outputs \['q'\]; the outputs are \['y', 'z'\]"):
        session.run(["q"], FEEDS)
    with pytest.raises(InputError, match="run takes feeds by name"):
        session.run(None)  # type: ignore[call-overload]


def test_a_session_shows_what_it_is(session: Session) -> None:
    """At a prompt or in a log: what goes in, what comes out, on how many threads."""
    assert "x: float32[256,128]" in repr(session)
    assert "z: float64[256,128]" in repr(session)
    assert "2 threads" in repr(session)
    session.close()
    assert "closed" in repr(session)


def test_a_closed_session_says_so(session: Session) -> None:
    """Its memory is gone; closing twice is fine, and so is a block that closes it."""
    with session:
        session.run(FEEDS)
    session.close()
    with pytest.raises(InputError, match="closed"):
        session.run(FEEDS)
    with pytest.raises(InputError, match="closed"):
        session.profile(FEEDS)


@pytest.mark.parametrize("kind", ["compiled", "loaded"])
def test_a_dropped_session_is_gone_at_once(kind: str, tmp_path: Path) -> None:
    """Its memory must not wait for the garbage collector, which knows nothing of its size."""
    opened = _open(kind, tmp_path, 1)
    opened.run(FEEDS)
    held = weakref.ref(opened._arena)
    del opened
    assert held() is None


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_session_is_not_pickled(session: Session, take: object) -> None:
    """Handing one to another process would hand over addresses; what to do instead is said."""
    with pytest.raises(InputError, match="cannot be pickled or copied: open the model"):
        take(session)  # type: ignore[operator]


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


def test_every_run_gives_the_same_bits(session: Session) -> None:
    """Whichever thread takes which part: an answer that changes cannot be debugged."""
    wanted = session.run(FEEDS)
    for _ in range(30):
        assert all(a.tobytes() == wanted[y].tobytes() for y, a in session.run(FEEDS).items())


@pytest.mark.parametrize("kind", ["compiled", "loaded"])
def test_threads_are_as_many_as_asked_for_and_park(kind: str, tmp_path: Path) -> None:
    """Workers of a session that waits for requests cost no processor time."""
    with _open(kind, tmp_path, 3) as session:
        session.run(FEEDS)
        assert session._pool.n_threads == 3
        assert sum(t.is_alive() for t in session._pool._workers) == 2
        idle = threading.Event()
        idle.wait(0.05)  # time to park: what is measured is the time after it
        before = time.process_time()
        idle.wait(0.25)
        assert time.process_time() - before < 0.02


def test_sessions_of_both_kinds_share_a_pool(session: Session) -> None:
    """Ten models must not be ten times the threads; runs of different sessions take turns on it."""
    others = [compile(MODEL, threads=2) for _ in range(2)]
    assert all(other._pool is session._pool for other in others)
    wanted = session.run(FEEDS)["y"]
    wrong: list[int] = []

    def work(one: Session) -> None:
        answers = [one.run(FEEDS)["y"] for _ in range(20)]
        wrong.extend(1 for y in answers if not np.array_equal(y, wanted))

    threads = [threading.Thread(target=work, args=(one,)) for one in (session, *others)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_runs_it_whatever_the_parent_was_at(session: Session) -> None:
    """Servers fork workers while other threads run: locks are free there, and workers are made anew."""
    wanted = session.run(FEEDS)["y"]
    stopped = threading.Event()
    running = threading.Thread(target=lambda: [session.run(FEEDS) for _ in iter(stopped.is_set, True)])
    running.start()
    try:
        for _ in range(5):
            assert _in_a_child(session, wanted) == b"\x01\x02"
    finally:
        stopped.set()
        running.join()
    assert np.array_equal(session.run(FEEDS)["y"], wanted)


def _in_a_child(session: Session, wanted: np.ndarray) -> bytes:
    """Whether a forked child's answers are right, and its pool's threads; nothing if it hangs."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            right = all(np.array_equal(session.run(FEEDS)["y"], wanted) for _ in range(3))
            n_threads = 1 + sum(worker.is_alive() for worker in session._pool._workers)
            os.write(write, bytes([right, n_threads]))
        finally:
            os._exit(0)
    os.close(write)
    answered, _, _ = select.select([read], [], [], HANGS_AFTER_S)
    if not answered:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    said = os.read(read, 2) if answered else b""
    os.close(read)
    return said


def test_an_interrupted_session_answers_again(session: Session) -> None:
    """Ctrl-C at a prompt, at any moment of a run: no lock stays taken, no answer is another's."""
    wanted = session.run(FEEDS)["y"]

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for delay_s in np.linspace(1e-4, 4e-3, 60):
            with pytest.raises(KeyboardInterrupt):
                _run_until_interrupted(session, float(delay_s))
            assert np.array_equal(session.run(FEEDS)["y"], wanted)
    finally:
        signal.signal(signal.SIGALRM, before)


def _run_until_interrupted(session: Session, delay_s: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, delay_s)
    while True:
        session.run(FEEDS)
