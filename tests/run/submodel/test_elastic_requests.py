"""Requests to an elastic session: curves come from plans, answers from the submodel that fits."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pliant.errors import BudgetError, InputError
from pliant.ir.device import DeviceProfile
from pliant.ir.dilation import Dilation
from pliant.ir.endpoint import Endpoint, Request
from pliant.ir.link import Link
from pliant.ir.times.bounds import AdaptiveBound
from pliant.models.tokenizer import TokenizedInput, Tokenizer
from pliant.plan.plan import NO_TARGET_S
from pliant.run.session.text_feeds import as_bytes
from pliant.run.submodel.elastic_levels import plan_levels
from pliant.run.submodel.elastic_session import ElasticSession
from pliant.run.submodel.plans.submodel_planner import SessionOptions
from pliant.store.manifest import AccuracyTable, put_accuracy
from pliant.store.read import open_store
from tests.graded_store import GRID, graded_store

store = graded_store

TEXT = "the story was not good"


@contextmanager
def opened(
    path: Path, profile: DeviceProfile, preload: int = 10**9, *, adapts: bool = False
) -> Iterator[ElasticSession]:
    with ExitStack() as stack:
        options = SessionOptions(NO_TARGET_S, preload, length=8, n_threads=1, adapts=adapts)
        store = stack.enter_context(open_store(path))
        yield stack.enter_context(ElasticSession(store, profile, options))


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("PLIANT_CACHE", str(tmp_path_factory.getbasetemp() / "kernels"))


@pytest.mark.parametrize("preload", [0, 20_000, 10**9])
def test_a_lower_floor_is_never_slower_at_any_length(
    preload: int, store: Path, slow_profile: Callable[..., DeviceProfile]
) -> None:
    """From plans of a real store, whatever part of it is in memory."""
    with opened(store, slow_profile(), preload) as endpoint:
        assert isinstance(endpoint, Endpoint)
        best = endpoint.best
        assert best is not None
        floors = [0.0, 0.7, 0.75, 0.8, best]
        for n in range(25):
            times = [endpoint.curve(floor).at(n) for floor in floors]
            assert times == sorted(times)
        assert times[0] < times[-1]


def test_what_runs_is_what_was_estimated(store: Path, slow_profile: Callable[..., DeviceProfile]) -> None:
    """Under each deadline the submodel of the estimate's accuracy answers, as the session by itself does."""
    accuracies = []
    with opened(store, slow_profile()) as endpoint:
        for deadline_s in (0.001, 0.007, 0.012, float("inf")):
            endpoint.trade.bound = AdaptiveBound()  # a device on paper: what was measured says nothing
            request = Request(7, TEXT, deadline_s=deadline_s)
            estimate, key = endpoint.estimate(request), endpoint.trade.pick(7, 0.0, deadline_s).level.key
            assert isinstance(key, float)
            reply, alone = endpoint.answer(request), endpoint(TEXT, latency=key)
            assert reply.accuracy == estimate.accuracy
            assert alone.logits is not None
            np.testing.assert_allclose(reply.outputs["logits"][0], alone.logits, rtol=1e-5)
            assert deadline_s < 0.005 or estimate.seconds <= deadline_s
            accuracies.append(reply.accuracy or 0.0)
    assert accuracies == sorted(accuracies)
    assert accuracies[0] < accuracies[-1] == endpoint.best


def test_what_an_answer_needs_is_told_after_its_level_was_lost(
    store: Path, slow_profile: Callable[..., DeviceProfile]
) -> None:
    """An answered request that asked for an explanation was refused: its weights were another model's now."""
    with opened(store, slow_profile()) as endpoint:
        assert endpoint.need(7, endpoint.best).load_bytes is not None
        need = endpoint.need(7, 1.0)
        assert (need.held_bytes, need.load_bytes) == (endpoint.runner.held_bytes, None)


def test_the_whole_answers_time_follows_from_a_smaller_ones(
    store: Path, slow_profile: Callable[..., DeviceProfile]
) -> None:
    """A router learns the device's speed from answers of any size."""
    with opened(store, slow_profile()) as endpoint:
        reply = endpoint.answer(Request(7, TEXT, deadline_s=0.007))
        small = endpoint.trade.pick(7, 0.0, 0.007 * endpoint.trade.bound.pace).level
        assert reply.whole_s == pytest.approx(
            reply.seconds * endpoint.trade.most_accurate(7).level.at(7).median_s / small.at(7).median_s
        )


def _short_memory(endpoint: ElasticSession) -> None:
    for _ in range(3):
        endpoint.give_way()


def _longer_input(endpoint: ElasticSession) -> None:
    endpoint.answer(endpoint.request(endpoint.sample(24)))


def _shorter_target(endpoint: ElasticSession) -> None:
    endpoint.retarget(latency=0.006)


def _engaged(endpoint: ElasticSession) -> None:
    with endpoint.engagement(20_000):
        endpoint.curve()


@pytest.mark.parametrize("change", [_short_memory, _longer_input, _shorter_target, _engaged])
def test_a_floor_holds_after_the_weights_in_memory_have_changed(
    change: Callable[[ElasticSession], None], store: Path, slow_profile: Callable[..., DeviceProfile]
) -> None:
    """Plans were compared over the buffer as it was at first: answers over less were below their floor.

    The disk is slow, so that what is in memory decides how accurate a plan is.
    """
    options = SessionOptions(
        NO_TARGET_S, None, length=8, n_threads=1, adapts=False, is_anytime=False, memory_bytes=700_000
    )
    with (
        open_store(store) as opened_store,
        ElasticSession(opened_store, slow_profile(disk=Link(1e-4, 1e6)), options) as endpoint,
    ):
        deadlines_s = np.geomspace(0.002, 0.2, 6).tolist()
        floors = {endpoint.estimate(Request(7, TEXT, deadline_s=s)).accuracy or 0.0 for s in deadlines_s}
        assert len(floors) > 2
        change(endpoint)
        best = endpoint.estimate(Request(7, TEXT)).accuracy or 0.0
        for floor in floors:
            request = Request(7, TEXT, accuracy_floor=floor)
            if floor > best:
                with pytest.raises(BudgetError, match="lower the floor"):
                    endpoint.answer(request)
                continue
            reply = endpoint.answer(request)
            assert (reply.accuracy or 0.0) >= floor - 1e-9
            assert reply.accuracy == endpoint.estimate(request).accuracy


def test_a_floor_holds_where_reads_are_late(store: Path, slow_profile: Callable[..., DeviceProfile]) -> None:
    """Late reads cost bits and not the deadline, but not those that the floor was promised with."""
    with opened(store, slow_profile(), preload=0) as endpoint:
        floors = {endpoint.estimate(Request(7, TEXT, deadline_s=s)).accuracy for s in (0.007, 0.012, 1.0)}
        endpoint.runner.dilation = Dilation(io=100.0)
        for floor in floors:
            for deadline_s in (None, 0.005):
                reply = endpoint.answer(Request(7, TEXT, deadline_s=deadline_s, accuracy_floor=floor))
                assert (reply.accuracy or 0.0) >= (floor or 1.0) - 1e-9


def test_a_request_without_a_deadline_gets_the_bits_that_were_planned(
    store: Path, slow_profile: Callable[..., DeviceProfile]
) -> None:
    """Where 6 bits are as accurate as 32, its plan has a short target, by which slow reads are late."""
    by_way = {(e.n, e.m, e.bits): e for e in GRID.entries}
    entries = tuple(replace(by_way[n, m, min(bits, 6)], bits=bits) for n, m, bits in by_way)
    copy = store.with_name("ties")
    shutil.copytree(store, copy)
    put_accuracy(copy, AccuracyTable(GRID.n_examples, entries))
    with opened(copy, slow_profile(), preload=0) as endpoint:
        endpoint.runner.dilation = Dilation(io=100.0)
        assert endpoint.answer(Request(7, TEXT)).accuracy == endpoint.best


def test_a_floor_out_of_reach_is_refused(store: Path, slow_profile: Callable[..., DeviceProfile]) -> None:
    """With the value and the limit, before anything runs."""
    with opened(store, slow_profile()) as endpoint, pytest.raises(BudgetError, match="lower the floor"):
        endpoint.estimate(Request(7, TEXT, accuracy_floor=0.99))


def test_a_model_without_labels_answers_requests_with_its_vector(
    tiny_store: Callable[..., Path], slow_profile: Callable[..., DeviceProfile]
) -> None:
    """Nodes refused encoders of sentences, though nothing of a deadline needs labels."""
    with opened(tiny_store("bert", False), slow_profile(widths=(4,))) as endpoint:
        request = endpoint.request({"text": as_bytes(TEXT)})
        (vector,) = endpoint.answer(request).outputs.values()
        assert vector.shape == endpoint.outputs[0].dims
        np.testing.assert_array_equal(vector[0], endpoint(TEXT).vector)
        assert endpoint.best is None


def test_a_request_is_cut_into_tokens_once(
    store: Path, slow_profile: Callable[..., DeviceProfile], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node did it on its event loop, to know the length, and again to answer."""
    encoded: list[str] = []
    encode = Tokenizer.encode

    def counted(tokenizer: Tokenizer, text: str, pair: str | None = None) -> TokenizedInput:
        encoded.append(text)
        return encode(tokenizer, text, pair)

    monkeypatch.setattr(Tokenizer, "encode", counted)
    with opened(store, slow_profile()) as endpoint:
        request = endpoint.request({"text": as_bytes(TEXT)})
        reply = endpoint.answer(request)
        assert encoded == [TEXT]
        assert (request.length, reply.length) == (7, 7)
        np.testing.assert_array_equal(reply.outputs["logits"], endpoint.run({"text": TEXT})["logits"])


def test_ids_are_answered_as_their_text(store: Path, slow_profile: Callable[..., DeviceProfile]) -> None:
    """Who has a tokenizer of their own sends tokens; those that the model has not are refused."""
    with opened(store, slow_profile()) as endpoint:
        ids = endpoint.encode(TEXT).ids[None].astype(np.int64)
        expected = endpoint(TEXT)
        outputs = endpoint.run({"ids": ids})
        np.testing.assert_array_equal(outputs["logits"][0], expected.logits)
        assert outputs["label"].tolist() == [str(expected.label).encode()]
        for wrong in (ids + 1000, -ids, ids[0], ids[:, :0]):
            with pytest.raises(InputError, match="`ids`"):
                endpoint.request({"ids": wrong})


def test_padding_among_ids_is_refused_and_no_sample_has_any(
    tiny_store: Callable[..., Path], slow_profile: Callable[..., DeviceProfile]
) -> None:
    """RoBERTa's padding has no position: tokens behind it would shift. A node times samples at its start."""
    with opened(tiny_store("roberta"), slow_profile(widths=(4,))) as endpoint:
        assert endpoint.request(endpoint.sample(8)).length == 8
        ids = endpoint.encode(TEXT).ids[None].astype(np.int64)
        ids[0, 2] = endpoint.store.spec.position_offset - 1
        with pytest.raises(InputError, match="padding"):
            endpoint.request({"ids": ids})


def test_plans_for_requests_do_not_follow_the_answers_to_calls(
    store: Path, slow_profile: Callable[..., DeviceProfile]
) -> None:
    """Requests have a bound of their own: what calls took would be counted twice."""
    with opened(store, slow_profile()) as fixed, opened(store, slow_profile(), adapts=True) as follows:
        (answered,) = follows.runner.answer([follows.encode(TEXT)], 0.01)
        for _ in range(5):
            follows.runner.observe(answered, 0.01, 1.0, 0.0)
        assert follows.plan_at(8, 0.01) != fixed.plan_at(8, 0.01)
        assert follows.curve().points == fixed.curve().points


def test_a_buffer_of_another_size_gives_other_curves(
    store: Path, slow_profile: Callable[..., DeviceProfile]
) -> None:
    """Estimates were those of the buffer that the session was opened with."""
    profile = slow_profile(disk=Link(1e-3, 1e6))
    with opened(store, profile, 10**9) as held, opened(store, profile, 0) as read:
        before = held.curve(held.best or 0.0)
        held.retarget(preload=0)
        after = held.curve(held.best or 0.0)
        assert after.at(8) > before.at(8)
        assert after.points == read.curve(read.best or 0.0).points


def test_levels_are_reused_for_the_same_terms_and_weights_alone(
    store: Path, slow_profile: Callable[..., DeviceProfile]
) -> None:
    """Damage may leave fewer weights under the same options: earlier levels would promise plans of the past.

    A node that moves its target to and fro must not collect levels for good.
    """
    with opened(store, slow_profile(), 20_000) as session:
        runner = session.runner
        made = plan_levels(runner)
        assert plan_levels(runner) is made
        held = runner.weights.preload_runs
        runner.weights.fill(())
        assert plan_levels(runner) is not made
        runner.weights.fill(held)
        assert plan_levels(runner) is made
        for latency_s in np.linspace(0.1, 1.0, 10).tolist():
            session.retarget(latency=latency_s)
            plan_levels(runner)
        assert len(runner.levels_cache) < 6
