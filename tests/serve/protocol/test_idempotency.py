"""An id's answer is made once, kept for a while within bounds, and never kept if it failed."""

import asyncio

import pytest

from pliant.serve.protocol.idempotency import IdempotencyCache


class Work:
    def __init__(self) -> None:
        self.n, self.now_s = 0, 0.0

    async def __call__(self) -> str:
        self.n += 1
        await asyncio.sleep(0)
        return f"answer {self.n}"


def once(work: Work, **bounds: int) -> IdempotencyCache[str]:
    return IdempotencyCache(lambda: work.now_s, len, **{"keep_s": 10, "most": 4, "most_bytes": 80, **bounds})


def test_arrivals_together_share_an_answer_and_later_ones_too() -> None:
    """Until it is old; then the id is a new request's."""

    async def run() -> None:
        work = Work()
        answers = once(work)
        assert await asyncio.gather(*(answers("a", work) for _ in range(3))) == ["answer 1"] * 3
        assert await answers("a", work) == "answer 1"
        assert await answers("b", work) == "answer 2"
        work.now_s = 11.0
        assert await answers("a", work) == "answer 3"

    asyncio.run(run())


def test_what_failed_is_tried_again_and_all_who_wait_are_told() -> None:
    """A failure is no answer."""

    async def run() -> None:
        work = Work()
        answers = once(work)

        async def fail() -> str:
            await asyncio.sleep(0)
            raise ValueError("no")

        found = await asyncio.gather(*(answers("a", fail) for _ in range(2)), return_exceptions=True)
        assert [str(error) for error in found] == ["no", "no"]
        assert await answers("a", work) == "answer 1"

    asyncio.run(run())


def test_memory_is_bounded_in_number_and_size() -> None:
    """Ids come from strangers."""

    async def run() -> None:
        work = Work()
        answers = once(work)
        for i in range(100):
            await answers(f"{i}", work)
        assert len(answers) <= 5

        async def large() -> str:
            work.n += 1
            return "x" * 21

        await answers("large", large)
        n = work.n
        await answers("large", large)
        assert work.n == n + 1

    asyncio.run(run())


def test_what_runs_for_long_outlasts_answers_that_ended_meanwhile() -> None:
    """It is nobody's turn to be forgotten before it has ended, however many came behind it."""

    async def run() -> None:
        work = Work()
        answers = once(work)
        gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def wait() -> str:
            return await gate

        first = asyncio.create_task(answers("long", wait))
        await asyncio.sleep(0)
        for i in range(20):
            work.now_s += 1.0
            await answers(f"{i}", work)
        second = asyncio.create_task(answers("long", work))
        await asyncio.sleep(0)
        gate.set_result("of the first")
        assert await asyncio.gather(first, second) == ["of the first"] * 2
        assert work.n == 20
        assert await answers("19", work) == "answer 20"
        assert await answers("0", work) == "answer 21"

    asyncio.run(run())


def test_an_answer_is_made_as_long_as_anybody_waits_for_it() -> None:
    """A client that left took those with it that had asked again under its id; now the last one ends it."""

    async def run() -> None:
        work = Work()
        answers = once(work)
        gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        ended: list[BaseException] = []

        async def wait() -> str:
            try:
                return await asyncio.shield(gate)
            except asyncio.CancelledError as error:
                ended.append(error)
                raise

        first, second = (asyncio.create_task(answers("a", wait)) for _ in range(2))
        for task in (first, second):
            assert not ended
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await answers("a", work) == "answer 1"
        assert len(ended) == 1
        assert len(answers) == 1

    asyncio.run(run())


def test_one_that_is_cancelled_before_it_began_is_forgotten() -> None:
    """The next with its id asks anew, rather than for ever."""

    async def run() -> None:
        work = Work()
        answers = once(work)
        task = asyncio.create_task(answers("a", work))
        asyncio.get_running_loop().call_soon(task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await answers("a", work) == f"answer {work.n}"

    asyncio.run(run())


def test_what_cannot_be_cancelled_any_more_is_kept_for_who_asks_again() -> None:
    """A model that computes goes on: a client that lost its connection gets that answer, not another."""

    async def run() -> None:
        work = Work()
        answers = once(work)
        gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def compute() -> str:
            work.n += 1
            try:
                return await asyncio.shield(gate)
            except asyncio.CancelledError:
                return await gate

        first = asyncio.create_task(answers("a", compute))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        again = asyncio.create_task(answers("a", compute))
        await asyncio.sleep(0)
        gate.set_result("late")
        assert await again == "late"
        assert work.n == 1

    asyncio.run(run())
