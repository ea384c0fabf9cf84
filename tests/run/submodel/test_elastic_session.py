"""Sessions: answers are the model's, bits are the plan's, late or damaged reads do what they should."""

import gc
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pliant.errors import BudgetError, InputError, LaneError, StoreError
from pliant.ir.device import emulate
from pliant.ir.dilation import Dilation
from pliant.ir.link import Link
from pliant.ir.program import Program
from pliant.ir.reply import Reply
from pliant.models.tokenizer import TokenizedInput, open_tokenizer
from pliant.plan.plan import NO_TARGET_S
from pliant.run.process_memory import MemoryBudget
from pliant.run.submodel.elastic_details import ElasticDetails
from pliant.run.submodel.elastic_session import ElasticSession
from pliant.run.submodel.engine import Engine
from pliant.run.submodel.pipeline import Pipeline
from pliant.run.submodel.plans.submodel_planner import SessionOptions as AnyOptions
from pliant.run.submodel.weight_memory import WeightMemory
from pliant.store.read import open_store
from pliant.system import peak_rss_bytes
from tests.run.conftest import ELASTIC, OpenElastic, paper_profile

TEXT = "the story was not good"
LONGER = " ".join([TEXT] * 3)
SessionOptions = partial(AnyOptions, adapts=False)  # a busy test machine must not change the plan
WHOLE = SessionOptions(10.0, 10**6, length=8)


def _expected(
    path: Path, reply: Reply[ElasticDetails], layers: tuple[int, ...], cache: Path
) -> tuple[float, ...]:
    """The same submodel at the bits the reply names, all of it in memory: no pipeline involved."""
    _, width = reply.details.submodel
    with open_store(path) as store, Engine(store, cache=cache) as engine:
        bits = np.zeros((store.spec.n_layers, store.spec.n_heads), int)
        bits[list(layers), :width] = reply.details.bits
        engine.hold(bits)
        logits = engine.answer(open_tokenizer(path, store.spec).encode(TEXT), layers, width)
    shares = np.exp(logits.astype(np.float64))
    return tuple((shares / shares.sum()).tolist())


@pytest.mark.parametrize("preload", [0, 3000, 10**9])
@pytest.mark.parametrize("latency_s", [0.006, 0.02, 10.0])
def test_a_streamed_answer_equals_the_resident_one(
    elastic_session: OpenElastic,
    latency_s: float,
    preload: int,
    tiny_store: Callable[..., Path],
    kernel_cache: Path,
) -> None:
    """Whatever was streamed, preloaded or skipped, the logits are those of the bits the reply names."""
    path = tiny_store(**ELASTIC)
    options = SessionOptions(latency_s, preload, length=8)
    with elastic_session(options, store=path) as session:
        for _ in range(3):
            reply = session(TEXT)
            assert reply.scores is not None
            expected = _expected(path, reply, session.plan.layers, kernel_cache)
            assert reply.scores == pytest.approx(expected, abs=1e-6)
            assert reply.label == ("negative", "positive")[int(np.argmax(expected))]


def test_without_anytime_every_run_has_the_planned_bits(elastic_session: OpenElastic) -> None:
    """Then late IO costs time instead of fidelity."""
    options = SessionOptions(0.02, 1000, length=8, is_anytime=False)
    with elastic_session(options) as session:
        session.runner.dilation = Dilation(io=20.0)
        for _ in range(3):
            reply = session(TEXT)
            assert reply.details.bits == reply.details.planned_bits == session.plan.bits


def test_late_refinements_are_done_without(elastic_session: OpenElastic) -> None:
    """A disk far slower than its profile leaves the lowest bits, and the reply says so."""
    profile = paper_profile(disk=Link(1e-6, 1e9))
    options = SessionOptions(0.012, 0, length=8)
    with elastic_session(options, profile=profile) as session:
        session.runner.dilation = Dilation(io=100.0)
        replies = [session(TEXT) for _ in range(3)]
    for ran in (reply.details for reply in replies):
        assert all(2 <= b <= p for row, plan in zip(ran.bits, ran.planned_bits, strict=True)
                   for b, p in zip(row, plan, strict=True))  # fmt: skip
    assert any(reply.details.bits != reply.details.planned_bits for reply in replies)


def test_a_preload_buffer_for_everything_reads_nothing(elastic_session: OpenElastic) -> None:
    """If |S| holds all that the submodel wants, the plan says so and no byte is read at run time."""
    options = SessionOptions(10.0, 10**9, length=8)
    with elastic_session(options) as session:
        reply = session(TEXT)
        assert session.plan.is_resident
        assert reply.details.read_bytes == 0
        assert reply.details.submodel == (4, 4)
        assert set(reply.details.bits[0]) == {32}


def test_retargeting_changes_the_plan_and_a_refused_target_changes_nothing(
    elastic_session: OpenElastic,
) -> None:
    """The app may update T and |S| at any time (STI 3.2)."""
    with elastic_session(SessionOptions(10.0, length=8)) as session:
        assert session(TEXT).details.submodel == (4, 4)
        session.retarget(latency="9ms", preload="2KB")
        assert session(TEXT).details.submodel != (4, 4)
        before = session.plan
        with pytest.raises(BudgetError):
            session.retarget(latency=1e-4)
        assert session.options.target_s == pytest.approx(0.009)
        assert session.plan == before


def test_an_engagement_reads_less_and_ends_as_it_began(elastic_session: OpenElastic) -> None:
    """Back-to-back executions keep what they read, and the freed IO raises fidelity (STI 3.3)."""
    profile = paper_profile(disk=Link(1e-4, 4e6))
    with elastic_session(SessionOptions(0.02, 1500, length=8), profile=profile) as session:
        before = session.plan
        with session.engagement(60_000) as engaged:
            replies = [engaged(TEXT) for _ in range(5)]
            assert session.weight_bytes > before.memory.weight_bytes - 60_000
        fidelity = [sum(map(sum, r.details.planned_bits)) for r in replies]
        assert fidelity[-1] > fidelity[0]
        assert session.plan == before


def test_longer_inputs_than_planned_for_are_answered(
    elastic_session: OpenElastic, tiny_store: Callable[..., Path]
) -> None:
    """The promise is for the planned length; correctness is for all."""
    profile = paper_profile(lengths=(8,))
    path = tiny_store(**ELASTIC)
    text = " ".join(["good", "film"] * 11)
    with elastic_session(SessionOptions(0.02, length=8), store=path, profile=profile) as session:
        reply = session(text)
        assert reply.length == 24
        assert reply.scores is not None
        assert sum(reply.scores) == pytest.approx(1)
        with pytest.raises(InputError, match="24"):
            session(text + " bad")
        with pytest.raises(InputError):
            session("  ")


def test_a_bit_flip_met_at_run_time_is_an_error_never_an_answer(
    elastic_session: OpenElastic, tiny_store: Callable[..., Path], tmp_path: Path
) -> None:
    """The message names file, layer, part and slice; the next run still works or fails the same way."""
    path = shutil.copytree(tiny_store(**ELASTIC), tmp_path / "store")
    with elastic_session(SessionOptions(10.0, length=8), store=path) as session:
        entry = session.store.manifest.layers[1]
        part = next(p for p in entry.parts if p.part == 6)
        with open(path / entry.file, "r+b") as file:
            file.seek(part.offsets[1] + 3)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 16]))
        for _ in range(2):
            with pytest.raises(LaneError, match=r"layer 1.*slice 1") as caught:
                session(TEXT)
            assert isinstance(caught.value.__cause__, StoreError)


def test_a_retarget_that_meets_damage_leaves_the_old_buffer_in_place(
    elastic_session: OpenElastic, tiny_store: Callable[..., Path], tmp_path: Path
) -> None:
    """Kernels point into the buffer: letting go of it too early would answer from freed memory."""
    path = shutil.copytree(tiny_store(**ELASTIC), tmp_path / "store")
    with elastic_session(SessionOptions(0.02, 3000, length=8), store=path) as session:
        held = session.runner.weights.preload_runs
        before = session(TEXT)
        session.runner.lanes.drain()  # a load that the answer did not wait for must not meet the damage
        for entry in session.store.manifest.layers:
            part = next(p for p in entry.parts if p.part == 6)
            with open(path / entry.file, "r+b") as file:
                file.seek(part.offsets[0])
                file.write(b"\xa5" * 64)
        with pytest.raises(StoreError, match="full"):
            session.retarget(latency=10.0, preload=10**9)
        assert session.runner.weights.preload_runs == held
        assert (session.plan.n, session.plan.width) == before.details.submodel


def test_sessions_share_one_memory_budget(elastic_session: OpenElastic) -> None:
    """Several models in one process, each with its own target and buffer, under one total."""
    options = SessionOptions(0.02, 2000, length=8)
    larger = SessionOptions(10.0, 10**6, length=8)
    with MemoryBudget(800_000) as memory:
        with elastic_session(options, memory=memory) as first:
            assert memory.free_bytes < 800_000
            with pytest.raises(BudgetError, match="free"), elastic_session(larger, memory=memory):
                pass
            assert first(TEXT).label is not None
        assert memory.free_bytes == 800_000


def test_a_longer_text_takes_its_activations_from_the_shared_budget(elastic_session: OpenElastic) -> None:
    """Another session would be promised the bytes that the longer text's activations hold already."""
    with MemoryBudget(10**8) as memory, elastic_session(WHOLE, memory=memory) as session:
        before = session.memory
        session(LONGER)
        after = session.memory
        assert after.predicted_bytes > before.predicted_bytes
        assert memory.total_bytes - memory.free_bytes >= after.predicted_bytes
    with MemoryBudget(before.predicted_bytes) as memory, elastic_session(WHOLE, memory=memory) as session:
        with pytest.raises(BudgetError, match="free"):
            session(LONGER)
        assert session.memory.predicted_bytes <= memory.total_bytes
        assert session(TEXT).label is not None


def test_the_share_of_a_session_that_is_dropped_is_free_again(
    tiny_store: Callable[..., Path], kernel_cache: Path
) -> None:
    """No other session could ever take it: nothing is left that could be closed."""
    with open_store(tiny_store(**ELASTIC)) as store, MemoryBudget(10**8) as memory:
        session = ElasticSession(store, paper_profile(), WHOLE, cache=kernel_cache, memory=memory)
        assert memory.free_bytes < memory.total_bytes
        del session
        gc.collect()
        assert memory.free_bytes == memory.total_bytes


@pytest.mark.parametrize("preload", [16_000, 10**9])
def test_under_memory_pressure_the_buffer_keeps_what_comes_first_in_its_order(
    elastic_session: OpenElastic, preload: int
) -> None:
    """An app that holds on to memory is the first to be killed (STI 2.2).

    Half of a bound above the whole model is no less memory: a node gave way three times to let go of any.
    """
    with elastic_session(SessionOptions(0.02, preload, length=8)) as session:
        before, n_bytes = session.runner.weights.planes(), session.runner.weights.preload_bytes
        session.give_way()
        after = session.runner.weights.planes()
        assert session.options.preload_bytes == n_bytes // 2
        assert session.plan.memory.preload_bytes <= n_bytes // 2
        assert before.sum() > after.sum() > 0
        assert (after <= before).all()
        assert session(TEXT).label is not None


def test_under_memory_pressure_a_session_that_can_free_nothing_keeps_its_plans(
    elastic_session: OpenElastic,
) -> None:
    """The notice comes within a request: to plan anew would cost it milliseconds and free nothing."""
    with elastic_session(SessionOptions(0.02, 0, length=8)) as session:
        plan, n_changes = session.plan, session.runner.n_changes
        session.give_way()
        assert session.runner.n_changes == n_changes
        assert session.plan is plan


def test_the_peak_covers_what_was_held_and_let_go() -> None:
    """An answer reports it: it must not be what the process holds by then."""
    np.ones(64 << 20, np.uint8)
    assert 64 << 20 <= peak_rss_bytes() < 64 << 30


def test_warming_up_plans_every_shorter_bucket_and_changes_no_answer(elastic_session: OpenElastic) -> None:
    """The first request must not pay for planning and fresh pages: it has a target as any other."""
    options = SessionOptions(10.0, 0, length=8)
    with elastic_session(options) as session:
        before = session(TEXT)
        session.runner.dilation = Dilation(io=2.0)
        session.warm_up()
        assert session.runner.dilation == Dilation(io=2.0)
        assert session(TEXT).scores == before.scores


def test_a_warm_session_is_warm_after_a_retarget_and_an_engagement(
    elastic_session: OpenElastic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first short text after a new target has that target too; planning inside it would miss it."""
    planned: list[Program] = []
    bind = WeightMemory.bind

    def counted(weights: WeightMemory, program: Program, n_slots: int, working_bytes: int) -> Pipeline:
        planned.append(program)
        return bind(weights, program, n_slots, working_bytes)

    monkeypatch.setattr(WeightMemory, "bind", counted)
    options = SessionOptions(10.0, 0, length=24)
    with elastic_session(options) as session:
        assert len(planned) == 1  # what was never warm is not warmed up
        session.retarget(latency=5.0)
        assert len(planned) == 2
        session.warm_up()
        session.retarget(latency="40ms")
        ready = len(planned)
        assert ready == 5
        session(TEXT)
        session(TEXT + TEXT[3:] + TEXT[3:])
        assert len(planned) == ready
        with session.engagement(2000):
            session(TEXT)
        ready = len(planned)
        session(TEXT)
        assert len(planned) == ready


def test_one_answer_may_have_a_target_of_its_own(
    elastic_session: OpenElastic, tiny_store: Callable[..., Path], kernel_cache: Path
) -> None:
    """Its submodel is the one that was forecast; the session's own target and buffer stay as they were."""
    path = tiny_store(**ELASTIC)
    options = SessionOptions(10.0, 10**9, length=8, n_threads=1)
    with elastic_session(options, store=path) as session:
        weights = session.weight_bytes
        plan = session.plan_at(8, "6ms")
        small, whole, again = session(TEXT, latency="6ms"), session(TEXT), session(TEXT, latency=0.006)
        ran = [reply.details.submodel for reply in (small, again, whole)]
        assert ran[0] == ran[1] == (plan.n, plan.width) != ran[2] == (4, 4)
        assert (small.target_s, whole.target_s) == (0.006, 10.0)
        assert small.scores == pytest.approx(_expected(path, small, plan.layers, kernel_cache), abs=1e-6)
        assert small.details.predicted_s == session.forecast(small.length, 0.006)
        assert session.forecast(8, 0.006) <= 0.006 < session.forecast(8, 10.0)
        assert session.weight_bytes == weights


def test_an_emulated_device_tokenises_slowly_too(
    elastic_session: OpenElastic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer's time is from text to answer: on a slower device all of it takes longer."""
    worked_s, slept = 0.002, []
    device = emulate(paper_profile(), Dilation(50.0))
    with elastic_session(SessionOptions(60.0, length=8, n_threads=1), profile=device) as session:
        encode = session.encode

        def slowly(text: str, pair: str | None = None) -> TokenizedInput:
            end_s = time.thread_time() + worked_s
            while time.thread_time() < end_s:
                pass
            return encode(text, pair)

        monkeypatch.setattr(session, "encode", slowly)
        monkeypatch.setattr(session.runner.lanes.emulated, "sleep", slept.append)
        session(TEXT)
    assert slept[0] >= 49 * worked_s


def test_texts_of_a_list_are_answered_in_order_as_each_alone(elastic_session: OpenElastic) -> None:
    """One that cannot be read is named before any is answered; the others' time is no time of the device."""
    texts = ["good", TEXT, "a bad plot and a good actor but no film"]
    options = SessionOptions(10.0, 10**9, length=8)
    with elastic_session(options) as session:
        replies, alone = session(texts), [session(text) for text in texts]
        for reply, one in zip(replies, alone, strict=True):
            assert reply.scores == pytest.approx(one.scores, abs=1e-6)
            assert (reply.label, reply.length) == (one.label, one.length)
        assert session([]) == []
        assert session([("good", "bad film")])[0].length == session("good", "bad film").length
        with pytest.raises(InputError, match="text 1 of the list: the text is empty"):
            session(["good", " "])
        with pytest.raises(InputError, match="pair"):
            session(texts, "bad")


def test_a_profile_shows_every_step_beside_its_prediction(elastic_session: OpenElastic) -> None:
    """As `pliant run --timeline` does; the fastest of the answers counts."""
    options = SessionOptions(10.0, length=8)
    with elastic_session(options) as session:
        found = session.profile(TEXT, runs=3)
        ran = found.fastest
        assert len(ran.spans) == len(ran.predicted_spans) == len(ran.program.steps)
        assert ran.predicted_s == session.forecast(7, 10.0)
        assert 0 < found.min_s <= found.median_s
        page = str(found)
        assert "layer 3" in page
        assert "fastest of 3 runs" in page
        names = {event["name"] for event in found.chrome_trace()["traceEvents"] if event["ph"] == "X"}
        assert {"embed", "layer 0", "head"} <= names
        with pytest.raises(InputError, match="at least 1"):
            session.profile(TEXT, runs=0)
        assert len(session.profile({"ids": [[1, 2, 3]]}, 1).fastest.spans) == len(ran.spans)


def test_what_would_run_is_explained_for_any_length(elastic_session: OpenElastic) -> None:
    """A longer input has a plan of its own under the same target."""
    with elastic_session(SessionOptions(0.02, length=8)) as session:
        for n, text in ((8, "the story was not good film"), (24, " ".join(["good", "film"] * 11))):
            plan = session.explain(n)
            assert (plan.n, plan.width) == session(text).details.submodel
            assert "why:" in str(plan)
        for n in (0, -1, session.max_length + 1):
            with pytest.raises(InputError, match=f"a text of {n} tokens is not read; give 1 to"):
                session.explain(n)


def test_without_a_target_a_reply_has_none(elastic_session: OpenElastic) -> None:
    """The hour that stands for no target was shown as met."""
    with elastic_session(SessionOptions(NO_TARGET_S, length=8)) as session:
        for reply in (session(TEXT), *session([TEXT, TEXT])):
            assert (reply.target_s, reply.met) == (None, None)
            assert " of " not in str(reply)
        assert session(TEXT, latency="10s").target_s == 10.0
