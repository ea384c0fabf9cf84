"""What holds for every kind of session, whatever model it runs and wherever: its end, threads, forks."""

import copy
import gc
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pliant.errors import InputError, PliantError
from tests.conformance.session_kinds import KINDS, run_in_threads
from tests.conformance.session_under_test import SessionUnderTest

pytest.importorskip("torch", reason="recurrent models are compared with torch's answers")
pytest.importorskip("onnxruntime", reason="ONNX models are compared with onnxruntime's answers")
pytest.importorskip("transformers", reason="real ONNX files are exported from transformers")

N_THREADS = 8
HANGS_AFTER_S = 60
ROOT = Path(__file__).parents[2]


# Lifetime


def test_a_closed_session_says_so_whatever_is_asked(own: SessionUnderTest) -> None:
    """Its memory is gone; closing twice is fine."""
    feeds = own.kind.feeds(1)
    given = {x: np.asarray(y) for x, y in feeds.items()}
    request = own.session.request(given)
    with own.session:
        own.session.run(feeds)
    own.session.close()
    asked: list[Callable[[], object]] = [
        lambda: own.session.run(feeds),
        lambda: own.session.profile(feeds),
        lambda: own.session.explain(3),
        lambda: own.session.answer(request),
        *(partial(own.session, text) for text in own.kind.texts[:1]),
    ]
    for ask in asked:
        with pytest.raises(InputError, match="is closed"):
            ask()


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_session_is_not_pickled(shared: SessionUnderTest, take: Callable[[object], object]) -> None:
    """Handing one to another process would hand over addresses; what to do instead is said."""
    with pytest.raises(InputError, match=r"cannot be pickled or copied: open the model"):
        take(shared.session)


def test_what_is_closed_leaves_no_thread_and_no_file(shared: SessionUnderTest) -> None:
    """A service that opens models by name for months must not run out of either.

    What each session left would add up over the rounds. One file more is none of theirs: sessions that
    other tests share open sockets meanwhile.
    """
    n_rounds = 4
    for i in range(1 + n_rounds):
        with shared.kind.open(shared.folder) as session:
            session.run(shared.kind.feeds(0))
        held = weakref.ref(session)
        del session
        assert held() is None
        gc.collect()
        if i == 0:  # the first may start threads that all sessions share
            before = _threads_and_files()
    patience_s = time.monotonic() + HANGS_AFTER_S
    while _most_left(before) >= n_rounds and time.monotonic() < patience_s:
        time.sleep(0.01)  # a thread of ZeroMQ closes sockets after those who used them
    assert _most_left(before) < n_rounds, (before, _threads_and_files())


def _most_left(before: tuple[int, int]) -> int:
    return max(now - then for now, then in zip(_threads_and_files(), before, strict=True))


def _threads_and_files() -> tuple[int, int]:
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


# Threads, forks, interrupts


@pytest.fixture(scope="module")
def threads_found(folder: Path) -> Mapping[str, str]:
    """What threads that share a session found wrong, by kind.

    In a process of its own, where also what is no input is refused with a message: pytest's checks of
    annotations would take most of the time, and refuse it first. One process serves all kinds, since it
    takes seconds to import what they are compared with.
    """
    command = [sys.executable, "-m", "tests.conformance.session_kinds", str(folder), str(N_THREADS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize("name", KINDS)
def test_threads_that_share_a_session_get_the_answers_of_one(
    name: str, threads_found: Mapping[str, str]
) -> None:
    """A server answers each request on a thread of its own; one's answer must never reach another."""
    assert threads_found[name] == "nothing"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_amid_another_threads_answer_leaves_a_working_child_or_is_refused(
    shared: SessionUnderTest,
) -> None:
    """A fork takes no thread along, and servers fork while others answer: no lock of theirs may matter."""
    expected = shared.answers()
    said = {_child_says(shared, expected)}
    stopped = threading.Event()

    def keep_asking() -> None:
        while not stopped.is_set():
            shared.answers()

    asking = threading.Thread(target=keep_asking)
    asking.start()
    try:
        said |= {_child_says(shared, expected) for _ in range(4)}
    finally:
        stopped.set()
        asking.join()
    assert said in ({"right"}, {"refused"})
    assert shared.answers() == expected


# An interrupt between `open` and its `with` leaves the file to the garbage collector, in any Python program.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_session_answers_again(shared: SessionUnderTest) -> None:
    """Ctrl-C at a prompt, at any moment of an answer: no lock stays taken, no answer is another's."""
    expected = shared.answers()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for delay_s in np.geomspace(1e-4, 1e-2, 8):
            with pytest.raises(KeyboardInterrupt):
                _ask_until_interrupted(shared, float(delay_s))
            assert shared.answers() == expected
    finally:
        signal.signal(signal.SIGALRM, before)


def _ask_until_interrupted(shared: SessionUnderTest, delay_s: float) -> None:
    # Repeated: Python drops an exception that is raised in a finalizer.
    signal.setitimer(signal.ITIMER_REAL, delay_s, 1.0)
    try:
        while True:
            shared.answers()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def test_closing_while_threads_answer_lets_each_answer_end_or_refuses_it(own: SessionUnderTest) -> None:
    """Memory that an answer still reads must not go; what comes afterwards is told that it is closed."""
    expected = own.answers()
    wrong: list[object] = []
    ready = threading.Barrier(N_THREADS + 1)

    def work() -> None:
        ready.wait()
        try:
            while own.answers() == expected:
                pass
            wrong.append("another answer")
        except PliantError as error:
            if "closed" not in str(error):
                wrong.append(error)

    def close() -> None:
        ready.wait()
        own.session.close()

    run_in_threads([work] * N_THREADS + [close])
    assert not wrong


def _child_says(shared: SessionUnderTest, expected: list[bytes]) -> str:
    """What a forked child finds: its answers `right` or `wrong`, `refused`, an error, or that it `hangs`."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, _says(shared, expected).encode()[:500])
        finally:
            os._exit(0)
    os.close(write)
    try:
        answered, _, _ = select.select([read], [], [], HANGS_AFTER_S)
        if not answered:
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return os.read(read, 500).decode() if answered else "hangs"
    finally:
        os.close(read)


def _says(shared: SessionUnderTest, expected: list[bytes]) -> str:
    try:
        answers = [*shared.answers(), *shared.answers()]
        shared.session.close()
    except PliantError as error:
        return "refused" if "process" in str(error) else repr(error)
    except BaseException as error:  # noqa: BLE001 - a child has nobody else to tell
        return repr(error)
    return "right" if answers == expected * 2 else "wrong"
