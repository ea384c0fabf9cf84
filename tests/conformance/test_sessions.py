"""What holds for every kind of session, whatever model it runs and wherever: one list of facts for all."""

import copy
import gc
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.errors import BudgetError, InputError, PliantError
from pliant.ir.endpoint import Endpoint
from pliant.ir.reply import Reply
from pliant.run.graph.array_session import ArraySession
from pliant.run.session.session import Session
from tests.conformance.session_kind import LENGTHS, Kind
from tests.conformance.session_kinds import KINDS, in_threads

pytest.importorskip("torch", reason="recurrent models are compared with torch's answers")
pytest.importorskip("onnxruntime", reason="ONNX models are compared with onnxruntime's answers")
pytest.importorskip("transformers", reason="real ONNX files are exported from transformers")

N_THREADS = 8
HANGS_AFTER_S = 60
TOLERANCE = 1e-4  # of the largest output: float32 sums in another order, a few layers deep
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Opened:
    """A session of a kind, and where its model lies."""

    kind: Kind
    session: Session[Any]
    folder: Path

    def need(self, fact: str) -> None:
        """Skip a fact that does not hold of this kind, for the reason that it gives."""
        if fact in self.kind.lacks:
            pytest.skip(self.kind.lacks[fact])

    def answers(self) -> list[bytes]:
        return self.kind.answers(self.session)

    @property
    def question(self) -> Any:
        """What a call takes: a text, or feeds."""
        return self.kind.texts[0] if self.kind.texts else self.kind.feeds(0)

    def reply(self, question: Any) -> Reply[Any]:
        reply = self.session(question)
        assert isinstance(reply, Reply)
        return reply


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kernels, packed models and exports, for all tests of the module."""
    return tmp_path_factory.mktemp("sessions")


@pytest.fixture(scope="module", params=KINDS)
def shared(request: pytest.FixtureRequest, folder: Path) -> Iterator[Opened]:
    """A session of every kind in turn, which all facts share: none of them may change it."""
    kind = KINDS[request.param]
    with kind.open(folder) as session:
        yield Opened(kind, session, folder)


@pytest.fixture
def own(shared: Opened) -> Iterator[Opened]:
    """A session of the same kind that a test may close."""
    with shared.kind.open(shared.folder) as session:
        yield Opened(shared.kind, session, shared.folder)


def close_to(got: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    """Assert the same outputs: texts equal, numbers up to rounding."""
    assert list(got) == list(wanted)
    for name, want in wanted.items():
        if want.dtype == object:
            assert got[name].tolist() == want.tolist()
        else:
            assert (got[name].shape, str(got[name].dtype)) == (want.shape, "float32")
            assert np.abs(got[name] - want).max() <= TOLERANCE * np.abs(want).max()


# Answers


def test_answers_are_those_of_an_independent_reference(shared: Opened) -> None:
    """numpy in float64, torch, onnxruntime, or the model in one piece: none runs what the session runs."""
    for i in range(len(LENGTHS)):
        feeds = shared.kind.feeds(i)
        close_to(dict(shared.session.run(feeds)), shared.kind.wanted(shared.folder, feeds))


def test_inputs_of_different_lengths_together_are_answered_as_one_at_a_time(shared: Opened) -> None:
    """Padding, or the company of longer inputs, must not change an answer."""
    shared.need("together")
    kind, session = shared.kind, shared.session
    if isinstance(session, ArraySession):
        feeds = [kind.feeds(i) for i in range(len(LENGTHS))]
        for _ in range(2):  # what is compared at first runs in parallel afterwards
            for one, given in zip(session.run_many(feeds), feeds, strict=True):
                close_to(one, dict(session.run(given)))
        return
    texts = [*kind.texts, kind.texts[0]]
    replies = session(texts)
    assert isinstance(replies, list)
    for reply, text in zip(replies, texts, strict=True):
        alone = shared.reply(text)
        close_to(dict(reply.outputs), dict(alone.outputs))
        assert (reply.label, reply.length) == (alone.label, alone.length)


def test_a_text_is_answered_as_its_tokens(shared: Opened) -> None:
    """A client that uses its own tokenizer sends token ids; its answers are those of the text."""
    if not shared.kind.texts:
        pytest.skip("it reads no text")
    for text in shared.kind.texts:
        reply = shared.reply(text)
        request = shared.session.request({"text": np.array([text.encode()], object)})
        close_to(dict(reply.outputs), dict(shared.session.answer(request).outputs))
        close_to(dict(reply.outputs), dict(shared.session.run({"text": text})))
        assert reply.label is None or reply.outputs["label"].tolist() == [reply.label.encode()]


def test_every_run_gives_the_same_bits(shared: Opened) -> None:
    """Whichever thread takes which part: an answer that changes cannot be debugged."""
    expected = shared.answers()
    for _ in range(5):
        assert shared.answers() == expected


# Feeds


def test_it_runs_as_onnxruntimes_users_write_it(shared: Opened) -> None:
    """By name, or as a list: all outputs for None or an empty list, else those named, in that order."""
    session, feeds = shared.session, shared.kind.feeds(1)
    wanted = dict(session.run(feeds))
    assert list(wanted) == [port.name for port in session.get_outputs()]
    assert set(feeds) <= {port.name for port in session.get_inputs()}
    last = list(wanted)[-1]
    for names in (None, [], list(wanted), [last]):
        found = session.run(names, feeds)
        close_to(dict(zip(names or wanted, found, strict=True)), {y: wanted[y] for y in names or wanted})
    with pytest.raises(InputError, match=r"no outputs \['nothing'\]; the outputs are"):
        session.run(["nothing"], feeds)
    with pytest.raises(InputError, match="run takes feeds by name"):
        session.run(None)  # type: ignore[call-overload]


def test_outputs_go_into_the_arrays_given(shared: Opened) -> None:
    """A caller that answers requests all day wants no fresh memory for each."""
    feeds = shared.kind.feeds(2)
    wanted = dict(shared.session.run(feeds))
    name = next(iter(wanted))
    into = np.empty_like(wanted[name])
    assert shared.session.run(feeds, {name: into})[name] is into
    assert into.tobytes() == wanted[name].tobytes()


def test_a_wrong_feed_is_named(shared: Opened) -> None:
    """A kernel that trusts a wrong shape would read other memory; the caller must know which feed it is."""
    feeds = dict(shared.kind.feeds(1))
    name = list(feeds)[-1]
    array = np.asarray(feeds[name])
    others = {x: y for x, y in feeds.items() if x != name}
    wrong: list[tuple[dict[str, Any], str]] = [
        (others, name),
        (feeds | {"nothing": array}, "nothing"),
        (feeds | {name: array.astype(np.complex64)}, name),
        (feeds | {name: array[None]}, name),
        (feeds | {name: {"a": 1}}, name),
    ]
    if shared.kind.too_long is not None:
        wrong.append((dict(shared.kind.too_long[0]), shared.kind.too_long[1]))
    for given, said in wrong:
        with pytest.raises(InputError, match=said):
            shared.session.run(given)
    assert shared.answers()


# What a session tells of itself


def test_its_plan_prints_as_a_page_and_shows_in_a_notebook(shared: Opened) -> None:
    """What runs and why, for a person: not the repr of nested tuples."""
    shared.session.run(shared.kind.feeds(1))
    plan = shared.session.plan
    page = str(plan)
    assert len(page.splitlines()) > 1
    assert f"{type(plan).__name__}(" not in page
    assert "<" in plan._repr_html_()


def test_a_length_is_explained_as_a_page_too(shared: Opened) -> None:
    """What inputs of another length would run; it is ready then, and changes no answer."""
    expected = shared.answers()
    assert len(str(shared.session.explain(3)).splitlines()) > 1
    assert shared.answers() == expected


def test_a_profile_prints_its_steps_and_writes_a_trace(shared: Opened, tmp_path: Path) -> None:
    """Where the time goes is the first question about a slow answer; none is changed by asking."""
    expected = shared.answers()
    found = shared.session.profile(shared.kind.feeds(1), runs=3)
    assert 0 < found.min_s <= found.median_s
    assert found.summary in str(found)
    assert len(str(found).splitlines()) > 1
    found.write_trace(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    with pytest.raises(InputError, match="at least 1"):
        shared.session.profile(shared.kind.feeds(1), runs=0)
    assert shared.answers() == expected


def test_a_session_shows_what_it_is(own: Opened) -> None:
    """At a prompt or in a log: the model, and whether it is open."""
    assert type(own.session).__name__ in repr(own.session)
    own.session.close()
    assert "closed" in repr(own.session)


def test_a_retarget_changes_the_target_or_is_refused_with_the_next_move(own: Opened) -> None:
    """A target that nothing meets changes nothing; a session of one way says so."""
    before = own.answers()
    with pytest.raises((BudgetError, InputError)) as refused:
        own.session.retarget(latency=1e-9)
    assert own.answers() == before
    if refused.type is InputError:
        assert "nothing to retarget: " in str(refused.value)
    else:
        own.session.retarget(latency=30.0)
        assert own.reply(own.question).target_s == 30.0


def test_its_memory_is_predicted_beside_measured(shared: Opened) -> None:
    """What `memory=` bounds: what it says before is what lies in memory, up to pages that nothing touched."""
    shared.need("memory")
    shared.session.run(shared.kind.feeds(1))
    if shared.kind.texts:
        shared.session([*shared.kind.texts])  # texts that run together take more room than each alone
    use = shared.session.memory
    assert 0 <= use.measured_bytes <= use.predicted_bytes
    assert (use.measured_bytes > 0) == (use.predicted_bytes > 0)
    assert "activations" in {part.name for part in use.parts}
    assert "predicted" in str(use)
    assert use.rss_bytes > use.measured_bytes


# As an endpoint


def test_it_is_an_endpoint(shared: Opened) -> None:
    """A router asks for a length, an estimate and an answer; nothing else of the session is known to it."""
    session = shared.session
    assert isinstance(session, Endpoint)
    for i in range(len(LENGTHS)):
        feeds = shared.kind.feeds(i)
        request = session.request({x: np.asarray(y) for x, y in feeds.items()})
        assert 1 <= request.length <= session.max_length
        reply = session.answer(request)
        assert isinstance(reply, Reply)
        assert (reply.endpoint, reply.length) == (session.name, request.length)
        assert reply.seconds > 0
        assert session.estimate(request).seconds > 0
        close_to(dict(reply.outputs), dict(session.run(feeds)))
    assert session.curve().at(1) >= 0
    assert session.identity


def test_its_samples_are_requests_of_about_that_length(shared: Opened) -> None:
    """A node learns from them what answers take, before anybody asks."""
    session = shared.session
    assert any(set(session.sample(4)) == way for way in session.ways)
    lengths = [session.request(session.sample(n)).length for n in (1, 4, 8)]
    assert lengths in ([1, 4, 8], [1, 1, 1], [lengths[0]] * 3)
    assert session.answer(session.request(session.sample(4))).outputs


def test_an_accuracy_that_was_never_measured_is_not_promised(shared: Opened) -> None:
    """A floor is refused before anything runs."""
    assert shared.session.best is None
    with pytest.raises(BudgetError):
        shared.session.curve(0.99)


# Lifetime


def test_a_closed_session_says_so_whatever_is_asked(own: Opened) -> None:
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
def test_a_session_is_not_pickled(shared: Opened, take: Callable[[object], object]) -> None:
    """Handing one to another process would hand over addresses; what to do instead is said."""
    with pytest.raises(InputError, match=r"cannot be pickled or copied: open the model"):
        take(shared.session)


def test_what_is_closed_leaves_no_thread_and_no_file(shared: Opened) -> None:
    """A service that opens models by name for months must not run out of either."""
    used = []
    for _ in range(3):  # the first may start threads that all sessions share
        with shared.kind.open(shared.folder) as session:
            session.run(shared.kind.feeds(0))
        held = weakref.ref(session)
        del session
        assert held() is None
        gc.collect()
        used.append(_threads_and_files())
    patience_s = time.monotonic() + HANGS_AFTER_S
    while _grew(used[1]) and time.monotonic() < patience_s:
        time.sleep(0.01)  # a thread of ZeroMQ closes sockets after those who used them
    assert not _grew(used[1]), (used, _threads_and_files())


def _grew(before: tuple[int, int]) -> bool:
    return any(now > then for now, then in zip(_threads_and_files(), before, strict=True))


def _threads_and_files() -> tuple[int, int]:
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


# Threads, forks, interrupts


@pytest.mark.parametrize("name", KINDS)
def test_threads_that_share_a_session_get_the_answers_of_one(name: str, folder: Path) -> None:
    """A server answers each request on a thread of its own; one's answer must never reach another.

    In a process of its own, where also what is no input is refused with a message: pytest's checks of
    annotations would take most of the time, and refuse it first.
    """
    command = [sys.executable, "-m", "tests.conformance.session_kinds", name, str(folder), str(N_THREADS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_amid_another_threads_answer_leaves_a_working_child_or_is_refused(shared: Opened) -> None:
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
def test_an_interrupted_session_answers_again(shared: Opened) -> None:
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


def _ask_until_interrupted(shared: Opened, delay_s: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, delay_s)
    while True:
        shared.answers()


def test_closing_while_threads_answer_lets_each_answer_end_or_refuses_it(own: Opened) -> None:
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

    in_threads([work] * N_THREADS + [close])
    assert not wrong


def _child_says(shared: Opened, expected: list[bytes]) -> str:
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


def _says(shared: Opened, expected: list[bytes]) -> str:
    try:
        answers = [*shared.answers(), *shared.answers()]
        shared.session.close()
    except PliantError as error:
        return "refused" if "process" in str(error) else repr(error)
    except BaseException as error:  # noqa: BLE001 - a child has nobody else to tell
        return repr(error)
    return "right" if answers == expected * 2 else "wrong"
