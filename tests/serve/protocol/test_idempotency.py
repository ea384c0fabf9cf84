"""An id's answer is made once, kept for a while within bounds, and never kept if it failed."""

import asyncio

import pytest

from pliant.serve.protocol.idempotency import Once


class Work:
    def __init__(self) -> None:
        self.n, self.now_s = 0, 0.0

    async def __call__(self) -> str:
        self.n += 1
        await asyncio.sleep(0)
        return f"answer {self.n}"


def once(work: Work, **bounds: int) -> Once[str]:
    return Once(lambda: work.now_s, len, **{"keep_s": 10, "most": 4, "most_bytes": 80, **bounds})


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


def test_one_that_is_cancelled_takes_others_with_it_and_is_forgotten() -> None:
    """Whoever waited asks again, rather than for ever."""

    async def run() -> None:
        work = Work()
        answers = once(work)
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def wait() -> str:
            return await never

        first = asyncio.create_task(answers("a", wait))
        await asyncio.sleep(0)
        second = asyncio.create_task(answers("a", wait))
        await asyncio.sleep(0)
        first.cancel()
        for task in (first, second):
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await answers("a", work) == "answer 1"

    asyncio.run(run())
