"""Several models within one budget of memory: what each holds, and that together they never hold more."""

import gc
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pliant
from pliant.errors import BudgetError, InputError, LaneError, ModelError, PliantError, StoreError
from pliant.ir.endpoint import Request
from pliant.ir.link import Link
from pliant.plan.memory_shares import MemoryOption
from pliant.plan.plan import NO_TARGET_S
from pliant.run.array_sessions.recurrent_session import RecurrentSession
from pliant.run.process_memory import MemoryBudget, Reservation
from pliant.run.submodel.elastic_session import ElasticSession
from pliant.run.submodel.plans.submodel_planner import SessionOptions
from tests.run.conftest import ELASTIC, OpenElastic, paper_profile

ASSETS = Path(pliant.__file__).parent / "models" / "assets"
TEXT, OTHER = "a charming and often affecting journey", "dull, and far too long"
TIMES = "a fine film " * 60


class Pretender:
    """Holds what it is told at once; `needed` is what it cannot answer with less than."""

    def __init__(self, name: str, budget: MemoryBudget, sizes: list[int], every: list["Pretender"]) -> None:
        self.name, self.held_bytes = name, 0
        self.budget, self.every = budget, every
        self.holdings = tuple(MemoryOption(n, float(sizes[-1] - n)) for n in sizes)
        self.held_bytes = budget.join(self, self.holdings)
        every.append(self)
        self.check()

    def hold(self, n_bytes: int) -> None:
        self.held_bytes = n_bytes
        self.check()

    def ask(self, n_bytes: int) -> None:
        self.budget.count_request(self)
        self.held_bytes = self.budget.ensure_share(self, n_bytes)
        assert self.held_bytes >= n_bytes
        self.check()

    def check(self) -> None:
        """Whenever one holds more or less: not all have done what is theirs yet."""
        assert sum(one.held_bytes for one in self.every) <= self.budget.total_bytes


@given(st.data())
def test_nothing_exceeds_the_budget_whatever_is_asked(data: st.DataObject) -> None:
    """Also on the way from one division to another: who takes waits until the others have let go."""
    now_s = [0.0]
    budget = MemoryBudget(data.draw(st.integers(0, 40)), clock=lambda: now_s[0])
    every: list[Pretender] = []
    for i in range(data.draw(st.integers(1, 4))):
        sizes = sorted(data.draw(st.sets(st.integers(0, 20), min_size=1, max_size=5)))
        if sum(one.holdings[0].n_bytes for one in every) + sizes[0] > budget.total_bytes:
            with pytest.raises(BudgetError, match="Give at least"):
                Pretender(f"model{i}", budget, sizes, every)
        else:
            Pretender(f"model{i}", budget, sizes, every)
    for _ in range(data.draw(st.integers(0, 12)) if every else 0):
        now_s[0] += data.draw(st.integers(0, 30))
        one, n_bytes = data.draw(st.sampled_from(every)), data.draw(st.integers(0, 45))
        before = [(x.held_bytes, x.share_bytes) for x in budget.shares]
        others = sum(x.holdings[0].n_bytes for x in every if x is not one)
        if n_bytes <= one.held_bytes or others + n_bytes <= budget.total_bytes:
            one.ask(n_bytes)
        else:
            with pytest.raises(BudgetError, match="Give at least"):
                one.ask(n_bytes)
            assert [(x.held_bytes, x.share_bytes) for x in budget.shares] == before
        budget.rebalance()
        for x, share in zip(every, budget.shares, strict=True):
            assert x.held_bytes <= share.share_bytes
    assert sum(share.share_bytes for share in budget.shares) <= budget.total_bytes


def test_a_fixed_share_has_others_free_what_they_can_do_without() -> None:
    """A model with its own limit may be loaded last: the first one alone holds all that it can use."""
    budget, owner = MemoryBudget(100), threading.Event()
    pretender = Pretender("one", budget, [10, 40, 50, 90], [])
    assert pretender.held_bytes == 90
    with pytest.raises(BudgetError, match="only 90 B are free") as refused:
        budget.reserve_fixed(owner, 95)
    assert (refused.value.short_bytes, pretender.held_bytes, budget.free_bytes) == (5, 90, 10)
    budget.reserve_fixed(owner, 55)
    assert (pretender.held_bytes, budget.free_bytes) == (40, 5)
    budget.release(owner)
    assert budget.free_bytes == 60


def test_the_budget_grows_and_shrinks_to_what_answers_need() -> None:
    """Weights are freed down to the least; below that nothing changes, and the error says what is missing."""
    budget, every = MemoryBudget(100), list[Pretender]()
    one, other = Pretender("one", budget, [10, 40, 60], every), Pretender("other", budget, [20, 30], every)
    assert (one.held_bytes, other.held_bytes) == (60, 30)
    budget.resize(75)
    assert (one.held_bytes, other.held_bytes, budget.total_bytes) == (40, 30, 75)
    budget.resize(30)
    assert (one.held_bytes, other.held_bytes, budget.free_bytes) == (10, 20, 0)
    with pytest.raises(BudgetError, match="29 B are less than the models need, 30 B") as refused:
        budget.resize(29)
    assert (refused.value.short_bytes, budget.total_bytes) == (1, 30)
    budget.resize(90)
    one.ask(60)
    assert (one.held_bytes, other.held_bytes) == (60, 20)


def test_a_session_may_be_dropped_while_the_budget_is_divided() -> None:
    """Garbage is collected at any time, and with it sessions that nobody closed."""
    budget, dropped = MemoryBudget(100), list[Pretender]()

    class Dropping(Pretender):
        def hold(self, n_bytes: int) -> None:
            dropped.clear()
            gc.collect()
            super().hold(n_bytes)

    first = Dropping("first", budget, [10, 50], [])
    dropped.append(Pretender("second", budget, [10, 50], []))
    third = Pretender("third", budget, [60, 80], [])
    assert (first.held_bytes, third.held_bytes) == (10, 80)
    assert [share.name for share in budget.shares] == ["first", "third"]


def test_a_model_that_leaves_too_little_for_anothers_answers_is_refused() -> None:
    """In every order: a model that can free all of itself still needs all of itself to answer."""
    budget, every = MemoryBudget(40), list[Pretender]()
    whole = Pretender.__new__(Pretender)
    whole.name, whole.held_bytes, whole.budget, whole.every = "whole", 0, budget, every
    whole.held_bytes = budget.join(whole, (MemoryOption(0, 1.0), MemoryOption(35, 0.0)), 35)
    every.append(whole)
    with pytest.raises(BudgetError, match=r"at least 41 \(whole 35, part 6\)") as refused:
        Pretender("part", budget, [6, 20], every)
    assert refused.value.short_bytes == 1
    assert [(one.name, one.share_bytes) for one in budget.shares] == [("whole", 35)]
    part = Pretender("part", budget, [4, 20], every)
    assert (budget.least_bytes, budget.needs_bytes, budget.room_for(budget)) == (39, 39, 1)
    for one, n_bytes in ((whole, 35), (part, 4), (whole, 35)):
        one.ask(n_bytes)
    with pytest.raises(BudgetError, match="only 1 B are free"):
        budget.reserve_fixed(threading.Event(), 2)
    with pytest.raises(BudgetError, match=r"at least 41 \(whole 35, part 6\)"):
        budget.ensure_share(part, 6, (MemoryOption(6, 0.0),))
    whole.ask(35)


@pytest.mark.slow
def test_the_order_in_which_models_are_opened_refuses_none_of_them_later() -> None:
    """A recurrent model frees all that it has, and its next request needs it again."""
    budget = MemoryBudget(4_000_000)
    with pliant.open("imdb-lstm", memory=budget, threads=1) as first:
        with pytest.raises(BudgetError, match=r"share 4000000 bytes .* at least (\d+) \(imdb-lstm"):
            pliant.open("sst2", memory=budget, threads=1)
        assert first(TEXT).label == "positive"
        assert [share.name for share in budget.shares] == ["imdb-lstm"]


@pytest.mark.parametrize("kind", [BudgetError, InputError, LaneError])
@pytest.mark.parametrize("held_bytes", [60, 35])
def test_a_model_that_cannot_free_its_weights_keeps_its_share(
    kind: type[PliantError], held_bytes: int
) -> None:
    """What it may hold is not another model's, whatever it said before that it can do with, and whatever
    fails: a share that leaves too little for reads, or reads of an earlier answer."""
    budget, every = MemoryBudget(100), list[Pretender]()
    stubborn = Pretender("one", budget, [10, 60], every)
    stubborn.held_bytes = held_bytes  # it may hold less than its share at the moment, and more later

    def refuse(n_bytes: int) -> None:
        raise kind(f"{n_bytes} are too few")

    stubborn.hold = refuse  # type: ignore[method-assign]
    with pytest.raises(BudgetError, match="only 40 B are free"):
        Pretender("two", budget, [50], every)
    assert [(share.name, share.share_bytes) for share in budget.shares] == [("one", 60)]
    two = Pretender("two", budget, [30], every)
    with pytest.raises(BudgetError, match="only 40 B are free"):
        two.ask(50)
    assert [share.share_bytes for share in budget.shares] == [60, 30]


def test_another_target_changes_what_a_session_needs_of_the_budget(elastic_session: OpenElastic) -> None:
    """It opened with a target that is met in less memory: others were given what it no longer can free."""
    profile, loose_s, tight_s = paper_profile(disk=Link(1e-4, 1e6)), 0.006, 0.004
    options = SessionOptions(loose_s, None, length=8, n_threads=1, adapts=False)
    with elastic_session(options, profile=profile, memory=MemoryBudget(10**8)) as session:
        least = session.share.least_bytes
        session.retarget(latency=tight_s)
        more = session.share.least_bytes - least
        assert more > 0
    budget = MemoryBudget(2 * least)
    with elastic_session(options, profile=profile, memory=budget) as first:
        first.retarget(latency=tight_s)
        with (
            pytest.raises(BudgetError, match=f"at least {2 * least + more}"),
            elastic_session(options, profile=profile, memory=budget),
        ):
            pass
        assert first(TEXT).label is not None
        first.retarget(latency=loose_s)
        with elastic_session(options, profile=profile, memory=budget) as second:
            with pytest.raises(BudgetError, match=f"at least {2 * least + more}"):
                first.retarget(latency=tight_s)
            assert first.options.target_s == loose_s
            assert first(TEXT).label == second(TEXT).label
            assert measured(budget, first, second) <= budget.total_bytes
    budget = MemoryBudget(2 * least + more)
    with (
        elastic_session(options, profile=profile, memory=budget) as first,
        elastic_session(options, profile=profile, memory=budget) as second,
    ):
        for one in (first, second):
            one.retarget(latency=tight_s)
            assert first(TEXT).label == second(TEXT).label
            assert measured(budget, first, second) <= budget.total_bytes
            one.retarget(latency=loose_s)


def test_the_model_that_is_asked_more_often_holds_more() -> None:
    """After a while: one request less or more changes nothing."""
    now_s = [0.0]
    budget = MemoryBudget(10, clock=lambda: now_s[0])
    every: list[Pretender] = []
    one, two = (Pretender(name, budget, [1, 5, 9], every) for name in ("one", "two"))
    for asked, other in ((one, two), (two, one)):
        for _ in range(100):
            asked.ask(1)
        budget.rebalance()
        assert (asked.held_bytes, other.held_bytes) == (9, 1)
        now_s[0] += 600.0


def test_requests_counted_by_several_threads_are_all_counted() -> None:
    """A node counts refused requests while a session counts its answers. Here, a second thread counts while
    the first one reads the clock.
    """
    model, is_alone = Reservation("model"), [True]

    def clock() -> float:
        if is_alone.pop():
            is_alone.append(False)
            other = threading.Thread(target=count)
            other.start()
            other.join()
        return 0.0

    def count() -> None:
        budget.count_of_node(model, is_refused=False)

    budget = MemoryBudget(100, clock=clock)
    count()
    assert model.requests.count == 2.0


def measured(budget: MemoryBudget, *sessions: ElasticSession | RecurrentSession) -> int:
    """Bytes of all sessions in memory at one moment between two answers."""
    with budget.turns.lock:
        return sum(
            one.runner.memory.measured_bytes
            if isinstance(one, ElasticSession)
            else sum(part.measured_bytes for part in one.runner.memory)
            for one in sessions
        )


@pytest.fixture(scope="module")
def second_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped recurrent model under another name."""
    return Path(shutil.copytree(ASSETS / "imdb-lstm", tmp_path_factory.mktemp("models") / "second-lstm"))


@pytest.mark.slow
def test_models_answer_at_once_as_they_do_alone_within_their_budget(second_model: Path) -> None:
    """From 16 threads: two recurrent models take turns in the room that there is for one of them.

    The elastic one answers with the plan of its share, and to the bit as a session does that has as much.
    """
    sources = ("sst2", "imdb-lstm", str(second_model))
    budget = MemoryBudget(7_000_000)
    with ExitStack() as stack:
        sessions = [stack.enter_context(pliant.open(s, memory=budget, threads=1)) for s in sources]
        elastic = sessions[0]
        most = measured(budget, *sessions)

        def ask(i: int) -> tuple[int, np.ndarray, object]:
            nonlocal most
            reply = sessions[i % 3](TEXT if i % 2 else OTHER)
            most = max(most, measured(budget, *sessions))
            return i, reply.logits, reply.details

        with ThreadPoolExecutor(16) as pool:
            replies = list(pool.map(ask, range(96)))
        assert most <= budget.total_bytes
        assert sum(one.loading_s > 0.0 for one in sessions[1:]) == 1
        share = next(one.share_bytes for one in budget.shares if one.name == "sst2")
        assert elastic.memory.budget_bytes == share
    with ExitStack() as stack:
        alone = [
            stack.enter_context(pliant.open(source, memory=share if source == "sst2" else None, threads=1))
            for source in sources
        ]
        expected = {(i, text): alone[i](text) for i in range(3) for text in (TEXT, OTHER)}
    for i, logits, details in replies:
        same = expected[i % 3, TEXT if i % 2 else OTHER]
        np.testing.assert_array_equal(logits, same.logits)
        if i % 3 == 0:
            assert details.bits == same.details.bits


@pytest.mark.slow
def test_a_longer_text_has_others_let_go_and_they_come_back() -> None:
    """Its activations take more than is left; the next request of the other model gets that again."""
    budget = MemoryBudget(7_500_000)
    with (
        pliant.open("sst2", memory=budget, threads=1) as elastic,
        pliant.open("imdb-lstm", memory=budget, threads=1) as other,
    ):
        before = other(TEXT)
        ids = np.resize(elastic.encode(TIMES).ids, 400)[None].astype(np.int64)
        elastic.run({"ids": ids})
        assert measured(budget, elastic, other) <= budget.total_bytes
        assert other.loading_s > 0.0
        slow = other.levels()[-1].curve.at(8)
        after = other.answer(other.request({"ids": other.encode(TEXT).ids[None]}))
        np.testing.assert_array_equal(after.logits, before.logits)
        assert other.loading_s == 0.0
        assert slow - other.levels()[-1].curve.at(8) > 0.0
        assert measured(budget, elastic, other) <= budget.total_bytes
        elastic(TEXT)
        with pytest.raises(InputError, match="shares 7500000 bytes"):
            elastic.retarget(preload="1MB")


@pytest.mark.slow
def test_a_model_with_its_own_preload_buffer_may_be_opened_last() -> None:
    """The first one alone holds all that it can use, and frees what it can do without."""
    budget = MemoryBudget(16_000_000)
    with pliant.open("sst2", memory=budget, threads=1) as first:
        before = first(TEXT)
        assert budget.free_bytes < 1_000_000
        with pliant.open("sst2", memory=budget, preload="1MB", threads=1) as second:
            assert second(TEXT).label == before.label
            assert first(TEXT).label == before.label
            assert measured(budget, first, second) <= budget.total_bytes


@pytest.mark.slow
def test_a_budget_that_is_too_small_names_the_least_that_works() -> None:
    """By value, limit and next move; what is open answers on."""
    budget = MemoryBudget(4_000_000)
    with pliant.open("sst2", memory=budget, threads=1) as first:
        with pytest.raises(BudgetError, match=r"share 4000000 bytes .* at least (\d+) \(sst2") as refused:
            pliant.open("imdb-lstm", memory=budget, threads=1)
        assert first(TEXT).label == "positive"
        assert [share.name for share in budget.shares] == ["sst2"]
    least = int(str(refused.value).partition("Give at least ")[2].split()[0])
    enough = MemoryBudget(least)
    with (
        pliant.open("sst2", memory=enough, threads=1) as first,
        pliant.open("imdb-lstm", memory=enough, threads=1) as second,
    ):
        assert first(TEXT).label == second(TEXT).label == "positive"
        assert measured(enough, first, second) <= least
    assert enough.free_bytes == least


def test_a_model_that_was_let_go_of_is_what_it_was(
    second_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other weights under its name would give other answers, and nobody would know why."""
    folder = Path(shutil.copytree(second_model, tmp_path / "third-lstm"))
    budget = MemoryBudget(10**8)
    with pliant.open(folder, memory=budget, threads=1) as session:
        expected = session(TEXT)
        with budget.turns.lock:
            session.runner.hold(0)
        assert session.weight_bytes == 0
        request = session.request({"ids": session.encode(TEXT).ids[None]})
        assert isinstance(request, Request)
        np.testing.assert_array_equal(session(TEXT).logits, expected.logits)
        with budget.turns.lock:
            session.runner.hold(0)
        (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")
        with pytest.raises(ModelError, match="third-lstm hold another model"):
            session(TEXT)


def test_damage_leaves_less_in_memory_and_never_more(
    elastic_session: OpenElastic, tiny_store: Callable[..., Path], tmp_path: Path
) -> None:
    """A share may shrink while the disk fails: others count on the bytes that it had."""
    path = shutil.copytree(tiny_store(**ELASTIC), tmp_path / "store")
    budget = MemoryBudget(10**8)
    with elastic_session(SessionOptions(NO_TARGET_S, None, length=8), store=path, memory=budget) as session:
        expected, before = session(TEXT), session.runner.held_bytes
        session.runner.lanes.drain()
        for entry in session.store.manifest.layers:
            with open(path / entry.file, "r+b") as file:
                file.seek(entry.parts[0].offsets[0])
                file.write(b"\xa5" * 64)
        assert session(TEXT).logits.tolist() == expected.logits.tolist()  # all of it is in memory
        least = session.share.least_bytes
        with budget.turns.lock, pytest.raises(StoreError):
            session.share.hold(least)
        assert session.runner.held_bytes <= least < before
        with pytest.raises(StoreError, match="layer"):
            session(TEXT)
        assert session.runner.held_bytes <= least
