"""What holds for every session: threads share it, a forked child runs it or is refused."""

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pliant.errors import PliantError
from tests.conformance.shared_sessions import KINDS, Shared, in_threads, opened

N_THREADS, N_ANSWERS = 8, 1000
HANGS_AFTER_S = 60
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kernels and packed models, for all tests of the module."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(params=KINDS)
def shared(request: pytest.FixtureRequest, folder: Path) -> Iterator[Shared]:
    """Every kind of session in turn."""
    with opened(request.param, folder) as found:
        yield found


@pytest.mark.parametrize("kind", KINDS)
def test_threads_that_share_a_session_get_the_answers_of_one(kind: str) -> None:
    """A server answers each request on a thread of its own; one's answer must never reach another.

    In a process of its own: pytest's checks of shapes would take most of the time.
    """
    command = [
        sys.executable,
        "-m",
        "tests.conformance.shared_sessions",
        kind,
        str(N_THREADS),
        str(N_ANSWERS),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_answers_or_is_refused(shared: Shared) -> None:
    """A fork takes no thread along: a child that waits for one would wait for ever."""
    expected = shared.answers()
    assert _child_says(shared, expected) in ("right", "refused")
    assert shared.answers() == expected


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_amid_another_threads_answer_leaves_a_working_child(shared: Shared) -> None:
    """Servers fork while others answer: neither a lock nor a half-done answer of theirs may matter."""
    expected = shared.answers()
    stopped = threading.Event()

    def keep_asking() -> None:
        while not stopped.is_set():
            shared.answers()

    asking = threading.Thread(target=keep_asking)
    asking.start()
    try:
        said = {_child_says(shared, expected) for _ in range(5)}
    finally:
        stopped.set()
        asking.join()
    assert said in ({"right"}, {"refused"})
    assert shared.answers() == expected


# An interrupt between `open` and its `with` leaves the file to the garbage collector, in any Python program.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_an_interrupted_session_answers_again(shared: Shared) -> None:
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


def _ask_until_interrupted(shared: Shared, delay_s: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, delay_s)
    while True:
        shared.answers()


def test_closing_while_threads_answer_lets_each_answer_end_or_refuses_it(shared: Shared) -> None:
    """Memory that an answer still reads must not go; what comes afterwards is told that it is closed."""
    expected = shared.answers()
    wrong: list[object] = []
    ready = threading.Barrier(N_THREADS + 1)

    def work() -> None:
        ready.wait()
        try:
            while shared.answers() == expected:
                pass
            wrong.append("another answer")
        except PliantError as error:
            if "closed" not in str(error):
                wrong.append(error)

    def close() -> None:
        ready.wait()
        shared.close()

    in_threads([work] * N_THREADS + [close])
    assert not wrong


def _child_says(shared: Shared, expected: list[bytes]) -> str:
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


def _says(shared: Shared, expected: list[bytes]) -> str:
    try:
        answers = [*shared.answers(), *shared.answers()]
        shared.close()
    except PliantError as error:
        return "refused" if "process" in str(error) else repr(error)
    except BaseException as error:  # noqa: BLE001 - a child has nobody else to tell
        return repr(error)
    return "right" if answers == expected * 2 else "wrong"
