"""An elastic session within one bound of memory: split by the planner, kept to, measured."""

import re
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pliant.errors import BudgetError, InputError
from pliant.ir.endpoint import NO_ANSWER_S
from pliant.ir.link import Link
from pliant.ir.times.timing import Timing
from pliant.plan.plan import NO_TARGET_S, Plan
from pliant.run.memory_use import MemoryUse
from pliant.run.process_memory import MemoryBudget
from pliant.run.submodel.elastic_session import ElasticSession
from pliant.run.submodel.plans.submodel_planner import SessionOptions
from pliant.store.read import Store, open_store
from tests.rows import FORMS
from tests.run.conftest import OpenElastic, paper_profile

ELASTIC = {"n_layers": 4, "widths": (2, 4)}
SHORT, LONG = "a good film", " ".join(["the film is good and the story is not bad"] * 2)
ANY_S = 3600.0
MEMORY, MORE = 700_000, 800_000
"""What every plan of the tiny store needs is 434 KB; its weights at full fidelity are 393 KB."""


@pytest.fixture
def store(tiny_store: Callable[..., Path]) -> Store:
    return open_store(tiny_store(**ELASTIC))


def opened(store: Store, cache: Path, memory: int, **options: object) -> ElasticSession:
    terms = replace(SessionOptions(ANY_S, None, length=8, memory_bytes=memory, adapts=False), **options)
    return ElasticSession(store, paper_profile(), terms, cache=cache)


def least_of(store: Store, cache: Path) -> int:
    with pytest.raises(BudgetError) as failure:
        opened(store, cache, 0)
    found = re.search(r"Give at least (\d+) bytes", str(failure.value))
    assert found is not None
    return int(found[1])


def assert_kept(use: MemoryUse, most: int) -> None:
    assert use.budget_bytes == most
    assert use.predicted_bytes <= most
    for part in use.parts:
        assert part.predicted_bytes is not None
        assert part.measured_bytes <= part.predicted_bytes, part


def test_every_part_is_measured_as_it_was_predicted(store: Store, kernel_cache: Path) -> None:
    """What is predicted before anything is allocated is what lies in memory, up to whole pages."""
    with store, opened(store, kernel_cache, MEMORY) as session:
        session.warm_up()
        session(SHORT)
        use, plan = session.memory, session.plan
    assert_kept(use, MEMORY)
    names = [part.name for part in use.parts]
    assert names[:3] == ["weights kept (preload)", "weights read (working)", "activations"]
    measured = {part.name: part.measured_bytes for part in use.parts}
    predicted = {part.name: part.predicted_bytes for part in use.parts}
    assert measured["weights kept (preload)"] == predicted["weights kept (preload)"]
    assert measured["codebooks, embeddings, head"] == predicted["codebooks, embeddings, head"]
    assert plan.memory.total_bytes <= MEMORY == plan.budget.memory_bytes
    assert "of 700 KB" in str(use)
    assert "of 700 KB" in str(plan)


@pytest.mark.parametrize("compute", FORMS)
@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta", "electra"])
@pytest.mark.parametrize("is_classifier", [True, False])
def test_what_every_plan_needs_is_counted_to_the_byte(
    tiny_store: Callable[..., Path], kernel_cache: Path, family: str, is_classifier: bool, compute: str
) -> None:
    """The planner has it from the store's sizes, before an engine is made."""
    with (
        open_store(tiny_store(family, is_classifier, **ELASTIC)) as store,
        opened(store, kernel_cache, 10**9, compute=compute) as session,
    ):
        arrays = {a.ctypes.data: a.nbytes for a in session.runner.engine.encoder.fixed_arrays}
        (fixed,) = [p for p in session.memory.parts if p.name == "codebooks, embeddings, head"]
        assert fixed.predicted_bytes == sum(arrays.values())
        assert session.plan.memory.arena_bytes == session.runner.engine.arena_bytes


def test_the_least_that_an_error_names_opens_and_answers(store: Store, kernel_cache: Path) -> None:
    """A byte less is refused."""
    with store:
        least = least_of(store, kernel_cache)
        with opened(store, kernel_cache, least) as session:
            assert session(SHORT).label is not None
            assert_kept(session.memory, least)
        with pytest.raises(BudgetError):
            opened(store, kernel_cache, least - 1)


@pytest.mark.parametrize("more", [0, 20_000, 80_000, 300_000])
def test_all_that_a_session_does_stays_within_its_memory(store: Store, kernel_cache: Path, more: int) -> None:
    """Texts of other lengths, other targets, batches, requests: each has a plan of its own."""
    with store:
        most = least_of(store, kernel_cache) + more
        with opened(store, kernel_cache, most) as session:
            session.warm_up()
            for latency in (None, 0.002, 0.01, 10.0):
                for text in (SHORT, "good"):
                    session(text, latency=latency)
                    assert_kept(session.memory, most)
            session([SHORT, "good", SHORT, "film"])
            assert_kept(session.memory, most)
            session.run({"text": SHORT})
            session.answer(session.request(session.sample(6)))
            assert_kept(session.memory, most)


def test_weights_give_way_to_a_longer_input_or_it_is_refused(store: Store, kernel_cache: Path) -> None:
    """A longer input's activations take memory that weights had; the session outlives one too long."""
    with store:
        least = least_of(store, kernel_cache)
        with opened(store, kernel_cache, least + 40_000) as session:
            kept = session.plan.memory.preload_bytes
            n_tokens = session(LONG).length
            assert n_tokens > 8
            assert session.plan.memory.preload_bytes < kept
            assert_kept(session.memory, least + 40_000)
        with opened(store, kernel_cache, least) as session:
            for _ in range(2):
                with pytest.raises(BudgetError, match=f"{n_tokens} tokens"):
                    session(LONG)
            assert session(SHORT).label is not None
            assert_kept(session.memory, least)


def test_a_longer_input_is_answered_after_weights_gave_way(store: Store, kernel_cache: Path) -> None:
    """What the system took once is a limit for the planner, not a buffer that every later plan must have."""
    with store:
        memory = least_of(store, kernel_cache) + 40_000
        with opened(store, kernel_cache, memory) as session:
            kept = session.plan.memory.preload_bytes
            session.give_way()
            assert 0 < session.plan.memory.preload_bytes <= kept // 2
            assert session(LONG).label is not None
            after = session.plan.memory
            assert memory - after.arena_bytes - after.fixed_bytes < kept // 2  # a buffer of half is too much
            assert_kept(session.memory, memory)
            session.retarget(memory=MEMORY)
            assert session.options.most_preload_bytes is None
            assert session.options.most_working_bytes is None


@pytest.mark.parametrize("more", [20_000, 40_000, 80_000])
@pytest.mark.parametrize("preload_bytes", [None, 16_000])
def test_what_gave_way_is_not_taken_for_reads(
    store: Store, kernel_cache: Path, more: int, preload_bytes: int | None
) -> None:
    """The system is short of memory: what was freed must not come back as a larger working buffer."""
    with store:
        memory = least_of(store, kernel_cache) + more
        with opened(store, kernel_cache, memory, preload_bytes=preload_bytes) as session:
            kept = session.plan.memory.preload_bytes
            session.give_way()
            freed = kept - session.plan.memory.preload_bytes
            assert freed >= kept // 2 > 0
            for latency in (None, 0.002, 0.01, 10.0):
                for text in ("good", SHORT):
                    session(text, latency=latency)
            assert session.memory.predicted_bytes <= memory - freed
            assert_kept(session.memory, memory)
            while kept:  # every further notice frees more, to the last weight
                session.give_way()
                assert session.plan.memory.preload_bytes <= kept // 2
                kept = session.plan.memory.preload_bytes


def test_retarget_moves_the_bound(store: Store, kernel_cache: Path) -> None:
    """More memory holds more; too little changes nothing; a preload buffer is part of it."""
    with store, opened(store, kernel_cache, MEMORY) as session:
        held = session.plan.memory.preload_bytes
        session.retarget(memory=f"{2 * MEMORY // 1000}KB")
        assert session.plan.memory.preload_bytes > held
        assert_kept(session.memory, 2 * MEMORY)
        with pytest.raises(BudgetError, match="Give at least"):
            session.retarget(memory=1000)
        assert_kept(session.memory, 2 * MEMORY)
        session.retarget(memory=MORE, preload=50_000)
        assert session.plan.memory.preload_bytes <= 50_000
        with pytest.raises(InputError, match=f"do not fit into {MORE} bytes"):
            session.retarget(preload=MORE)
        session.retarget(memory=MEMORY)
        assert session.plan.memory.preload_bytes == held
        session.give_way()
        assert session.plan.memory.preload_bytes <= held // 2
        assert_kept(session.memory, MEMORY)


def test_an_engagement_keeps_within_the_memory(store: Store, kernel_cache: Path) -> None:
    """What it keeps of its reads counts like the preload buffer."""
    with store, opened(store, kernel_cache, MEMORY, preload_bytes=0) as session:
        with pytest.raises(BudgetError, match="keep less"), session.engagement(preload=MEMORY):
            pass
        with session.engagement(preload=11_500):
            for _ in range(3):
                session(SHORT)
                assert session.memory.predicted_bytes <= MEMORY
            assert session.memory.parts[0].predicted_bytes
        session(SHORT)
        assert_kept(session.memory, MEMORY)


def test_a_closed_session_keeps_no_memory_of_its_own(store: Store, kernel_cache: Path) -> None:
    """The name that `with` bound stays in a notebook: only what the store holds may stay with it."""
    with store:
        with opened(store, kernel_cache, MEMORY) as session:
            session(SHORT)
            encoder, weights = session.runner.engine.encoder, session.runner.weights
            arrays = [encoder.arena, *weights.blocks[0], weights.blocks[1]]
            held = [weakref.ref(array if array.base is None else array.base) for array in arrays]
            assert session.memory.predicted_bytes > 0
            del encoder, weights, arrays
        assert [block() for block in held] == [None] * len(held)
        use = session.memory
        assert (use.predicted_bytes, session.weight_bytes) == (0, 0)
        (stored,) = [part for part in use.parts if part.measured_bytes]
        assert stored.name == "codebooks, embeddings, head"
        with pytest.raises(InputError, match="closed"):
            _ = session.plan


def test_a_longer_text_among_others_leaves_each_its_answer(store: Store, kernel_cache: Path) -> None:
    """Its activations take memory that weights had: the plans of all were bound to them, and read what was
    there by then."""
    with store:
        memory = least_of(store, kernel_cache) + 40_000
        with opened(store, kernel_cache, memory) as session:
            together = session([SHORT, LONG, SHORT])
            alone = [session(text) for text in (SHORT, LONG, SHORT)]
        for one, other in zip(together, alone, strict=True):
            assert one.details.planned_bits == other.details.planned_bits
            np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)


@pytest.mark.parametrize("keep", [20_000, 90_000])
@pytest.mark.parametrize(
    "change",
    [
        lambda session: session.retarget(latency=0.02),
        lambda session: session.retarget(memory=MORE - 10_000),
        lambda session: session.give_way(),
        lambda session: session(LONG),
    ],
    ids=["target", "memory", "pressure", "length"],
)
def test_what_changes_amid_an_engagement_leaves_it_within_the_memory(
    change: Callable[[ElasticSession], object], keep: int, store: Store, kernel_cache: Path
) -> None:
    """A change planned as if nothing more were to be kept, and runs kept as much as before on top of it."""
    with store, opened(store, kernel_cache, MORE, preload_bytes=0) as session:
        with session.engagement(preload=keep):
            session(SHORT)
            change(session)
            most = session.options.memory_bytes
            assert most is not None
            for _ in range(4):
                assert_kept(session.memory, most)
                session(SHORT)
            assert_kept(session.memory, most)
        session(SHORT)
        assert_kept(session.memory, most)


def test_what_gave_way_amid_an_engagement_is_not_kept_again(store: Store, kernel_cache: Path) -> None:
    """Memory is short: runs must not take at once what was let go of."""
    with (
        store,
        opened(store, kernel_cache, MORE, preload_bytes=0) as session,
        session.engagement(preload=60_000),
    ):
        session(SHORT)
        kept = session.runner.weights.preload_bytes
        session.give_way()
        session(SHORT)
        assert 0 < session.runner.weights.preload_bytes <= kept // 2


def test_a_shorter_text_reads_no_more_at_once_than_was_reserved(elastic_session: OpenElastic) -> None:
    """Its layers take less time, so its own plan would read further ahead, and exceed a shared budget."""
    slow = paper_profile(layer_s=1e-5, disk=Link(1e-4, 1e7))
    layers = tuple(
        replace(one, alone=Timing(s, s), with_io=Timing(s, s))
        for one in slow.layers
        for s in [one.length * one.alone.median_s]
    )
    options, profile = SessionOptions(NO_TARGET_S, 1000, 24, 1), replace(slow, layers=layers)
    with elastic_session(options, profile=profile) as session:
        ahead = session.plan_at(8, NO_TARGET_S).memory.working_bytes
        needed = session.plan_at(24, NO_TARGET_S).memory
        assert ahead > needed.working_bytes
    with MemoryBudget(10**8) as memory, elastic_session(options, profile=profile, memory=memory) as session:
        session.plan_at(8, NO_TARGET_S)
        assert session.memory.predicted_bytes <= memory.total_bytes - memory.free_bytes
    little = needed.total_bytes - needed.working_bytes // 2
    with MemoryBudget(little) as memory, elastic_session(options, profile=profile, memory=memory) as session:
        assert session.memory.predicted_bytes <= little, "it reads less at once where there is less room"
    with (
        MemoryBudget(needed.fixed_bytes) as memory,
        pytest.raises(BudgetError, match="all models share"),
        elastic_session(options, profile=profile, memory=memory),
    ):
        pass


@pytest.mark.parametrize("kind", ["own", "shared", "reserved", "fixed"])
def test_the_longest_input_that_memory_allows_is_known(store: Store, kernel_cache: Path, kind: str) -> None:
    """It is answered and one token more is not, and levels, curve and estimate say so."""
    terms = SessionOptions(ANY_S, None, length=8, adapts=False)
    least = least_of(store, kernel_cache)
    fixed: Plan | None = None
    if kind == "fixed":
        with opened(store, kernel_cache, MEMORY) as session:
            fixed = session.plan
        least = fixed.memory.total_bytes
    for most in (least, 10**8):
        budget = MemoryBudget(most) if kind in ("shared", "reserved") else None
        options = replace(
            terms,
            memory_bytes=most if budget is None else None,
            preload_bytes=0 if kind == "reserved" else None,
        )
        with ElasticSession(
            store, paper_profile(), options, cache=kernel_cache, memory=budget, fixed=fixed
        ) as session:
            if most == least:  # asked before anything is planned
                with pytest.raises(BudgetError, match="memory"):
                    session.estimate(session.request(session.sample(session.max_length)))
            levels = session.levels()
            assert session.levels() is levels
            (most_n,) = {level.most_n for level in levels}
            if most == 10**8:
                assert most_n is None
                continue
            assert most_n == session.most_length()
            assert most_n is not None
            assert 8 <= most_n < session.max_length
            fits, too_long = (session.request(session.sample(n)) for n in (most_n, most_n + 1))
            assert session.estimate(fits).seconds == levels[-1].curve.at(most_n)
            assert session.curve().at(most_n) < NO_ANSWER_S
            assert session.curve().at(most_n + 1) >= NO_ANSWER_S
            for refused in (session.estimate, session.answer):
                with pytest.raises(BudgetError, match="memory"):
                    refused(too_long)
            if kind != "reserved":  # where the limit is an upper bound
                assert session.answer(fits).accuracy == session.levels()[-1].accuracy
