"""Requests that run together have one plan, and each the answer that it has alone at the same bits."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from pliant.ir.device import DeviceProfile
from pliant.ir.dilation import Dilation
from pliant.ir.endpoint import Request
from pliant.ir.link import Link
from pliant.plan.plan import NO_TARGET_S
from pliant.run.process_memory import MemoryBudget
from pliant.run.submodel.elastic_session import ElasticSession
from pliant.run.submodel.plans.submodel_planner import SessionOptions
from pliant.store.read import open_store
from tests.graded_store import graded_store
from tests.run.conftest import paper_profile
from tests.run.submodel.submodel_reference import Reference

store = graded_store

TEXTS = [
    "good",
    "the story was not good",
    "a film",
    "not a good story and not a good film",
    "the film was good",
]


@contextmanager
def opened(
    path: Path,
    cache: Path,
    preload: int | None = 10**9,
    memory: MemoryBudget | None = None,
    *,
    profile: DeviceProfile | None = None,
    **changes: int,
) -> Iterator[tuple[ElasticSession, Reference]]:
    options = SessionOptions(NO_TARGET_S, preload, length=24, n_threads=1, adapts=False, **changes)
    profile = profile or paper_profile(lengths=(8, 24, 64))
    with open_store(path) as one, ElasticSession(one, profile, options, cache=cache, memory=memory) as made:
        reference = Reference(one, cache)
        try:
            yield made, reference
        finally:
            reference.close()


def asking(session: ElasticSession, *terms: tuple[float | None, float | None]) -> list[Request]:
    """A request for each text, with such a deadline and floor."""
    return [
        Request(session.encode(text).n_tokens, text, deadline_s=deadline_s, accuracy_floor=floor)
        for text, (deadline_s, floor) in zip(TEXTS, terms, strict=False)
    ]


@pytest.mark.parametrize("preload", [0, 20_000, 10**9])
@pytest.mark.parametrize(
    "terms",
    [
        ((None, None),) * 5,
        ((None, 0.7), (None, 0.8), (None, 0.75), (None, 0.6), (None, 0.0)),
        ((9.0, None), (0.05, 0.7), (0.2, 0.8), (9.0, 0.6), (1.0, None)),
        ((1e-6, None), (0.05, 0.7), (0.2, None), (9.0, 0.6), (1.0, None)),
    ],
    ids=["no terms", "floors", "deadlines and floors", "one too late"],
)
def test_each_answer_is_the_one_it_has_alone_at_the_bits_of_the_batch(
    terms: Sequence[tuple[float | None, float | None]], preload: int, store: Path, kernel_cache: Path
) -> None:
    """One run of all rows, whatever is read while it runs; its accuracy is that of the plan for all."""
    with opened(store, kernel_cache, preload) as (session, reference):
        requests = asking(session, *terms)
        assert len({session.together(request) for request in requests}) == 1
        replies = session.answers(requests)
        for request, reply in zip(requests, replies, strict=True):
            wanted = reference.logits(reference.encode(request.text or ""), reply)
            np.testing.assert_allclose(reply.outputs["logits"][0], wanted, rtol=1e-5, atol=1e-6)
            assert reply.details is not None
            assert reply.details.spans == replies[0].details.spans
            assert len(reply.details.predicted_spans) == len(reply.details.spans)
            assert (reply.accuracy or 0.0) >= max(floor or 0.0 for _, floor in terms) - 1e-9
            assert reply.target_s == request.deadline_s
            assert 0.0 <= reply.waited_s <= reply.seconds
        assert len({reply.accuracy for reply in replies}) == 1
        if terms[0] == (None, None):
            assert replies[0].accuracy == session.best


def test_the_tightest_deadline_decides_for_all(store: Path, kernel_cache: Path) -> None:
    """All rows have to be done by then: less of the model answers than it would alone."""
    profile = paper_profile(lengths=(8, 24, 64), layer_s=5e-3)
    with opened(store, kernel_cache, profile=profile) as (session, _):
        alone = session.estimate(asking(session, (0.05, None))[0]).accuracy or 0.0
        loose = session.answers(asking(session, *[(9.0, None)] * 5))
        tight = session.answers(asking(session, (0.05, None), *[(9.0, None)] * 4))
        assert {reply.accuracy for reply in loose} == {session.best}
    assert all((reply.accuracy or 1.0) <= alone < (loose[0].accuracy or 0.0) for reply in tight)


def test_nobody_has_a_worse_answer_for_the_time_of_others(store: Path, kernel_cache: Path) -> None:
    """Who asks for nothing has the best answer, and does not share a plan that keeps a deadline."""
    with opened(store, kernel_cache) as (session, _):
        kinds = asking(session, (None, None), (None, 0.7), (1.0, None), (2.0, 0.7), (None, 0.0))
        keys = [session.together(request) for request in kinds]
    assert len(set(keys)) == 3
    assert keys[2] == keys[3]
    assert keys[1] == keys[4]


@pytest.mark.parametrize("how", ["of its own", "shared", "divided"])
def test_a_batch_takes_no_more_memory_than_its_bound(how: str, store: Path, kernel_cache: Path) -> None:
    """It is cut to the rows that there is room for, and its weights are those that were held before."""
    bound = 700_000 if how != "shared" else 10**7
    slow = paper_profile(lengths=(8, 24, 64), disk=Link(1e-4, 1e7))
    with MemoryBudget(bound) as budget:
        preload = 20_000 if how == "shared" else None
        changes = {"memory_bytes": bound} if how == "of its own" else {}
        memory = budget if how != "of its own" else None
        with opened(store, kernel_cache, preload, memory, profile=slow, **changes) as (session, reference):
            before = session.runner.engine.arena_bytes
            requests = asking(session, *[(None, None)] * 5) * 3
            assert sum(request.length for request in requests) > session.most_items_together
            replies = session.answers(requests)
            assert session.runner.engine.arena_bytes == before
            assert session.memory.predicted_bytes <= bound
            assert len({reply.details.spans for reply in replies}) > 1
            for request, reply in zip(requests, replies, strict=True):
                wanted = reference.logits(reference.encode(request.text or ""), reply)
                np.testing.assert_allclose(reply.outputs["logits"][0], wanted, rtol=1e-5, atol=1e-6)


def test_late_reads_cost_a_batch_bits_only_where_a_deadline_says_so(store: Path, kernel_cache: Path) -> None:
    """With a floor among them the bits that were promised are waited for."""
    with opened(store, kernel_cache, preload=0) as (session, _):
        session.runner.dilation = Dilation(io=100.0)
        promised = session.answers(asking(session, (0.2, None), (0.2, 0.7)))
        assert promised[0].details.bits == promised[0].details.planned_bits
