"""A session within one bound of memory, shared by threads that ask in every way while others change it."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event

import numpy as np
import pytest

import pliant
from pliant.errors import BudgetError, InputError
from pliant.ir.link import Link
from pliant.ir.reply import Reply
from pliant.models.tokenizer import TokenizedInput
from pliant.run.pressure import PressureFlag
from pliant.run.submodel.elastic_details import ElasticDetails
from pliant.run.submodel.elastic_session import ElasticSession
from pliant.store.read import open_store
from tests.combined.crowd import crowd
from tests.run.conftest import paper_profile
from tests.run.submodel.submodel_reference import Reference

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

N_THREADS, N_EACH, N_CHANGES = 8, 15, 18
MEMORY, LESS = 700_000, 600_000
TEXTS = ("good", "the story was not good", "a bad plot and a good actor but no film", "no " * 20)
Replies = list[tuple[TokenizedInput, Reply[ElasticDetails]]]


class Pressure:
    """A watch that says that memory is short when it is told to."""

    def __init__(self, on_pressure: Callable[[], None]) -> None:
        self.on_pressure = on_pressure

    def close(self) -> None:
        pass


@pytest.fixture
def session(
    graded_store: Path, kernel_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ElasticSession]:
    monkeypatch.setattr(
        "pliant.run.submodel.elastic_session.PressureFlag",
        lambda: PressureFlag(Pressure),  # type: ignore[arg-type]
    )
    options = {"latency": 0.02, "length": 8, "threads": 2, "profile": paper_profile(disk=Link(1e-4, 1e7))}
    with pliant.open(graded_store, memory=MEMORY, cache=kernel_cache, **options) as opened:
        assert isinstance(opened, ElasticSession)
        yield opened


@pytest.fixture
def reference(graded_store: Path, kernel_cache: Path) -> Iterator[Reference]:
    with open_store(graded_store) as store:
        made = Reference(store, kernel_cache)
        yield made
        made.close()


def ask(session: ElasticSession, encode: Callable[[str], TokenizedInput], n: int) -> Replies:
    """In one way after another: a text, several, tokens, a request with a floor or a deadline."""
    texts = [TEXTS[(n + i) % len(TEXTS)] for i in range(3)]
    one = encode(texts[0])
    match n % 5:
        case 0:
            return [(one, session(texts[0], latency=(None, 0.004, 10.0)[n % 3]))]
        case 1:
            return [(encode(text), reply) for text, reply in zip(texts, session(texts), strict=True)]
        case 2:
            profile = session.profile(texts[0], runs=1)
            assert profile.median_s > 0
            return []
        case _:
            request = session.request({"ids": one.ids[None].astype(np.int64)})
            return [(one, session.answer(request))]


def change(session: ElasticSession, n: int) -> None:
    """What an application may do to its session at any time."""
    match n % 6:
        case 0:
            session.retarget(memory=(MEMORY, LESS)[n // 6 % 2])
        case 1:
            session.retarget(latency=(0.006, 0.02, 10.0)[n // 6 % 3])
        case 2:
            session.give_way()
        case 3:
            assert session._pressure is not None  # noqa: SLF001
            session._pressure._watch.on_pressure()  # type: ignore[attr-defined]  # noqa: SLF001 - as the kernel
        case 4:
            with suppress(BudgetError), session.engagement(20_000):
                session(TEXTS[0])
        case _:
            assert session.plan.n >= 1
            assert session.explain(24).n >= 1
            session.warm_up()


def look(session: ElasticSession, n: int) -> None:
    use = session.memory
    assert use.budget_bytes is not None
    assert use.predicted_bytes <= use.budget_bytes
    for part in use.parts:
        assert part.predicted_bytes is not None
        assert part.measured_bytes <= part.predicted_bytes, part


def endlessly(work: Callable[[int], None]) -> None:
    for n in count():
        work(n)


def are_right(replies: Replies, reference: Reference) -> None:
    for encoded, reply in replies:
        assert reply.length == encoded.n_tokens
        (logits,) = reply.outputs["logits"]
        np.testing.assert_allclose(logits, reference.logits(encoded, reply), atol=1e-5)


def test_answers_stay_right_and_memory_bounded_whatever_is_done_at_once(
    session: ElasticSession, reference: Reference
) -> None:
    """Texts, batches, requests and profiles, while target, memory and engagements come and go."""
    replies: Replies = []

    def work(first: int) -> None:
        for n in range(first, first + N_EACH):
            replies.extend(ask(session, reference.encode, n))

    def meddle() -> None:
        for n in range(N_CHANGES):
            change(session, n)

    asking: list[Callable[[], None]] = [partial(work, first) for first in range(N_THREADS)]
    crowd([*asking, meddle], partial(look, session))
    assert len(replies) == N_THREADS * N_EACH // 5 * 6
    are_right(replies, reference)


def test_closing_amid_all_of_it_ends_every_call_with_an_answer_or_its_error(
    session: ElasticSession, reference: Reference
) -> None:
    """Engaged, retargeted, warming up: whatever comes after the close is told that, and nothing else."""
    replies: Replies = []
    under_way = Event()

    def work(n: int) -> None:
        replies.extend(ask(session, reference.encode, n))
        if len(replies) > 2 * N_THREADS:
            under_way.set()

    def until_closed(work: Callable[[int], None]) -> None:
        with pytest.raises(InputError, match="session is closed; open the model again"):
            endlessly(work)

    def close() -> None:
        assert under_way.wait(60)
        session.close()

    works = [*[work] * N_THREADS, partial(change, session)]
    crowd([*(partial(until_closed, work) for work in works), close])
    are_right(replies, reference)
