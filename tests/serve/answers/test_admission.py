"""Work that nobody waits for is not done, and no client takes all of the queue from others."""

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import Any

import pytest

from pliant.errors import NodeError
from pliant.ir.reply import Reply
from pliant.ir.times.timing import Timing
from pliant.serve.answers.admission import Admission
from pliant.serve.answers.work_item import WorkResult
from pliant.serve.batching.batch_times import BatchTimes
from pliant.serve.batching.plan_batch import QueuedRequest
from tests.serve.test_routing import until


class Busy:
    """An admission whose thread is held by one piece until `gate` opens; `done` names what was done."""

    def __init__(self, queue: int) -> None:
        self.now_s = 0.0
        self.admission = Admission(queue, lambda: self.now_s)
        self.gate, self.done = threading.Event(), list[str]()
        self._is_held = threading.Event()

    def ask(self, client: str, name: str = "") -> "asyncio.Task[object]":
        work = self._doing(name or client)
        return asyncio.create_task(self.admission.run(work, 1.0, client))

    def _doing(self, name: str) -> Callable[[], None]:
        return lambda: self.done.append(name)

    def hold(self) -> None:
        self._is_held.set()
        assert self.gate.wait(60)
        self.done.append("first")

    async def begun(self) -> None:
        await asyncio.to_thread(self._is_held.wait, 60)


@asynccontextmanager
async def busy(queue: int) -> AsyncIterator[tuple[Busy, "asyncio.Task[object]"]]:
    made = Busy(queue)
    first = asyncio.create_task(made.admission.run(made.hold, 1.0, "first"))
    await asyncio.sleep(0)
    await made.begun()
    try:
        yield made, first
    finally:
        made.gate.set()
        await asyncio.gather(first, return_exceptions=True)
        made.admission.close()


async def asked(made: Busy, *clients: str) -> "list[asyncio.Task[object]]":
    tasks = [made.ask(client, f"{client}{i}") for i, client in enumerate(clients)]
    await asyncio.sleep(0)
    return tasks


def refused(task: "asyncio.Task[object]") -> bool:
    return task.done() and isinstance(task.exception(), NodeError)


def test_work_that_is_cancelled_while_it_waits_is_not_done_and_leaves_its_place() -> None:
    """The device worked for clients that had left, while those that had not were refused."""

    async def run() -> None:
        async with busy(1) as (made, first):
            (gone,) = await asked(made, "a")
            assert not made.admission.has_room("a")
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
            assert made.admission.backlog_s == 1.0
            (stays,) = await asked(made, "b")
            made.gate.set()
            await asyncio.gather(first, stays)
            assert made.done == ["first", "b0"]

    asyncio.run(run())


def test_work_that_has_begun_is_done_and_counts_until_it_ends() -> None:
    """A thread cannot be stopped: were its place free, the backlog would be too short by it."""

    async def run() -> None:
        async with busy(0) as (made, first):
            for why in ("its deadline passed", "another endpoint answered"):
                first.cancel(why)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                assert not first.done(), why
                assert not made.admission.is_idle
            assert made.admission.backlog_s == 1.0
            made.now_s = 0.75
            assert made.admission.backlog_s == 0.25, "what is done of it is no wait"
            made.now_s = 3.0
            assert made.admission.backlog_s == 2.0, "what is late goes on for as long again"
            made.gate.set()
            await first
            assert made.done == ["first"]
            assert made.admission.backlog_s == 0.0

    asyncio.run(run())


def test_one_client_alone_may_fill_the_queue_and_two_get_half_each() -> None:
    """One that sent 64 requests had every other client refused until they were answered."""

    async def run() -> None:
        async with busy(4) as (made, first):
            greedy = await asked(made, *"aaaa")
            assert not made.admission.has_room("a")
            assert made.admission.has_room("b")
            others = await asked(made, *"bbb")
            await asyncio.wait([*greedy[2:], others[2]], timeout=60)
            assert [refused(task) for task in greedy] == [False, False, True, True]
            assert [refused(task) for task in others] == [False, False, True]
            with pytest.raises(NodeError, match="more requests in it than its share") as told:
                await greedy[3]
            assert told.value.status == 503
            assert told.value.retry_after_s == 5
            made.gate.set()
            await asyncio.gather(first, *greedy[:2], *others[:2])
            assert made.done == ["first", "a0", "a1", "b0", "b1"]

    asyncio.run(run())


def test_who_has_no_more_than_others_is_not_displaced() -> None:
    """Each would take the other's place in turn, and nobody would be answered."""

    async def run() -> None:
        async with busy(2) as (made, _):
            here = await asked(made, "a", "b")
            (late,) = await asked(made, "c")
            assert refused(late)
            assert not any(task.done() for task in here)
            made.gate.set()
            await asyncio.gather(*here)

    asyncio.run(run())


class Shouting:
    """A worker of batches: capitals."""

    most_together = 4
    most_together_beside = 2
    most_items = inf
    most_beside = 1

    def __init__(self) -> None:
        self.times, self.times_beside = BatchTimes(), BatchTimes()

    def refusal(self, one: str, is_contended: bool) -> None:
        return None

    def lateness(self, one: str, alone_s: float) -> NodeError:
        return NodeError(f"{one} would be late", status=503)

    def work(self, ones: Sequence[str], is_beside: bool) -> list[str]:
        return [one.upper() for one in ones]


def test_a_worker_is_kept_by_nobody_once_its_requests_ended() -> None:
    """A model that was unloaded would stay in memory, with all its weights: one answered, one cancelled."""

    async def run() -> None:
        async with busy(8) as (made, first):
            worker, waiting = Shouting(), QueuedRequest(Timing(1.0, 1.0), key="any")
            stays = [asyncio.create_task(made.admission.submit(worker, x, waiting)) for x in ("a", "b")]
            gone = asyncio.create_task(made.admission.submit(worker, "c", waiting))
            await asyncio.sleep(0)
            gone.cancel()
            made.gate.set()
            assert [done.result for done in await asyncio.gather(*stays)] == ["A", "B"]
            await first
            kept = weakref.ref(worker)
            del worker, stays, gone
            await made.admission.run(lambda: None, 0.0)  # the thread has gone on
            gc.collect()
            assert kept() is None

    asyncio.run(run())


class Loading(Shouting):
    """A worker that takes a second of `made`, and another one in a first batch of some size to prepare it."""

    def __init__(self, made: Busy) -> None:
        super().__init__()
        self._made, self._sizes = made, set[int]()

    def work(self, ones: Sequence[str], is_beside: bool) -> list[Any]:
        loaded_s = 0.0 if len(ones) in self._sizes else 1.0
        self._sizes.add(len(ones))
        self._made.now_s += 1.0 + loaded_s
        return [Reply({}, one, 1.0 + loaded_s, None, loaded_s=loaded_s) for one in ones]


def test_a_batch_is_expected_to_take_what_it_takes_once_the_model_is_ready() -> None:
    """A first batch that prepared a plan seemed to lose, and its size was tried again only after 256 others.
    Two requests of a second, one of which expected to prepare for another second, run in one together."""

    async def run() -> None:
        async with busy(8) as (made, first):
            worker = Loading(made)
            ready = QueuedRequest(Timing(1.0, 1.0), 8, key="any")
            unready = QueuedRequest(Timing(2.0, 2.0), 8, key="any", loading_s=1.0)
            asks = [asyncio.create_task(made.admission.submit(worker, "a", one)) for one in (ready, unready)]
            await asyncio.sleep(0)
            made.gate.set()
            assert [done.n_together for done in await asyncio.gather(*asks)] == [2, 2]
            await first
            found = worker.times.expected(2, 16, Timing(2.0, 2.0))
            assert found.median_s == pytest.approx(1.0)

    asyncio.run(run())


class Silent(Shouting):
    """A worker that gives one result too few for the text "few"."""

    def work(self, ones: Sequence[str], is_beside: bool) -> list[str]:
        return super().work([one for one in ones if one != "few"], is_beside)

    def refusal(self, one: str, is_contended: bool) -> None:
        raise ZeroDivisionError(one)


def test_a_batch_with_too_few_results_fails_and_nobody_waits_for_ever() -> None:
    """No result belongs to any request then; the next batch is answered."""

    async def run() -> None:
        async with busy(8) as (made, _):
            worker, waiting = Silent(), QueuedRequest(Timing(1.0, 1.0), key="any")
            asks = [asyncio.create_task(made.admission.submit(worker, x, waiting)) for x in ("few", "b")]
            await asyncio.sleep(0)
            made.gate.set()
            for ask in asks:
                with pytest.raises(RuntimeError, match="a batch of 2 requests gave 1 results"):
                    await asyncio.wait_for(ask, 60)
            assert (await made.admission.submit(worker, "c", waiting)).result == "C"

    asyncio.run(run())


def test_what_fails_while_a_batch_is_chosen_fails_what_waits_and_not_what_follows() -> None:
    """The thread ended, and nobody was answered any more."""

    async def run() -> None:
        async with busy(8) as (made, _):
            worker, due = Silent(), QueuedRequest(Timing(1.0, 1.0), due_s=9.0, key="any")
            asks = [asyncio.create_task(made.admission.submit(worker, x, due)) for x in ("a", "b")]
            await asyncio.sleep(0)
            made.now_s = 20.0
            made.gate.set()
            for ask in asks:
                with pytest.raises(ZeroDivisionError):
                    await asyncio.wait_for(ask, 60)
            assert made.admission.is_idle
            later = QueuedRequest(Timing(1.0, 1.0), key="any")
            assert (await asyncio.wait_for(made.admission.submit(worker, "c", later), 60)).result == "C"

    asyncio.run(run())


class Unrecordable(BatchTimes):
    """Times of batches of which none is recorded the first time."""

    has_failed = False

    def observe(self, n: int, length: int, alone: Timing, seconds: float) -> None:
        if not self.has_failed:
            self.has_failed = True
            raise ZeroDivisionError
        super().observe(n, length, alone, seconds)


def test_a_batch_whose_time_cannot_be_recorded_is_delivered() -> None:
    """The thread ended: its requests, and all after them, waited until their deadlines, or for ever."""

    async def run() -> None:
        async with busy(8) as (made, _):
            worker, waiting = Shouting(), QueuedRequest(Timing(1.0, 1.0), key="any")
            worker.times = Unrecordable()
            asks = [asyncio.create_task(made.admission.submit(worker, x, waiting)) for x in ("a", "b")]
            await asyncio.sleep(0)
            made.gate.set()
            assert [(await asyncio.wait_for(ask, 60)).result for ask in asks] == ["A", "B"]
            later = made.admission.submit(worker, "c", waiting)
            assert (await asyncio.wait_for(later, 60)).result == "C"

    asyncio.run(run())


class Counting(Shouting):
    """A worker that says how many batches of it were under way at once, and which had all threads."""

    most_beside = 2

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.runs: list[tuple[int, bool]] = []
        self.n_now = self.n_most = 0
        self._lock = threading.Lock()

    def work(self, ones: Sequence[str], is_beside: bool) -> list[str]:
        with self._lock:
            self.runs.append((len(ones), is_beside))
            self.n_now += 1
            self.n_most = max(self.n_most, self.n_now)
            assert is_beside or self.n_now == 1, "who has all threads shares them with nobody"
        assert self.gate.wait(60)
        with self._lock:
            self.n_now -= 1
        return super().work(ones, is_beside)


def test_batches_run_beside_each_other_and_nothing_beside_what_has_all_threads() -> None:
    """One request alone has all threads; those that come meanwhile are divided among two workers, and what
    cannot run beside them waits until both are done."""

    async def run() -> None:
        admission, worker = Admission(64), Counting()
        waiting = QueuedRequest(Timing(1.0, 1.0), key="any")
        try:
            first = asyncio.create_task(admission.submit(worker, "a", waiting))
            await asyncio.to_thread(until, lambda: worker.n_now == 1)
            tasks = [asyncio.create_task(admission.submit(worker, "b", waiting)) for _ in range(4)]
            await asyncio.sleep(0)
            assert worker.runs == [(1, False)]
            worker.gate.set()
            await first
            await asyncio.gather(*tasks)
            assert worker.runs[1] == (2, True)
            assert sum(n for n, _ in worker.runs) == 5
            worker.gate.clear()
            tasks = [asyncio.create_task(admission.submit(worker, "c", waiting)) for _ in range(4)]
            await asyncio.to_thread(until, lambda: worker.n_now == 2)
            alone = asyncio.create_task(admission.run(lambda: worker.n_now, 0.0))
            ahead = asyncio.create_task(asyncio.to_thread(admission.run_now, lambda: worker.n_now))
            worker.gate.set()
            assert ((await alone).result, (await ahead).result) == (0, 0)
            assert {done.result for done in await asyncio.gather(*tasks)} == {"C"}
            assert worker.n_most == 2
            assert admission.backlog_s == 0.0
        finally:
            worker.gate.set()
            admission.close()

    asyncio.run(run())


@pytest.mark.parametrize("n_workers", [1, 2])
def test_as_many_work_as_may(n_workers: int) -> None:
    """64 requests at once, of which some leave; each of the others is answered once.

    One worker alone has batches of all threads, and took as many together as two have beside each other.
    """

    async def run() -> None:
        admission, worker = Admission(64, n_workers=n_workers), Counting()
        worker.gate.set()
        waiting = QueuedRequest(Timing(1e-3, 1e-3), key="any")
        asked = [asyncio.create_task(admission.submit(worker, str(i), waiting)) for i in range(64)]
        await asyncio.sleep(0)
        for task in asked[::3]:
            task.cancel()
        found = await asyncio.gather(*asked, return_exceptions=True)
        admission.close()
        answered = [i for i, done in enumerate(found) if not isinstance(done, asyncio.CancelledError)]
        assert {i for i in range(64) if i % 3} <= {*answered}
        assert all(found[i].result == str(i) for i in answered)  # type: ignore[union-attr]
        assert sum(n for n, _ in worker.runs) == len(answered)
        assert worker.n_most <= n_workers
        most = worker.most_together if n_workers == 1 else worker.most_together_beside
        assert max(n for n, _ in worker.runs) == most
        assert admission.is_idle

    asyncio.run(run())


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads take turns after a microsecond, not five milliseconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_the_backlog_is_told_while_the_thread_takes_from_it(quick_switches: None) -> None:
    """One request in some thousands failed (500): the last piece had gone between two lines."""

    async def run() -> None:
        admission, worker = Admission(64), Shouting()
        waiting = QueuedRequest(Timing(1e-6, 1e-6), key="any")
        for _ in range(60):
            asked = [asyncio.create_task(admission.submit(worker, "a", waiting)) for _ in range(16)]
            while not all(task.done() for task in asked):
                assert admission.backlog_s >= 0.0
                assert admission.wait_s(waiting) >= 0.0
                await asyncio.sleep(0)
            assert {task.result().result for task in asked} == {"A"}
        admission.close()

    asyncio.run(run())


def test_a_shorter_request_takes_the_place_of_a_longer_one_at_once() -> None:
    """Both cannot be in time; the longer one was refused only when its deadline was near."""

    async def run() -> None:
        async with busy(8) as (made, first):
            worker = Shouting()

            def ask(name: str, takes_s: float, due_s: float) -> "asyncio.Task[WorkResult[str]]":
                waiting = QueuedRequest(Timing(takes_s, takes_s), due_s=due_s, key="any")
                return asyncio.create_task(made.admission.submit(worker, name, waiting))

            long, loose = ask("long", 4.0, 10.0), ask("loose", 5.0, 100.0)
            await asyncio.sleep(0)
            assert made.admission.n_waiting == 2
            short = ask("short", 1.0, 7.5)
            await asyncio.wait([long], timeout=60)
            assert isinstance(long.exception(), NodeError)
            longer = ask("longer", 4.0, 9.0)
            await asyncio.wait([longer], timeout=60)
            assert isinstance(longer.exception(), NodeError), "it is the longest itself"
            assert made.admission.n_waiting == 2
            made.gate.set()
            assert [done.result for done in await asyncio.gather(short, loose)] == ["SHORT", "LOOSE"]
            await first

    asyncio.run(run())


def test_a_request_that_would_be_refused_displaces_no_other() -> None:
    """A client whose deadlines leave no time emptied the queue of the others, and was answered never."""

    async def run() -> None:
        async with busy(2) as (made, first):
            others = await asked(made, "a", "a")
            hopeless = QueuedRequest(Timing(4.0, 4.0), due_s=4.5, key="any")
            with pytest.raises(NodeError, match="the queue is full"):
                await made.admission.submit(Shouting(), "b", hopeless, "b")
            made.gate.set()
            await asyncio.gather(first, *others)
            assert sorted(made.done) == ["a0", "a1", "first"]

    asyncio.run(run())
