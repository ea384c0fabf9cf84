"""Several texts of different lengths in one run of a recurrent model, without padding."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.errors import BudgetError, InputError
from pliant.ir.reply import Reply
from pliant.kernels.emit.isa import AVX2, Isa
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.recurrent.recurrent_source import open_recurrent_source
from pliant.models.recurrent.recurrent_spec import RecurrentSpec
from pliant.run.array_sessions.recurrent_session import RecurrentSession
from pliant.run.process_memory import MemoryBudget
from tests.compiler.rules.run_node import machine
from tests.recurrent_models import torchs_answer, write_recurrent
from tests.run.array_sessions.test_recurrent_session import CELLS, ISAS, TOLERANCE, words
from tests.run.array_sessions.test_recurrent_session import cache as cache

LENGTHS = (40, 1, 130, 7, 7, 64, 65, 2, 33, 200, 3)


def opened(
    folder: Path, spec: RecurrentSpec, cache: Path, isa: Isa = AVX2, memory: int | MemoryBudget | None = None
) -> RecurrentSession:
    source = open_recurrent_source(write_recurrent(folder, spec))
    return RecurrentSession(source, *machine(isa, cache), memory=memory)


def together(model: RecurrentSession, lengths: Sequence[int]) -> list[Reply[None]]:
    return model.answers([model.request({"ids": words(n)[None]}) for n in lengths])


def check(model: RecurrentSession, replies: list[Reply[None]], lengths: Sequence[int]) -> None:
    assert [reply.length for reply in replies] == list(lengths)
    for reply, n in zip(replies, lengths, strict=True):
        found = reply.outputs[model.outputs[0].name][0]
        want = torchs_answer(model.source, words(n))
        np.testing.assert_allclose(found, want, rtol=0, atol=TOLERANCE, err_msg=str(n))


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize("spec", CELLS, ids=lambda s: f"{s.cell} {s.n_layers}x{s.directions}x{s.hidden}")
def test_each_text_of_a_batch_is_answered_as_torch_answers_it_alone(
    spec: RecurrentSpec, isa: Isa, tmp_path: Path, cache: Path
) -> None:
    """In the order of the requests, not of the lengths; a smaller batch behind a larger keeps none of it."""
    pytest.importorskip("torch")
    model = opened(tmp_path, spec, cache, isa)
    for lengths in (LENGTHS, LENGTHS[:3], LENGTHS[3:5], LENGTHS):
        check(model, together(model, lengths), lengths)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> RecurrentSession:
    return opened(tmp_path_factory.mktemp("model"), CELLS[3], cache)


@given(lengths=st.lists(st.integers(1, 40), min_size=2, max_size=20))
@settings(max_examples=30)
def test_any_lengths_may_run_together(small: RecurrentSession, lengths: list[int]) -> None:
    """Whatever number of them, equal lengths included."""
    pytest.importorskip("torch")
    check(small, together(small, lengths), lengths)


def test_threads_that_share_the_steps_of_a_batch_answer_as_one(tmp_path: Path, cache: Path) -> None:
    """With few texts, several threads compute each step of some texts; none reads a state too early."""
    pytest.importorskip("torch")
    source = open_recurrent_source(write_recurrent(tmp_path, RecurrentSpec("lstm", 10, 8, 132)))
    library = Library(AVX2, cache)
    with ThreadPool(4, library) as pool:
        model = RecurrentSession(source, library, pool)
        for lengths in ((3, 20), (9, 8, 2, 1)):
            check(model, together(model, lengths), lengths)


def test_batches_of_several_threads_take_turns(tmp_path: Path, cache: Path) -> None:
    """Batches, lists and single texts from 16 threads get their own answers, while forms are made."""
    pytest.importorskip("torch")
    model = opened(tmp_path, CELLS[1], cache)

    def ask(i: int) -> None:
        lengths = [*LENGTHS[i % 5 : i % 5 + 1 + i % 7]]
        check(model, together(model, lengths), lengths)
        texts = [" ".join(["film", "good", "bad"][k % 3] for k in range(n)) for n in lengths]
        for text, reply in zip(texts, model(texts), strict=True):
            np.testing.assert_allclose(reply.vector, model(text).vector, rtol=0, atol=TOLERANCE)

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(ask, range(48)))


def test_a_batch_larger_than_its_memory_runs_in_parts(tmp_path: Path, cache: Path) -> None:
    """Its answers are the same, and its memory keeps the limit; a text too long for it is still refused."""
    pytest.importorskip("torch")
    free = opened(tmp_path / "free", CELLS[0], cache)
    together(free, [60] * 4)
    limit = sum(part.predicted_bytes for part in free.memory.parts)
    model = opened(tmp_path / "bound", CELLS[0], cache, memory=limit)
    for lengths in ([60] * 16, [100, 50, 70, 20, 200, 3], [60] * 16):
        check(model, together(model, lengths), lengths)
    assert model.most_items_together == 256
    assert model.memory.measured_bytes <= limit
    with pytest.raises(BudgetError, match="shorter texts"):
        together(model, [4, 1000])


def test_models_that_share_a_budget_run_one_text_at_a_time(tmp_path: Path, cache: Path) -> None:
    """Room for a batch would be taken from another model."""
    pytest.importorskip("torch")
    budget = MemoryBudget(10**8)
    model = opened(tmp_path, CELLS[0], cache, memory=budget)
    (before,) = budget.shares
    assert not model.prepare_together(64)
    assert model.together(model.request({"ids": words(3)[None]})) is None
    check(model, together(model, (30, 60)), (30, 60))
    (after,) = budget.shares
    assert after.share_bytes == before.share_bytes


def test_prepared_batches_need_no_memory_later(tmp_path: Path, cache: Path) -> None:
    """A node prepares them before its first request, which must not wait for a form."""
    model = opened(tmp_path, CELLS[0], cache)
    assert model.prepare_together(64)
    held = model.memory.predicted_bytes
    for n in (2, 3, 9, 16):
        together(model, [64, *[5] * (n - 1)])
    assert model.memory.predicted_bytes == held
    assert model.plan.forms == (64,)


def test_a_batch_takes_no_text_that_the_model_does_not_know(tmp_path: Path, cache: Path) -> None:
    """As a request made by hand alone: a word of a negative number would be the table's last."""
    model = opened(tmp_path, CELLS[0], cache)
    good = model.request({"ids": words(4)[None]})
    bad = replace(good, tensors={**good.tensors, "ids": np.int32([1, 2, -1, 3])})
    with pytest.raises(InputError, match="word -1 is not one of"):
        model.answers([good, bad])
    with pytest.raises(BudgetError, match="never measured"):
        model.answers([good, replace(good, accuracy_floor=0.5)])
