"""Runs on one thread each: the bits are those of all threads, memory is told, errors and interrupts pass."""

import os
import signal
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.api.compile_onnx import compile
from pliant.errors import InputError
from pliant.run.batches import parallel_runs
from pliant.run.batches.shared_runs import count_shared_runs
from tests.models.onnx_models import parse

THREADS = 2
LENGTHS = (9, 3, 12, 5, 7, 8)
MODEL = parse(
    "g (float[B,S,8] x, int64[B,S] at, float[4,8] table) => (float[B,S,8] y) { "
    "t = Transpose <perm = [0, 2, 1]> (x) s = MatMul(x, t) p = Softmax(s) z = MatMul(p, x) "
    "e = Gather(table, at) y = Add(z, e) }"
)
WIDE = parse(
    "g (float[B,S,8] x, float[8,512] w, float[512,8] v) => (float[B,S,8] y) { "
    "h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) }"
)
TABLE = np.arange(32, dtype=np.float32).reshape(4, 8)


@pytest.fixture(autouse=True)
def small_runs_are_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a tiny model shows what a large one does."""
    monkeypatch.setattr(parallel_runs, "LEAST_FLOPS", 0)


@pytest.fixture
def session() -> Any:
    """Every length has an image of its own."""
    with compile(MODEL, threads=THREADS, images=16) as session:
        yield session


def _feeds(length: int, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng((length, seed))
    return {
        "x": random.standard_normal((1, length, 8)).astype(np.float32),
        "at": random.integers(0, 4, (1, length)),
        "table": TABLE,
    }


def _are_right(session: Any, seed: int = 0) -> bool:
    """Whether all answers together are, to the bit, those of each alone on all threads."""
    feeds = [_feeds(n, seed) for n in LENGTHS]
    wanted = [session.run(one)["y"] for one in feeds]
    found = [one["y"] for one in session.run_many(feeds)]
    return all(map(np.array_equal, found, wanted))


def _parallel_bytes(session: Any) -> int:
    """Memory of parallel runs, 0 where there were none."""
    return sum(part.measured_bytes for part in session.memory.parts if part.name == "parallel runs")


def test_answers_are_those_of_all_threads_to_the_bit(session: Any) -> None:
    """One program answers, whoever walks it: a service may not answer otherwise when it is busy."""
    for seed in range(5):
        assert _are_right(session, seed)
    assert _parallel_bytes(session) > 0, "nothing ran in parallel"


@given(
    sizes=st.lists(st.integers(0, 50), max_size=12).map(lambda sizes: sorted(sizes, reverse=True)),
    n_threads=st.integers(2, 5),
)
def test_no_thread_waits_long_for_the_busiest(sizes: list[int], n_threads: int) -> None:
    """A long text beside short ones would leave the other threads idle: all of them share it instead.

    A thread that takes the next run when it is done works at most one run longer than its part.
    """
    rest = sizes[count_shared_runs(sizes, n_threads) :]
    work = [0] * n_threads
    for size in rest:
        work[work.index(min(work))] += size
    assert max(work) <= 1.2 * sum(rest) / n_threads


def test_what_is_shared_and_what_is_not() -> None:
    """By hand: equal runs in pairs go side by side, the one too many and the one too large are shared."""
    sizes = ([1, 1], [1, 1, 1], [9, 1, 1], [1], [])
    assert [count_shared_runs(some, 2) for some in sizes] == [0, 1, 1, 1, 0]
    assert count_shared_runs([1, 1, 1], 1) == 3, "one thread has nobody to run beside"


def test_little_work_starts_no_threads(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting them takes longer than such runs do."""
    monkeypatch.setattr(parallel_runs, "LEAST_FLOPS", 10**9)
    assert _are_right(session)
    assert _parallel_bytes(session) == 0


def test_memory_of_parallel_runs_is_told_and_goes_with_its_images() -> None:
    """A session that once met long inputs must not keep memory for them; predicted is what is allocated."""
    weights = {"w": np.ones((8, 512), np.float32), "v": np.ones((512, 8), np.float32)}
    lengths = [{"x": np.ones((1, n, 8), np.float32), **weights} for n in (400, 399, 1, 2, 3)]
    with compile(WIDE, threads=THREADS, images=3) as session:
        session.run_many(lengths[:2])
        (part,) = [part for part in session.memory.parts if part.name == "parallel runs"]
        assert part.predicted_bytes is not None
        assert 4 * 399 * 512 <= part.measured_bytes <= part.predicted_bytes
        for one in lengths[2:]:
            session.run(one)
        # One thread may have taken both runs, and each keeps its scratch: at least one long arena goes.
        assert _parallel_bytes(session) < part.measured_bytes - 4 * 390 * 512
        session.close()
        assert _parallel_bytes(session) == 0


def test_memory_goes_with_the_images_of_runs_that_were_not_worth_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They use the session's own arena, after the images that it is as large as may have gone."""
    monkeypatch.setattr(parallel_runs, "LEAST_FLOPS", 10**12)
    weights = {"w": np.ones((8, 512), np.float32), "v": np.ones((512, 8), np.float32)}
    with compile(WIDE, threads=THREADS, images=1) as session:
        session.run_many([{"x": np.ones((1, n, 8), np.float32), **weights} for n in (400, 350)])
        (part,) = [part for part in session.memory.parts if part.name == "activations"]
        assert part.predicted_bytes is not None
        assert part.measured_bytes <= part.predicted_bytes


def test_a_run_that_fails_raises_and_the_session_answers_again(session: Any) -> None:
    """Its error reaches the caller from whichever thread; runs that had not begun are left out."""
    assert _are_right(session)
    wrong = {**_feeds(5), "at": np.full((1, 5), 4)}
    with pytest.raises(InputError, match="was given the index 4, but its dimension has 4"):
        session.run_many([_feeds(4), wrong, _feeds(6)])
    assert _are_right(session)


def test_threads_that_share_a_session_get_their_own_answers(session: Any) -> None:
    """Each call has all arenas for itself while it runs."""
    wrong: list[int] = []

    def work(seed: int) -> None:
        wrong.extend(i for i in range(10) if not _are_right(session, seed))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_interrupted_session_answers_again(session: Any) -> None:
    """Ctrl-C at any moment: threads that still run keep their arenas, the next call has others."""
    assert _are_right(session)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for delay_s in np.geomspace(1e-4, 1e-2, 8):
            with pytest.raises(KeyboardInterrupt):
                _ask_until_interrupted(session, float(delay_s))
            assert _are_right(session)
    finally:
        signal.signal(signal.SIGALRM, before)


def _ask_until_interrupted(session: Any, delay_s: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, delay_s)
    while True:
        _are_right(session)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_amid_another_threads_call_leaves_a_working_child(session: Any) -> None:
    """The child has neither the threads nor what they were in the middle of."""
    assert _are_right(session)
    stopped = threading.Event()

    def keep_asking() -> None:
        while not stopped.is_set():
            _are_right(session)

    asking = threading.Thread(target=keep_asking)
    asking.start()
    try:
        codes = [_code_of_child(session) for _ in range(4)]
    finally:
        stopped.set()
        asking.join()
    assert codes == [0] * 4
    assert _are_right(session)


def _code_of_child(session: Any) -> int:
    """0 where a forked child's answers are right."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a child that hangs ends
        os._exit(0 if _are_right(session) and _are_right(session, 1) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
