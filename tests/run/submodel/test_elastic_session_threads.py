"""A session that other threads change while it answers: every answer is that of the bits its reply names."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pliant.errors import InputError
from pliant.ir.cost import DeviceProfile
from pliant.ir.reply import Reply
from pliant.run.submodel.elastic_details import ElasticDetails
from pliant.run.submodel.elastic_session import ElasticSession
from pliant.run.submodel.plans.submodel_planner import SessionOptions
from pliant.store.read import Store, open_store
from tests.run.submodel.submodel_reference import Reference

TEXTS = ("good", "the story was not good", "a bad plot and a good actor but no film")
N_ANSWERS = 40


@pytest.fixture
def store(tiny_store: Callable[..., Path]) -> Iterator[Store]:
    with open_store(tiny_store(n_layers=4, widths=(2, 4))) as found:
        yield found


@pytest.fixture
def session(
    store: Store, slow_profile: Callable[..., DeviceProfile], kernel_cache: Path
) -> Iterator[ElasticSession]:
    options = SessionOptions(0.02, 3000, length=8)
    with ElasticSession(store, slow_profile(), options, cache=kernel_cache) as opened:
        yield opened


@pytest.fixture
def reference(store: Store, kernel_cache: Path) -> Iterator[Reference]:
    made = Reference(store, kernel_cache)
    yield made
    made.close()


def _retarget(session: ElasticSession, n: int) -> None:
    session.retarget(latency=(0.006, 0.02, 10.0)[n % 3], preload=(0, 3000, 10**9)[n // 3 % 3])


def _give_way(session: ElasticSession, n: int) -> None:
    session.give_way()
    session.retarget(preload=4000)


def _engage(session: ElasticSession, n: int) -> None:
    with session.engagement(60_000):
        session(TEXTS[n % len(TEXTS)])


def _look(session: ElasticSession, n: int) -> None:
    session.plan_at(8, 0.003 + 0.001 * (n % 5))
    session.forecast(24, 0.01)
    assert session.plan.n >= 1
    if n % 8 == 0:
        session.warm_up()


@pytest.mark.parametrize("change", [_retarget, _give_way, _engage, _look])
def test_a_session_may_be_changed_while_other_threads_ask_it(
    change: Callable[[ElasticSession, int], None], session: ElasticSession, reference: Reference
) -> None:
    """A change moves the weights that kernels point at: between answers, never amid one."""
    replies: list[tuple[str, Reply[ElasticDetails]]] = []
    errors: list[BaseException] = []
    ended = threading.Event()

    def ask(first: int) -> None:
        for n in range(first, first + N_ANSWERS):
            text = TEXTS[n % len(TEXTS)]
            replies.append((text, session(text)))

    def keep_changing() -> None:
        n = 0
        while not ended.is_set():
            change(session, n)
            n += 1

    def guarded(work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - the test's own thread reports it
                errors.append(error)

        return threading.Thread(target=run)

    asking = [guarded(lambda first=first: ask(first)) for first in range(3)]  # type: ignore[misc]
    changing = guarded(keep_changing)
    for thread in (*asking, changing):
        thread.start()
    for thread in asking:
        thread.join()
    ended.set()
    changing.join()
    assert not errors
    assert len(replies) == 3 * N_ANSWERS
    for text, reply in replies:
        np.testing.assert_allclose(reply.scores, reference.scores(reference.encode(text), reply), atol=1e-6)


def test_what_is_waited_for_another_thread_is_told_apart(session: ElasticSession) -> None:
    """A caller waits for it, so it counts; but it says nothing of how fast the model is."""
    replies: list[Reply[ElasticDetails]] = []
    with session._turns.lock:  # noqa: SLF001 - as another thread's answer holds it, but for as long as it takes
        asking = threading.Thread(target=lambda: replies.append(session(TEXTS[0])))
        asking.start()
        asking.join(0.05)
        assert not replies
    asking.join()
    assert 0 < replies[0].waited_s < replies[0].seconds


def test_an_engagement_inside_another_is_refused(session: ElasticSession) -> None:
    """The inner one's end would let go of what the outer one keeps."""
    with session.engagement(60_000):
        with pytest.raises(InputError, match="engaged already"), session.engagement(1000):
            pass
        assert session(TEXTS[0]).label is not None
    with session.engagement(60_000):
        assert session(TEXTS[0]).label is not None


def test_a_closed_session_says_so(session: ElasticSession) -> None:
    """Whatever is asked of it; closing twice is fine, and so is closing inside an engagement."""
    with session.engagement(1000):
        session.close()
    session.close()
    asked: list[Callable[[], object]] = [
        lambda: session(TEXTS[0]),
        lambda: session.retarget(latency=1.0),
        lambda: session.plan_at(8, 1.0),
        session.warm_up,
        session.give_way,
    ]
    for ask in asked:
        with pytest.raises(InputError, match="session is closed; open the model again"):
            ask()
