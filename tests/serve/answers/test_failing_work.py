"""No request is lost or left in the queue when planning, a batch or other requests fail."""

import asyncio
from collections.abc import Sequence
from math import erf, exp, log, sqrt

import pytest

from pliant.ir.times.timing import Timing
from pliant.serve.answers.work_item import BatchRun
from pliant.serve.batching.plan_batch import QueuedRequest
from tests.serve.answers.test_admission import Shouting, asked, busy, refused

ONE_S = Timing(1.0, 1.0)


class Recording(Shouting):
    """A worker that records what it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[tuple[str, ...]] = []

    def work(self, ones: Sequence[str], is_beside: bool) -> list[str]:
        self.ran.append(tuple(ones))
        return super().work(ones, is_beside)


def test_long_requests_that_left_the_queue_delay_no_later_one() -> None:
    """A client that sent long requests and disconnected put all without a deadline behind those with one."""

    async def run() -> None:
        async with busy(8) as (made, first):
            worker = Recording()
            endless = asyncio.create_task(made.admission.run(lambda: None, 1000.0))
            behind = await asked(made, "a")
            for task in (endless, *behind):
                task.cancel()
            await asyncio.wait([endless, *behind])
            asks = [("early", QueuedRequest(ONE_S)), ("late", QueuedRequest(ONE_S, due_s=500.0))]
            tasks = [asyncio.create_task(made.admission.submit(worker, *one)) for one in asks]
            await asyncio.sleep(0)
            made.gate.set()
            await asyncio.gather(first, *tasks)
            assert worker.ran == [("early",), ("late",)]

    asyncio.run(run())


def test_an_error_in_planning_reaches_the_callers_and_the_queue_goes_on() -> None:
    """The thread ended unseen, and no other one was started: every request waited for ever."""

    class Broken(Shouting):
        def refusal(self, one: str, is_contended: bool) -> None:
            raise ValueError("a level has gone")

    async def run() -> None:
        async with busy(8) as (made, first):
            waiting = QueuedRequest(ONE_S, due_s=3.0)
            task = asyncio.create_task(made.admission.submit(Broken(), "a", waiting))
            await asyncio.sleep(0)
            made.now_s = 2.5
            made.gate.set()
            with pytest.raises(ValueError, match="a level has gone"):
                await asyncio.wait_for(task, 60)
            await first
            assert (await asyncio.wait_for(made.admission.run(lambda: "on", 1.0), 60)).result == "on"

    asyncio.run(run())


def test_too_few_answers_of_a_batch_are_no_answers() -> None:
    """The callers waited for ever; each request runs alone, as after any failure of a batch."""

    class Forgetful(Recording):
        def work(self, ones: Sequence[str], is_beside: bool) -> list[str]:
            return super().work(ones, is_beside)[: max(len(ones) - 1, 1)]

    async def run() -> None:
        async with busy(8) as (made, first):
            worker, waiting = Forgetful(), QueuedRequest(ONE_S, key="any")
            tasks = [asyncio.create_task(made.admission.submit(worker, one, waiting)) for one in "ab"]
            await asyncio.sleep(0)
            made.gate.set()
            ends = await asyncio.wait_for(asyncio.gather(*tasks), 60)
            assert [end.result for end in ends] == ["A", "B"]
            assert worker.ran == [("a", "b"), ("a",), ("b",)]
            await first

    asyncio.run(run())


def test_a_failed_batch_is_no_measurement() -> None:
    """Its time and those of all its requests alone were learned as the time of such a batch."""

    class Brittle(Recording):
        def work(self, ones: Sequence[str], is_beside: bool) -> list[str]:
            if len(ones) > 1:
                raise RuntimeError("one of them is bad")
            return super().work(ones, is_beside)

    async def run() -> None:
        async with busy(8) as (made, first):
            worker, waiting = Brittle(), QueuedRequest(ONE_S, key="any")
            tasks = [asyncio.create_task(made.admission.submit(worker, one, waiting)) for one in "ab"]
            await asyncio.sleep(0)
            made.gate.set()
            assert [end.result for end in await asyncio.gather(*tasks)] == ["A", "B"]
            await first
            assert worker.times.expected(2, 2, Timing(2.0, 2.0)) == Timing(2.0, 2.0)

    asyncio.run(run())


def test_a_shorter_queue_displaces_no_more_than_come() -> None:
    """One request of another client emptied a queue that was longer than its new limit (SIGHUP)."""

    async def run() -> None:
        async with busy(6) as (made, first):
            here = await asked(made, *"aaaaaa")
            made.admission.queue = 2
            await asked(made, "b")
            await asyncio.wait([here[5]], timeout=60)
            assert [refused(task) for task in here] == [False] * 5 + [True]
            made.gate.set()
            await asyncio.gather(first, *here[:5])

    asyncio.run(run())


@pytest.mark.parametrize("age_s", [0.5, 1.0, 1.2])
def test_work_beyond_its_median_takes_as_long_as_log_normal_times_do(age_s: float) -> None:
    """At its median it counted as done, and then for as long again as it was late, though half of all work
    takes longer: accepted requests were late for it."""
    deviation = log(1.5) / 1.645

    def below(z: float) -> float:
        return 0.5 * (1.0 + erf(z / sqrt(2.0)))

    z = log(age_s) / deviation
    mean_s = exp(deviation**2 / 2.0) * below(deviation - z) / (1.0 - below(z)) - age_s
    assert BatchRun((), 0.0, Timing(1.0, 1.5)).left_s(age_s) == pytest.approx(mean_s, rel=0.25)


def test_work_beyond_its_bound_takes_as_long_again_as_it_is_late() -> None:
    run = BatchRun((), 0.0, Timing(1.0, 1.5))
    assert (run.left_s(1.5), run.left_s(4.5), run.late_s(4.5)) == (0.0, 3.0, 3.0)


def test_a_panic_in_a_batch_ends_no_thread() -> None:
    """Rust extensions panic with errors that are no `Exception`: the thread ended, and its callers waited
    for ever."""

    class Panic(BaseException):
        pass

    class Panicking(Recording):
        def work(self, ones: Sequence[str], is_beside: bool) -> list[str]:
            if len(ones) > 1:
                raise Panic
            return super().work(ones, is_beside)

    async def run() -> None:
        async with busy(8) as (made, first):
            worker, waiting = Panicking(), QueuedRequest(ONE_S, key="any")
            tasks = [asyncio.create_task(made.admission.submit(worker, one, waiting)) for one in "ab"]
            await asyncio.sleep(0)
            made.gate.set()
            ends = await asyncio.wait_for(asyncio.gather(*tasks), 60)
            assert [end.result for end in ends] == ["A", "B"]
            await first

    asyncio.run(run())


def test_a_late_request_that_cannot_be_planned_fails_alone() -> None:
    """Its error was the answer to all requests in the queue."""

    class Broken(Shouting):
        def refusal(self, one: str, is_contended: bool) -> None:
            raise ValueError("a level has gone")

    async def run() -> None:
        async with busy(8) as (made, first):
            late = QueuedRequest(ONE_S, due_s=3.0)
            broken = asyncio.create_task(made.admission.submit(Broken(), "a", late))
            other = asyncio.create_task(made.admission.submit(Shouting(), "b", QueuedRequest(ONE_S)))
            await asyncio.sleep(0)
            made.now_s = 2.5
            made.gate.set()
            assert (await asyncio.wait_for(other, 60)).result == "B"
            with pytest.raises(ValueError, match="a level has gone"):
                await broken
            await first

    asyncio.run(run())
