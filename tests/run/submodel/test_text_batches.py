"""Batches through a session: which texts run together, by which plan and bits, and what is read."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import LaneError
from pliant.ir.dilation import Dilation
from pliant.ir.link import Link
from pliant.run.batches.text_batches import MOST_ROWS, group_texts
from pliant.run.process_memory import MemoryBudget
from pliant.run.submodel.plans.submodel_planner import SessionOptions as AnyOptions
from tests.run.conftest import ELASTIC, OpenElastic, paper_profile

SHORT, LONG = "the story was good", "it was not a good film but the plot was good and the actor was bad"
SessionOptions = partial(AnyOptions, adapts=False)  # a busy test machine must not change the plan


@given(
    st.lists(st.tuples(st.integers(1, 300), st.sampled_from("ab")), max_size=40),
    st.sampled_from([1, 60, MOST_ROWS]),
)
def test_every_text_is_in_one_batch_of_its_plan(texts: list[tuple[int, str]], most_rows: int) -> None:
    """None is lost or run twice; a batch keeps its bound, and two that follow could not be one."""
    lengths, plans = [n for n, _ in texts], [plan for _, plan in texts]
    found = group_texts(lengths, plans, most_rows)
    assert sorted(i for numbers in found for i in numbers) == list(range(len(texts)))
    for plan in "ab":
        own = [numbers for numbers in found if plans[numbers[0]] == plan]
        assert [i for numbers in own for i in numbers] == [i for i, p in enumerate(plans) if p == plan]
        rows = [sum(lengths[i] for i in numbers) for numbers in own]
        assert all(n <= most_rows or len(numbers) == 1 for n, numbers in zip(rows, own, strict=True))
        assert all(n + lengths[after[0]] > most_rows for n, after in zip(rows, own[1:], strict=False))
    assert all(len({plans[i] for i in numbers}) == 1 for numbers in found)


@pytest.mark.parametrize("preload", [0, 3000, 10**9])
@pytest.mark.parametrize("latency_s", [0.02, 0.05, 10.0])
def test_each_text_of_a_batch_has_the_plan_it_has_alone(
    elastic_session: OpenElastic, latency_s: float, preload: int
) -> None:
    """A target is each text's own: a batch of many is no reason for worse answers."""
    texts = [SHORT, LONG, "good", LONG, SHORT, SHORT]
    options = SessionOptions(latency_s, preload, length=8, is_anytime=False)
    with elastic_session(options) as session:
        together, alone = session(texts), [session(text) for text in texts]
    for reply, one in zip(together, alone, strict=True):
        assert (reply.length, reply.target_s) == (one.length, one.target_s)
        assert reply.details.submodel == one.details.submodel
        assert reply.details.bits == one.details.bits == reply.details.planned_bits
        # The same float32 sums in other orders: logits of about 1 differ by some 1e-7.
        assert reply.scores == pytest.approx(one.scores, abs=1e-6)


def test_a_batch_reads_its_weights_once(elastic_session: OpenElastic) -> None:
    """What pays most where nothing is in memory: all texts share one run and one set of loads."""
    options = SessionOptions(10.0, 0, length=8, is_anytime=False)
    with elastic_session(options) as session:
        alone = session(SHORT)
        together = session([SHORT] * 5)
    assert alone.details.read_bytes > 0
    assert [reply.details.read_bytes for reply in together] == [alone.details.read_bytes] * 5
    assert len({id(reply.details.spans) for reply in together}) == 1


def test_a_batch_waits_for_the_bits_that_were_planned(elastic_session: OpenElastic) -> None:
    """Latest starts are those of one text: layers of many take longer, refinements would seem late."""
    profile = paper_profile(disk=Link(1e-6, 1e9))
    options = SessionOptions(0.012, 0, length=8)
    with elastic_session(options, profile=profile) as session:
        session.runner.dilation = Dilation(io=10.0)
        replies = session([SHORT, "good", SHORT])
    assert all(reply.seconds > options.target_s for reply in replies)
    assert all(reply.details.bits == reply.details.planned_bits for reply in replies)


def test_a_batch_within_an_engagement_keeps_what_it_reads(elastic_session: OpenElastic) -> None:
    """Each text of it is an execution, after which the next one's plan counts on what was kept (STI 3.3)."""
    options = SessionOptions(10.0, 0, length=8, is_anytime=False)
    with elastic_session(options) as session:
        with session.engagement("1MB"):
            first, second, _ = session([SHORT, SHORT, LONG])
        assert second.details.read_bytes < first.details.read_bytes
        assert second.scores == pytest.approx(first.scores, abs=1e-6)


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_budget_keeps_a_batch_in_the_room_there_is(elastic_session: OpenElastic, is_shared: bool) -> None:
    """Batches are smaller then, and no byte is taken that was promised to nobody or to another session."""
    options = SessionOptions(10.0, 10**6, length=24, memory_bytes=None if is_shared else 10**7)
    with (
        MemoryBudget(10**7) as shared,
        elastic_session(options, memory=shared if is_shared else None) as session,
    ):
        before = session.runner.engine.arena_bytes
        replies = session([LONG] * 4)
        assert session.runner.engine.arena_bytes == before
        assert len({id(reply.details.spans) for reply in replies}) == 4
        assert len({reply.scores for reply in replies}) == 1


def test_damage_met_by_a_batch_is_an_error_and_the_session_lives(
    elastic_session: OpenElastic, tiny_store: Callable[..., Path], tmp_path: Path
) -> None:
    """No text of the batch is answered from weights that were not as they were written."""
    path = shutil.copytree(tiny_store(**ELASTIC), tmp_path / "store")
    options = SessionOptions(10.0, 0, length=8, is_anytime=False)
    layer = sorted(path.glob("*layer*"))[1]
    with elastic_session(options, store=path) as session:
        whole = layer.read_bytes()
        expected = session(SHORT)
        layer.write_bytes(whole[: len(whole) // 2] + bytes(8) + whole[len(whole) // 2 + 8 :])
        with pytest.raises(LaneError):
            session([SHORT, LONG])
        layer.write_bytes(whole)
        assert session([SHORT, LONG])[0].scores == pytest.approx(expected.scores, abs=1e-6)
